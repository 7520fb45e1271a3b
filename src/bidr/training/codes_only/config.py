"""Settings of codes for existing vectors (`bidr train --vectors`)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from bidr.errors import ConfigError

RELEVANT = ("bytes_per_doc", "codewords", "candidates", "seed", "checkpoint_minutes", "logs", "device")
INSTEAD = {
    "batch_size": "use frozen.batch_size",
    "learning_rate": "use frozen.rate",
    "frozen.crops": "passages need texts; leave it out",
}


@dataclass(frozen=True, kw_only=True)
class CodesOnlyConfig:
    """Codes for existing vectors (`bidr train --vectors`).

    Of the other settings only bytes_per_doc, codewords, candidates, seed, checkpoint_minutes and logs apply.
    """

    steps: int = 400
    """Optimizer steps of codewords and query adapter. 0: no distillation; codes minimize the reconstruction error
    alone."""
    batch_size: int = 256
    """Queries per batch."""
    questions: int = 10_000
    """Maximum number of train queries. Without queries, as many documents serve as queries."""
    sample: int = 200_000
    """Maximum number of documents to train on; of a larger corpus, a random sample that holds every labeled one."""
    crops: float = 3.0
    """With texts (conventional.codes = 'distilled'): pseudo-queries per query, cropped from the text of documents."""
    borrowed: float = 3.0
    """With labels: pseudo-queries per labeled query, made for other documents from the queries of their neighbors."""
    borrowers: Literal["unasked", "all"] = "unasked"
    """Documents that get such pseudo-queries: 'unasked', those without a labeled query, or 'all'."""
    depth: int = 64
    """Top documents per query by full vectors, which are the teacher's ranking."""
    own: int = 16
    """Of these, how many are sampled per query at each step."""
    others: int = 2_048
    """Random documents added at each step."""
    temperature: float = 0.6
    """Softmax temperature of the teacher's and the codes' scores, as a multiple of the standard deviation of a query's
    scores."""
    finer: float = 0.0
    """Exponent f of a schedule for codes above 8 bytes. With s = (bytes / 8) ** f: `rate` is divided and `others`
    multiplied by s; `temperature` is divided and `own` (up to `depth`) multiplied by the square root of s."""
    rate: float = 1e-3
    """Learning rate of the codewords, for unit vectors of 384 dimensions."""
    adapter_rate: float = 0.1
    """Learning rate of the query adapter as a multiple of the codewords'."""
    label_weight: float = 0.2
    """Weight of the loss on labels beside the distillation loss. 0: ignore labels."""
    dev_questions: int = 500
    """Maximum number of held-out queries for model selection; at most a tenth of all."""
    measured: int = 4
    """Number of evaluations on the held-out queries."""


def refuse_text_settings(names: Iterable[str], device: str) -> None:
    """Refuse changed settings that have no effect on training from vectors."""
    for name in names:
        if name in INSTEAD or not (name in RELEVANT or name.startswith("frozen.")):
            raise ConfigError(
                f"{name}: goes with --data and has no effect with --vectors; "
                + INSTEAD.get(name, "leave it out: only frozen.* and " + ", ".join(RELEVANT[:-1]) + " apply there")
            )
    if device not in ("auto", "cpu"):
        raise ConfigError(
            f"device: given {device!r}, but codes of existing vectors are trained on the CPU; leave it out"
        )
