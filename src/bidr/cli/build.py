"""`bidr build`: make an index from vectors, or from texts and a model."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import tyro

from bidr.cli.base import (
    CommandResult,
    Engine,
    Folder,
    OptionalData,
    OptionalEncoder,
    OptionalFile,
    OptionalFolder,
    OptionalNumber,
    OptionalSize,
    OptionalSource,
    OptionalText,
)
from bidr.cli.last_index import save_last_index
from bidr.cli.table_flags import COLUMN_FLAGS, TableCommand
from bidr.errors import ConfigError
from bidr.utils.step_timer import StepTime, StepTimes, read_clocks, record_steps

if TYPE_CHECKING:
    from bidr.data.dataset import Dataset
    from bidr.quantization.opq_config import PlainCodes


@dataclass(frozen=True, kw_only=True)
class Build(TableCommand):
    """Build an index from a corpus and a model, or from vectors.

    An interrupted build continues when repeated. An existing index in the folder is searchable until the new one is
    complete.
    """

    help_groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "input": ("data", "encoder", "vectors", "ids", "model"),
        "columns of a table, chunks of text files": COLUMN_FLAGS,
        "index": ("out", "engine", "stored", "dims", "lexical", "no-lexical"),
        "codes fitted to vectors, without a model": (
            "bytes-per-doc",
            "codewords",
            "metric",
            "learn",
            "serve-ram",
            "recall",
        ),
        "resources": ("ram-budget", "device"),
        "more": ("query-prompt", "document-prompt", "max-length", "titles", "learned-lists", "json"),
    }

    out: Folder
    """Folder for the index."""
    model: OptionalFolder = None
    """Model folder written by `bidr train`. Without one, OPQ codes are fitted to --vectors."""
    encoder: OptionalEncoder = None
    """Pretrained encoder of --data: a folder of sentence-transformers, model2vec or ONNX files, an .onnx file, a
    Hugging Face id, or 'wordllama'. The index is then searched in words. With --vectors: the encoder that made them."""
    data: OptionalData = None
    """Documents: a table (.csv, .tsv, .jsonl, .parquet), a folder of tables or of .txt, .md and .html files, a folder
    in BEIR, MS MARCO or parquet layout, an address such as s3://bucket/docs.parquet, or 'irds:' and an ir_datasets
    id. A table with a column of vectors needs no --vectors."""
    vectors: OptionalSource = None
    """Document vectors, for a model trained on vectors or without a model: .npy, a folder of .npy files, or a table
    with a column of vectors, whose other columns are the documents. With --data in the same order, hits show their
    text."""
    ids: OptionalFile = None
    """Ids of the rows of --vectors: one per line, or .npy; by default row numbers."""
    engine: Engine = "auto"
    """Candidate search: flat (or scan) compares all codes, ivf (lists) those of the nearest lists, graph (hnsw)
    walks a proximity graph. 'auto' chooses by the number of documents, again at each compaction."""
    learned_lists: bool = True
    """With --engine ivf: use the model's trained lists (bidr train --unify.lists), if it has any;
    --no-learned-lists: lists by k-means."""
    stored: Literal["fp16", "int8"] = "fp16"
    """Storage of the vectors: int8 takes half of fp16 and ranks slightly less exactly."""
    dims: int | None = None
    """Store and rank by the first so many dimensions, for Matryoshka models. Codes are made of all dimensions."""
    lexical: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Also build a BM25 index of --data, for hybrid search: bidr search --lexical 100. By default if the model
    recommends hybrid search."""
    no_lexical: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Build no BM25 index although the model recommends hybrid search."""
    bytes_per_doc: int | None = None
    """Without a model: code size in bytes per document; by default chosen on a sample of the vectors, 32 (or the
    largest from 16 on that divides the dimensions) for 20,000 vectors and fewer."""
    codewords: Literal[16, 256] | None = None
    """Without a model: codewords per codebook, 16 (faster to scan; the default) or 256 (more accurate at the same
    size)."""
    metric: Literal["cosine", "ip", "l2"] | None = None
    """Without a model: similarity of the vectors, cosine by default, inner product, or Euclidean distance (scores are
    negative squared distances)."""
    learn: bool = False
    """With --data and --encoder: learn the codes, with passages of the documents as queries, instead of fitting OPQ.
    Takes minutes; more documents are found with few bytes."""
    query_prompt: OptionalText = None
    """With --encoder: prefix of queries, such as 'query: '; by default as the encoder's settings say."""
    document_prompt: OptionalText = None
    """With --encoder: prefix of documents, such as 'passage: '; by default as the encoder's settings say."""
    max_length: OptionalNumber = None
    """With --encoder: maximum number of tokens of a text; by default as the encoder's settings say."""
    titles: Literal["prepend", "ignore"] = "prepend"
    """With --encoder: encode documents with or without their titles."""
    serve_ram: OptionalSize = None
    """With --vectors, without a model: RAM of the searching process, such as 1GiB; the code size with the fewest reads
    from the disk is chosen, what remains caches vectors."""
    recall: Annotated[float | None, tyro.conf.arg(metavar="SHARE", help_behavior_hint="(optional)")] = None
    """With --vectors, without a model: share of the exact top 10 that candidates should contain, to choose the code
    size; by default .98."""
    ram_budget: OptionalSize = None
    """Maximum anonymous memory of the build, such as 1GiB. Refused at the start if it cannot be met."""
    device: str = "auto"
    """'auto' (a GPU if there is one), 'cpu', 'cuda', 'cuda:1'."""

    def run(self) -> CommandResult:
        from bidr.cli.format_description import describe_index
        from bidr.index.cost_model.build_memory import estimate_loaded_bytes
        from bidr.index.live.live_reader import LiveIndex
        from bidr.pipeline.build import build, build_vectors
        from bidr.utils.byte_sizes import parse_bytes
        from bidr.utils.device import pick_device
        from bidr.utils.progress import say

        refuse_other_content(self.out)
        self._check_flags()
        data, query_usage = self._load_data(), "WORDS ..."
        vectors = self._open_vectors(data)
        unused = [name for name in ("serve_ram", "recall") if vectors is None and getattr(self, name) is not None]
        if unused:
            flag = f"--{unused[0].replace('_', '-')}"
            raise ConfigError(f"{flag} given without --vectors, on which a code size is chosen; leave it out")
        how: dict[str, Any] = {
            "engine": self.engine,
            "stored": self.stored,
            "dims": self.dims,
            "ram_budget": self.ram_budget,
        }
        lexical = self.lexical or (False if self.no_lexical else None)
        started = read_clocks()
        with record_steps() as spent:
            if vectors is not None:
                how["plain"] = self._get_codes_config() if self.model is None else None
                how |= {"ids": self.ids, "data": None if vectors is data else data, "lexical": self.lexical}
                how |= {"serve_ram": self.serve_ram, "recall": self.recall}
                if self.encoder is not None:
                    from bidr.pipeline.index_encoder import open_index_encoder

                    how["encoder"] = open_index_encoder(self.encoder, pick_device(self.device), **self._get_prompts())
                build_vectors(vectors, self.model, self.out, **how)
                query_usage = "--query-vectors FILE" if self.encoder is None else query_usage
            elif data is None or (self.model is None and self.encoder is None):
                raise ConfigError(
                    "--data given without --encoder, --model or --vectors, expected one of them: --encoder for a "
                    "pretrained encoder, --model for one that you trained, --vectors for vectors that exist"
                )
            elif self.encoder is not None:
                how |= {"plain": self._get_codes_config(self.encoder), "learn": self.learn, **self._get_prompts()}
                build(data, None, self.out, encoder=self.encoder, lexical=self.lexical, device=self.device, **how)
            else:
                how |= {"learned_lists": self.learned_lists, "lexical": lexical}
                build(data, self.model, self.out, device=self.device, **how)
        took = format_step_times(spent, read_clocks() - started)
        say(took.text)
        save_last_index(self.out)
        next_step = f"next: bidr search --index {self.out} {query_usage}"
        if self.ram_budget is not None and estimate_loaded_bytes(self.out) > parse_bytes("ram_budget", self.ram_budget):
            value = {
                "index": str(self.out),
                **took.value,
                **describe_dropped_fields(data),
            }  # opening it for a description would exceed the budget
            return CommandResult(
                f"{self.out}: built; searching it takes more than {self.ram_budget}\n{next_step}", value
            )
        with LiveIndex.open(self.out) as reader:
            description = describe_index(reader.describe())
        return CommandResult(
            f"{description.text}\n{next_step}", {**description.value, **took.value, **describe_dropped_fields(data)}
        )

    def _load_data(self) -> "Dataset | None":
        """Open the documents: --data, or the table of --vectors."""
        from bidr.data.vector_source import is_table

        has_table = self.vectors is not None and is_table(self.vectors)
        if self.data is None and not has_table:
            self.refuse_table_flags("without a table or text files in --data or --vectors")
            return None
        if self.data is None or self.vectors is None:
            return self.load_table(self.data or str(self.vectors))
        others = tuple(name.replace("-", "_") for name in COLUMN_FLAGS if name != "vector-column")
        return self.load_table(self.data, only=others)

    def _open_vectors(self, data: "Dataset | None") -> "str | Dataset | None":
        """Return the vectors: --vectors, or a table with a column of them."""
        from bidr.data.vector_source import is_table

        if self.vectors is not None and is_table(self.vectors):
            return data if self.data is None else self.load_table(self.vectors, only=("vector_column",))
        if self.vectors is not None or data is None or data.read_vectors is None or self.model is not None:
            return self.vectors
        # With an encoder, a column of vectors is used only if it is named.
        return data if self.encoder is None or self.vector_column is not None else None

    def _get_codes_config(self, encoder: str | None = None) -> "PlainCodes":
        from bidr.models.encoder_source import read_encoder_metric
        from bidr.quantization.opq_config import PlainCodes

        metric = self.metric or ("cosine" if encoder is None else read_encoder_metric(encoder))
        return PlainCodes(self.bytes_per_doc, self.codewords or (256 if self.learn else 16), metric)

    def _get_prompts(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("query_prompt", "document_prompt", "max_length", "titles")}

    def _check_flags(self) -> None:
        """Refuse flags that would be ignored."""
        if self.lexical and self.no_lexical:
            raise ConfigError("--lexical and --no-lexical given, expected one of them; leave the other out")
        if self.data is None and self.vectors is None:
            raise ConfigError("give --data (a corpus to encode), or --vectors with or without --ids (encoded already)")
        if self.data is not None and self.ids is not None:
            raise ConfigError("--ids given with --data, whose documents have ids of their own; leave --ids out")
        if self.encoder is not None and self.model is not None and self.vectors is None:
            raise ConfigError(
                "--encoder and --model given, expected one of them: a trained model has encoders of its own"
            )
        if self.learn and (self.encoder is None or self.vectors is not None):
            raise ConfigError(
                "--learn given without --data and --encoder, whose passages are encoded; for codes of given vectors: "
                "bidr train --vectors"
            )
        prompts = {f"--{name.replace('_', '-')}": value for name, value in self._get_prompts().items()}
        unused = [name for name, value in prompts.items() if value not in (None, "prepend")]
        if unused and self.encoder is None:
            raise ConfigError(f"{unused[0]} given without --encoder, which it is a setting of; leave it out")
        settings: dict[str, Any] = {"--bytes-per-doc": self.bytes_per_doc, "--codewords": self.codewords}
        settings |= {"--metric": self.metric, "--serve-ram": self.serve_ram, "--recall": self.recall}
        rejected_flags = [name for name, value in settings.items() if value is not None]
        if self.model is not None and rejected_flags:
            raise ConfigError(
                f"{', '.join(rejected_flags)} given with --model, expected --model alone: codes and metric are what "
                f"it learned; leave {'it' if len(rejected_flags) == 1 else 'them'} out, or train another model with "
                f"{'it' if len(rejected_flags) == 1 else 'them'}"
            )


