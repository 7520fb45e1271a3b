"""`bidr build`: make an index from vectors, or from texts and a model."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from bidr.cli.base import (
    Command,
    CommandResult,
    Engine,
    Folder,
    OptionalData,
    OptionalFile,
    OptionalFolder,
    OptionalSize,
)
from bidr.cli.last_index import save_last_index
from bidr.errors import ConfigError
from bidr.utils.step_timer import StepTime, StepTimes, read_clocks, record_steps

if TYPE_CHECKING:
    from bidr.data.dataset import Dataset
    from bidr.quantization.opq import PlainCodes


@dataclass(frozen=True, kw_only=True)
class Build(Command):
    """Encode a corpus with a model and make an index of it.

    A build that was cut off is continued; an index that is there already serves until the new one is whole.
    """

    help_groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "what to index": ("vectors", "data", "ids", "model"),
        "the index": ("out", "engine", "stored", "dims", "lexical"),
        "codes fitted to vectors, without a model": ("bytes-per-doc", "codewords", "metric"),
        "resources": ("ram-budget", "device"),
        "more": ("learned-lists", "json"),
    }

    out: Folder
    """Folder for the index."""
    model: OptionalFolder = None
    """What `bidr train` left; without one, codes are fitted to --vectors (OPQ) and nothing is learned."""
    data: OptionalData = None
    """Folder in BEIR, MS MARCO or parquet layout, or 'irds:' and an id of ir_datasets. Only its corpus is used."""
    vectors: OptionalFile = None
    """The documents' vectors (.npy): for a model that was learned from vectors, or for none. With --data, in its order,
    answers show their text."""
    ids: OptionalFile = None
    """The ids of the rows of --vectors, one a line or .npy; by default row numbers."""
    engine: Engine = "auto"
    """How candidates are found: flat (or scan) compares all codes, ivf (lists) those of the nearest lists, graph (hnsw)
    walks a proximity graph. 'auto' chooses by the number of documents, again at each compaction."""
    learned_lists: bool = True
    """With lists: take those that the model learned (bidr train --unify.lists), where it has any;
    --no-learned-lists finds them by k-means."""
    stored: Literal["fp16", "int8"] = "fp16"
    """How vectors lie on disk: int8 is half of fp16, and ranks a little less exactly."""
    dims: int | None = None
    """Store and rank by the first so many dimensions of the vectors alone: for models trained so (Matryoshka); codes
    are made of all."""
    lexical: bool = False
    """Also index the words of --data, for searches that join what words find: bidr search --lexical 100."""
    bytes_per_doc: int | None = None
    """Without a model: bytes of codes that a document takes in RAM; by default 32, or the most below that divide the
    dimensions."""
    codewords: Literal[16, 256] | None = None
    """Without a model: 16 codewords a book (quicker to scan; the default) or 256 (finer at the same bytes)."""
    metric: Literal["cosine", "ip"] | None = None
    """Without a model: what the vectors are compared by; by default 'cosine'."""
    ram_budget: OptionalSize = None
    """Most anonymous memory that the build may take, such as 1GiB; refused at the start where that cannot be kept."""
    device: str = "auto"
    """'auto' takes a GPU if there is one; or 'cpu', 'cuda', 'cuda:1'."""

    def run(self) -> CommandResult:
        from bidr.cli.format_index import describe_index
        from bidr.data.dataset import load
        from bidr.index.cost_model.memory_budget import estimate_loaded_bytes, parse_bytes
        from bidr.index.live.live_index import LiveIndex
        from bidr.pipeline.build import build, build_vectors
        from bidr.utils.progress import say

        refuse_other_content(self.out)
        self._check_flags()
        data, query_usage = load(self.data) if self.data else None, "WORDS ..."
        how: dict[str, Any] = {
            "engine": self.engine,
            "stored": self.stored,
            "dims": self.dims,
            "ram_budget": self.ram_budget,
            "lexical": self.lexical,
        }
        started = read_clocks()
        with record_steps() as spent:
            if self.vectors is not None:
                how["plain"] = self._get_codes_config() if self.model is None else None
                build_vectors(self.vectors, self.model, self.out, ids=self.ids, data=data, **how)
                query_usage = "--query-vectors FILE"
            elif data is None or self.model is None:
                raise ConfigError("--data without --model given; train a model first, or give --vectors")
            else:
                build(data, self.model, self.out, device=self.device, learned_lists=self.learned_lists, **how)
        took = format_step_times(spent, read_clocks() - started)
        say(took.text)
        save_last_index(self.out)
        next_step = f"next: bidr search --index {self.out} {query_usage}"
        if self.ram_budget is not None and estimate_loaded_bytes(self.out) > parse_bytes("ram_budget", self.ram_budget):
            value = {
                "index": str(self.out),
                **took.value,
                **describe_dropped_fields(data),
            }  # to describe it would take more than the budget
            return CommandResult(
                f"{self.out}: built; searching it takes more than {self.ram_budget}\n{next_step}", value
            )
        with LiveIndex.open(self.out) as reader:
            description = describe_index(reader.describe())
        return CommandResult(
            f"{description.text}\n{next_step}", {**description.value, **took.value, **describe_dropped_fields(data)}
        )

    def _get_codes_config(self) -> "PlainCodes":
        from bidr.quantization.opq import PlainCodes

        return PlainCodes(self.bytes_per_doc, self.codewords or 16, self.metric or "cosine")

    def _check_flags(self) -> None:
        """Refuse what would be ignored."""
        if self.data is None and self.vectors is None:
            raise ConfigError("give --data (a corpus to encode), or --vectors with or without --ids (encoded already)")
        if self.data is not None and self.ids is not None:
            raise ConfigError("--ids given with --data, whose documents have ids of their own; leave --ids out")
        own = {"--bytes-per-doc": self.bytes_per_doc, "--codewords": self.codewords, "--metric": self.metric}
        rejected_flags = [name for name, value in own.items() if value is not None]
        if self.model is not None and rejected_flags:
            raise ConfigError(
                f"{', '.join(rejected_flags)} given with --model, expected --model alone: codes and metric are what "
                f"it learned; leave {'it' if len(rejected_flags) == 1 else 'them'} out, or train another model with "
                f"{'it' if len(rejected_flags) == 1 else 'them'}"
            )


def format_step_times(spent: StepTimes, total: StepTime) -> CommandResult:
    """What a build took, by the clock and of the processor, and which steps most of it."""
    steps = dict(spent)
    steps["other"] = total - sum(spent.values(), StepTime())
    busy_steps = ", ".join(f"{step} {own.cpu:.1f}" for step, own in steps.items() if own.cpu >= 0.05)
    value = {step: {"cpu": round(own.cpu, 3), "clock": round(own.clock, 3)} for step, own in steps.items()}
    text = f"built in {total.clock:.1f} s; CPU time {total.cpu:.1f} s: {busy_steps or 'hardly any'}"
    return CommandResult(text, {"build_seconds": value})


def describe_dropped_fields(data: "Dataset | None") -> dict[str, Any]:
    """What metadata of a corpus that was read is in no attribute."""
    dropped_fields = data.corpus.dropped_fields if data is not None else None
    return {} if dropped_fields is None else dropped_fields.to_json()


def refuse_other_content(out: Path) -> None:
    """An index goes into a folder of its own: a mistyped --out must not fill another one."""
    if out.is_file():
        raise ConfigError(f"{out} is a file; give a folder for the index")
    ours = ("CURRENT", ".work", ".work.done")
    if out.is_dir() and any(out.iterdir()) and not any((out / name).exists() for name in ours):
        raise ConfigError(f"{out} holds something else already; choose another folder or empty it")
