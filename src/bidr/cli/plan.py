"""`bidr plan`: predict the resources of an index, or find settings that reach a recall."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import tyro

from bidr.cli.base import Command, CommandResult, OptionalData, OptionalFile, OptionalFolder, OptionalSize
from bidr.errors import ConfigError

if TYPE_CHECKING:
    from bidr.index.cost_model.memory_split import SplitChoice
    from bidr.planning.disk_benchmark import DiskSpeed
    from bidr.planning.tuning import TuningResult

RAM, MAX_QUERIES = "64GiB", 300
# Flags by use: computed plans, calibration, recall on vectors, and the settings to try there.
COMPUTED = {"dim", "stored_dims", "candidates", "id_bytes", "text_bytes", "lexical", "cores", "live", "measure"}
COMPUTED |= {"learned_codes"}
MEASURED = {"k", "index", "query_vectors"}
ONLY_VECTORS = {"vectors", "sample", "metric"}
MADE = {"sample", "metric"}
CHOSEN = {"docs", "ram", "bytes_per_doc", "stored"}
OptionalText = Annotated[str | None, tyro.conf.arg(metavar="N", help_behavior_hint="(optional)")]
OptionalShare = Annotated[float | None, tyro.conf.arg(metavar="SHARE", help_behavior_hint="(optional)")]


@dataclass(frozen=True, kw_only=True)
class Plan(Command):
    """Predict RAM, disk, reads, build time and machines of an index; or find the settings that reach a recall.

    bidr plan --docs 1e9 --dim 768 --ram 64GiB computes the prediction, with --measure at the speed of this machine;
    bidr plan --recall .95 with vectors or an index measures which settings reach that recall; with vectors alone it
    divides --ram between codes and cached vectors.
    """

    help_groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "corpus": ("docs", "dim", "data", "id-bytes", "text-bytes", "lexical"),
        "index": ("bytes-per-doc", "stored", "stored-dims", "candidates", "learned-codes", "live"),
        "machines": ("ram", "cores", "measure", "measure-disk"),
        "settings for a recall": (
            "recall",
            "k",
            "vectors",
            "index",
            "query-vectors",
            "sample",
            "metric",
        ),
        "output": ("json",),
    }

    docs: OptionalText = None
    """Number of documents, such as 1e9 or 10M; with --recall by default the number of --vectors."""
    dim: int = 768
    """Dimensions of the vectors."""
    ram: OptionalSize = None
    """RAM of one machine; by default 64GiB. With --recall, settings that need more are left out."""
    bytes_per_doc: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N ...")] = ()
    """Code size in bytes per document; by default the largest up to 64 that fits --ram, or with --recall and --vectors
    the one that a sample suggests. With --recall, several sizes can be given."""
    stored: Literal["fp16", "int8"] = "fp16"
    """Storage of the vectors."""
    stored_dims: int | None = None
    """Stored dimensions (bidr build --dims); by default all."""
    candidates: int = 200
    """Candidates per query, whose vectors are read."""
    id_bytes: float = 12
    """Mean length of an id."""
    text_bytes: float = 1_000
    """Mean length of title and text; 0: the index has no texts."""
    lexical: bool = False
    """With a BM25 index. Without --data its size is estimated for English texts of --text-bytes."""
    data: OptionalData = None
    """Dataset, read once for the sizes of ids, texts and BM25 postings (and for --docs)."""
    cores: int = 16
    """Cores of the build."""
    live: bool = True
    """Documents will be deleted and replaced."""
    learned_codes: bool = False
    """The codes come from a model: the build time excludes training them, and lists are built by codes, not by
    vectors."""
    measure: bool = False
    """Predict the build time from this machine's speed: run the build steps for about half a minute, on random
    vectors or on a sample of --vectors."""
    measure_disk: OptionalFolder = None
    """Measure random 4 KiB reads in this folder, at depth 1, 8 and 32, to predict milliseconds: some 15 seconds and a
    temporary file of 1 GiB at most."""
    recall: OptionalShare = None
    """Measure which settings find this share of the exact top k, such as .95."""
    k: int = 100
    """k of the recall."""
    vectors: OptionalFile = None
    """Document vectors (.npy): with --recall to index a sample and measure on it, or with --measure."""
    index: OptionalFolder = None
    """With --recall: measure on this index instead."""
    query_vectors: OptionalFile = None
    """With --recall: query vectors (.npy). Without them, --vectors are only sampled to choose a code size."""
    sample: int = 50_000
    """Maximum number of documents of --vectors to measure on."""
    metric: Literal["cosine", "ip"] = "cosine"
    """Similarity of --vectors: cosine or inner product."""

    def run(self) -> CommandResult:
        if self.recall is not None and self.data is not None:
            raise ConfigError("--data given with --recall, which is measured on --vectors or --index; leave --data out")
        is_sized = self.docs is not None or self.data is not None
        if not is_sized and self.recall is None and self.measure_disk is None:
            raise ConfigError("give --docs or --data (to predict sizes), or --recall (to find settings that reach it)")
        if is_sized and self.recall is None:
            return self._compute_sizes()
        if self.recall is None:
            return self._describe_disk()
        if self.vectors is not None and self.query_vectors is None and self.index is None:
            return self._divide_ram(self.recall)
        return self._measure_settings(self.recall)

    def _measure_disk(self) -> "DiskSpeed | None":
        from bidr.planning.disk_benchmark import measure_disk

        return None if self.measure_disk is None else measure_disk(self.measure_disk)

    def _describe_disk(self) -> CommandResult:
        from bidr.cli.format_split import format_disk

        fields = set(type(self).__dataclass_fields__) - {"json", "measure_disk"}
        self._refuse_unused(fields, "with --measure-disk alone")
        disk = self._measure_disk()
        if disk is None or self.measure_disk is None:
            raise ConfigError("--measure-disk: given no folder, expected one on the disk to measure")
        return CommandResult(format_disk(self.measure_disk, disk), {"disk": disk._asdict()})

    def _divide_ram(self, recall: float) -> CommandResult:
        """Choose code size, candidates and cache together, from a sample of the vectors."""
        from bidr.cli.format_split import describe_split, format_disk, format_split, make_split_commands
        from bidr.planning.tuning import check_target

        check_target(recall, self.k)
        self._refuse_unused(COMPUTED | {"sample"}, "with --recall and --vectors alone")
        choice, disk = self._choose_split(recall), self._measure_disk()
        options = [] if self.stored == "fp16" else ["--stored", self.stored]
        options += [] if self.metric == "cosine" else ["--metric", self.metric]
        commands = make_split_commands(choice, self.vectors or Path(), options)
        lines = [format_disk(self.measure_disk, disk), ""] if disk and self.measure_disk else []
        lines += [*format_split(choice, disk), *(f"    {command}" for command in commands)]
        value = describe_split(choice, disk) | {"disk": disk._asdict() if disk else None, "commands": commands}
        return CommandResult("\n".join(lines), value)

    def _choose_split(self, recall: float) -> "SplitChoice":
        from bidr.data.vector_source import check_same_dim, open_vectors
        from bidr.index.cost_model.memory_split import choose_split
        from bidr.planning.plan import parse_count
        from bidr.quantization.opq_config import PlainCodes
        from bidr.utils.byte_sizes import parse_bytes

        if self.vectors is None:
            raise ConfigError("--vectors: given none, expected document vectors (.npy) to choose a code size on")
        rows = open_vectors(self.vectors, str(self.vectors), self.metric)
        queries = None
        if self.query_vectors is not None:
            source = open_vectors(self.query_vectors, str(self.query_vectors), self.metric)
            check_same_dim(rows, source)
            queries = source[:MAX_QUERIES]
        return choose_split(
            rows,
            PlainCodes(metric=self.metric),
            stored=self.stored,
            ram=None if self.ram is None else parse_bytes("ram", self.ram),
            recall=recall,
            k=self.k,
            count=None if self.docs is None else parse_count("docs", self.docs),
            queries=queries,
            sizes=self.bytes_per_doc,
        )

    def _compute_sizes(self) -> CommandResult:
        from bidr.cli.format_plan import format_plan
        from bidr.cli.format_split import format_disk
        from bidr.planning.plan import CorpusSpec, choose_planned_bytes, measure_rates, parse_count, plan
        from bidr.utils.byte_sizes import parse_bytes

        self._refuse_unused(MEASURED | MADE, "without --recall")
        if not self.measure:
            self._refuse_unused({"vectors"}, "without --recall or --measure")
        if len(self.bytes_per_doc) > 1:
            raise ConfigError(f"bytes_per_doc: given {len(self.bytes_per_doc)} sizes, expected one without --recall")
        docs = {} if self.docs is None else {"docs": parse_count("docs", self.docs)}
        ram = parse_bytes("ram", RAM if self.ram is None else self.ram)
        how = {"ram": ram, "stored": self.stored}
        used = {"candidates": self.candidates, "cores": self.cores, "live": self.live, "dim": self.dim}
        used["learned_codes"] = self.learned_codes
        corpus = CorpusSpec(**{**self._measure_texts(), **docs, **how, **used}, stored_dims=self.stored_dims)
        chosen = choose_planned_bytes(corpus) if not self.bytes_per_doc else None
        corpus = replace(corpus, code_bytes=chosen or self.bytes_per_doc[0])
        value = plan(corpus, measure_rates(corpus, self.vectors) if self.measure else None)
        lines = [format_plan(value)]
        if chosen:
            lines.append(
                f"codes of {chosen} bytes a document: the largest up to 64 with which ivf fits --ram, or the smallest; "
                "bidr plan --recall .95 --vectors FILE chooses by your vectors."
            )
        disk = self._measure_disk()
        if disk is not None and self.measure_disk is not None:
            value["disk"] = disk._asdict()
            pages = value["engines"][0]["reads_a_query"]["pages_cold"]
            lines.append(
                f"{format_disk(self.measure_disk, disk)}: {pages:,.0f} pages take {disk.estimate_ms(pages):.2f} ms."
            )
        return CommandResult("\n".join(lines), value)

    def _measure_texts(self) -> dict[str, Any]:
        """Return sizes of ids, texts and postings: measured on --data, else as given by flags."""
        from bidr.data.dataset import load
        from bidr.index.lexical.size_estimate import guess_lexical_size
        from bidr.planning.plan import measure_corpus

        if self.data is None:
            sizes = {"id_bytes": self.id_bytes, "text_bytes": self.text_bytes or None}
            return sizes | ({"words": guess_lexical_size(self.text_bytes)} if self.lexical else {})
        if (self.id_bytes, self.text_bytes) != (Plan.id_bytes, Plan.text_bytes):
            raise ConfigError("--data says how large ids and texts are; leave --id-bytes and --text-bytes out")
        texts = measure_corpus(load(self.data).corpus)
        sizes = {"id_bytes": texts.id_bytes, "text_bytes": texts.text_bytes, "docs": texts.documents}
        return sizes | ({"words": texts.words} if self.lexical else {})

    def _measure_settings(self, recall: float) -> CommandResult:
        from bidr.cli.format_tuning import format_settings, make_commands
        from bidr.planning.tuning import check_target, tune_on_index

        check_target(recall, self.k)
        if self.query_vectors is None or (self.vectors is None) == (self.index is None):
            raise ConfigError(
                "--recall is measured: give --query-vectors, and --vectors (documents) or --index, one of these two"
            )
        self._refuse_unused(COMPUTED | {"measure_disk"}, "with --recall and --query-vectors")
        if self.index is not None:
            self._refuse_unused(ONLY_VECTORS | CHOSEN, "with --index, which is what it is")
            measured = tune_on_index(self.index, self.query_vectors, recall, self.k)
        else:
            measured = self._measure_on_sample(recall)
        cheapest = measured.cheapest
        commands = make_commands(self, measured, cheapest) if cheapest else []
        value = {
            **measured._asdict(),
            "settings": [setting._asdict() for setting in measured.settings],
            "left_out": [setting._asdict() for setting in measured.left_out],
            "cheapest": cheapest._asdict() if cheapest else None,
            "commands": commands,
        }
        return CommandResult(format_settings(measured, commands, sampled=self.index is None), value)

    def _measure_on_sample(self, recall: float) -> "TuningResult":
        from bidr.data.vector_source import open_vectors
        from bidr.planning.plan import parse_count
        from bidr.planning.tuning import TuningConfig, tune_on_sample
        from bidr.utils.byte_sizes import parse_bytes
        from bidr.utils.progress import say

        sizes = self.bytes_per_doc
        if not sizes:
            choice = self._choose_split(recall)
            say(choice.explain())
            sizes = (choice.chosen.code_bytes,)
        documents, questions = (
            open_vectors(path, str(path), self.metric) for path in (self.vectors, self.query_vectors) if path
        )
        docs = None if self.docs is None else parse_count("docs", self.docs)
        ram = None if self.ram is None else parse_bytes("ram", self.ram)
        tried = TuningConfig(sizes, self.stored, docs, ram, self.sample)
        return tune_on_sample(documents, questions, recall, self.k, tried)

    def _refuse_unused(self, names: set[str], when: str) -> None:
        """Refuse flags that would have no effect."""
        fields = type(self).__dataclass_fields__
        unused = [name for name in sorted(names) if getattr(self, name) != fields[name].default]
        if unused:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in unused)
            raise ConfigError(f"{flags} given, but not used {when}; leave it out")
