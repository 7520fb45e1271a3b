"""The public face: load, train, build, open, evaluate, export, each one call."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bidr.data import Dataset, Document, Query, Split, load
from bidr.data.readers.trec import Qrels
from bidr.data.row_ids import label_rows, read_ids, read_judgements
from bidr.data.vector_source import Metric, open_vectors
from bidr.errors import ConfigError
from bidr.export.index_export import export_index
from bidr.index.cost_model.memory_budget import COMPACTING, check_budget, loaded_bytes
from bidr.index.live.snapshot import write_snapshot
from bidr.index.live.writer import LiveWriter
from bidr.index.storage.commit import WAIT
from bidr.models.codes_only_model import FrozenModel
from bidr.models.saved_model import Model
from bidr.pipeline.build import Names, Vectors, build, build_vectors
from bidr.pipeline.document_encoders import no_coder
from bidr.pipeline.open import OpenIndex, open_index, open_writer
from bidr.pipeline.repair import repair_index
from bidr.quantization.opq import PlainCodes
from bidr.search.evaluation import MEASURES, Report, evaluate_searcher
from bidr.search.searcher import Searcher
from bidr.training.codes_only.config import refuse_of_texts
from bidr.training.codes_only.train import train_frozen
from bidr.training.config import TrainConfig
from bidr.training.presets import changes, with_recipe
from bidr.training.run import pick_device
from bidr.training.train import Resume
from bidr.training.train import train as train_run
from bidr.utils.progress import say

if TYPE_CHECKING:
    from bidr.export.onnx import Exported

__all__ = [
    "Dataset",
    "Document",
    "OpenIndex",
    "PlainCodes",
    "Query",
    "TrainConfig",
    "build",
    "build_vectors",
    "compact",
    "evaluate",
    "export_index",
    "export_onnx",
    "load",
    "open_index",
    "open_writer",
    "repair_index",
    "snapshot",
    "train",
    "train_vectors",
]


def train(
    data: Dataset,
    out: Path | str,
    config: TrainConfig | None = None,
    *,
    recipe: str | None = None,
    resume: Resume = "auto",
    **settings: Any,
) -> Model:
    """Learn both representations from a data set's train pairs, choosing on its dev pairs.

    `recipe` names settings to begin with (`bidr recipes` lists them), over which `config` has its way where it differs
    from the defaults; `settings` replace fields of both:
    ``bidr.train(data, "runs/a", recipe="star-opq", bytes_per_doc=8)``. A run that was cut off in the same folder with
    the same settings is continued; resume="never" refuses a folder with a run in it, "must" one without.
    """
    chosen = config or TrainConfig()
    chosen = replace(with_recipe(chosen, recipe) if recipe else chosen, **settings)
    return train_run(data, chosen, out, resume, recipe)


def train_vectors(
    vectors: Vectors,
    query_vectors: Vectors | None,
    out: Path | str,
    config: TrainConfig | None = None,
    *,
    metric: Metric = "cosine",
    qrels: Path | str | Qrels | None = None,
    ids: Names | None = None,
    query_ids: Names | None = None,
    resume: Resume = "auto",
    **settings: Any,
) -> FrozenModel:
    """Learn codes of documents' vectors that stay as they are, and a query adapter; minutes on a CPU.

    vectors:       an array or .npy file, one document a row, from any model; it may be larger than RAM.
    query_vectors: questions, from the same model: not those to measure on. None: documents stand in for them.
    metric:        what ranks the full vectors: "cosine", or "ip" (inner product).
    qrels:         which documents answer which questions, where that is known; without it the ranking of the full
                   vectors is learned alone. It names rows by `ids` and `query_ids`: by default their numbers.
    """
    chosen = replace(config or TrainConfig(), **settings)
    pick_device(chosen.device)
    refuse_of_texts(changes(chosen), chosen.device)
    _check_named(query_vectors, qrels, {"ids": ids, "query_ids": query_ids})
    documents = open_vectors(vectors, "vectors", metric)
    questions = None if query_vectors is None else open_vectors(query_vectors, "query vectors", metric)
    labels = None
    if qrels is not None:
        names = read_ids(ids, len(documents), "documents")
        asked = read_ids(query_ids, len(questions) if questions else 0, "questions")
        given = qrels if isinstance(qrels, dict) else read_judgements(qrels)
        labels = label_rows(given, asked, names, "qrels" if isinstance(qrels, dict) else str(qrels))
        if not labels:
            say("no judgement is above 0: nothing is labelled, the ranking of the full vectors is learned alone")
    return train_frozen(documents, questions, chosen, Path(out), labels, resume)


def _check_named(query_vectors: object, qrels: object, names: dict[str, object]) -> None:
    if qrels is not None and query_vectors is None:
        raise ConfigError("qrels: given without query vectors, which they judge; give --query-vectors too")
    for name, given in names.items():
        if given is not None and qrels is None:
            raise ConfigError(f"{name}: given without qrels, whose rows they name; give --qrels too, or leave them out")


def compact(folder: Path | str, *, ram_budget: int | str | None = None, wait: float = WAIT) -> None:
    """Merge the segments of an index into one, without what is deleted.

    One that was killed is gone on with, if nothing was added or deleted since. Its model is not needed.
    ram_budget: most anonymous memory that it may take (bytes, or "1GiB"); what cannot be kept is refused.
    wait: seconds to wait for another writer.
    """
    # The index is open while it is compacted; what could not even be opened is not.
    check_budget(ram_budget, {"opening": loaded_bytes(Path(folder))}, "compacting this index", base=COMPACTING)
    with LiveWriter(folder, no_coder, wait=wait) as writer:
        writer.compact(ram_budget=ram_budget)


def snapshot(folder: Path | str, out: Path | str, *, copy: bool = False) -> Path:
    """An index as it is now, in a folder of its own, while a writer goes on.

    Files that never change are linked where the file system can: no space, no time, but the same bytes on the disk,
    which one fault damages for both. copy: copy them, for a backup.
    """
    return write_snapshot(Path(folder), Path(out), copy=copy)


def evaluate(
    searcher: Searcher, split: Split, measures: Sequence[str] = MEASURES, *, candidates: int | None = None
) -> Report:
    """Measure an open index on the judged questions of a split."""
    return evaluate_searcher(searcher, split, measures, candidates=candidates)


def export_onnx(model: Model | Path | str, out: Path | str, *, int8: bool = False) -> "Exported":
    """Write a model's encoders as ONNX files, each compared with the encoder that it came from.

    int8: files with 8-bit weights besides. Needs the extra 'onnx'.
    """
    from bidr.export.onnx import export_onnx as export

    return export(model if isinstance(model, Model) else Model(model), out, int8=int8)
