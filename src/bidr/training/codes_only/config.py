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
    """Codes for vectors that already exist (`bidr train --vectors`); of the other settings only bytes_per_doc,
    codewords, candidates, seed, checkpoint_minutes and logs count there."""

    steps: int = 400
    """Updates of codewords and query adapter; 0: codes that only reconstruct."""
    batch_size: int = 256
    """Questions in a step."""
    questions: int = 10_000
    """Most questions to learn from; where none are given, as many documents stand in."""
    sample: int = 200_000
    """Most documents to learn from; of more, a random part with every labelled one."""
    crops: float = 3.0
    """Where there are texts (conventional.codes = 'distilled'): passages of documents that ask too, for each
    question."""
    borrowed: float = 3.0
    """Where there are labels: questions made for documents that nobody asked for, from those of their neighbours, for
    each labelled question."""
    borrowers: Literal["unasked", "all"] = "unasked"
    """The documents such questions are made for: those that no labelled question asks for, or all."""
    depth: int = 64
    """How many of a question's best documents by full vectors are learned from."""
    own: int = 16
    """How many of these come into a step's pool, for every question."""
    others: int = 2_048
    """Random documents in a step's pool."""
    temperature: float = 0.6
    """Of the distributions that are compared, as a multiple of the standard deviation of a question's scores."""
    finer: float = 0.0
    """How lessons grow finer with more than 8 bytes a document. With f = (bytes / 8) to this power, `rate` is divided
    and `others` multiplied by f, `temperature` divided and `own` (up to `depth`) multiplied by its root."""
    rate: float = 1e-3
    """Learning rate of the codewords, for vectors of length 1 and 384 dimensions."""
    adapter_rate: float = 0.1
    """Learning rate of the query adapter as a multiple of the codewords'."""
    label_weight: float = 0.2
    """Weight of the labels beside the full vectors' ranking; 0: labels are not looked at."""
    dev_questions: int = 500
    """Most questions to hold out and choose on; never more than a tenth."""
    measured: int = 4
    """How often the held-out questions are measured."""


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