def format_step_times(spent: StepTimes, total: StepTime) -> CommandResult:
    """Format wall-clock and CPU time of a build, and its slowest steps."""
    steps = dict(spent)
    steps["other"] = total - sum(spent.values(), StepTime())
    busy_steps = ", ".join(f"{step} {time.cpu:.1f}" for step, time in steps.items() if time.cpu >= 0.05)
    value = {step: {"cpu": round(time.cpu, 3), "clock": round(time.clock, 3)} for step, time in steps.items()}
    text = f"built in {total.clock:.1f} s; CPU time {total.cpu:.1f} s: {busy_steps or 'hardly any'}"
    return CommandResult(text, {"build_seconds": value})


def describe_dropped_fields(data: "Dataset | None") -> dict[str, Any]:
    """Return the JSON keys for metadata that could not become attributes."""
    dropped_fields = data.corpus.dropped_fields if data is not None else None
    return {} if dropped_fields is None else dropped_fields.to_json()


def refuse_other_content(out: Path) -> None:
    """Refuse a folder with other content: a mistyped --out must not fill it."""
    if out.is_file():
        raise ConfigError(f"{out} is a file; give a folder for the index")
    ours = ("CURRENT", ".work", ".work.done")
    if out.is_dir() and any(out.iterdir()) and not any((out / name).exists() for name in ours):
        raise ConfigError(f"{out} holds something else already; choose another folder or empty it")
