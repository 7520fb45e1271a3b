"""The public face: load, train, build, open, evaluate, export, each one call."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from bidr.errors import ModelError
from bidr.evaluation import MEASURES, Report, evaluate_searcher
from bidr.files import storage_errors
from bidr.index.build import build_index
from bidr.index.folder import ModelStamp, open_generation
from bidr.index.reader import IndexReader
from bidr.model.encode import encode_corpus
from bidr.model.folder import Model
from bidr.search import QueryVectors, Searcher
from bidr.text import Dataset, Split, check, load
from bidr.training.config import TrainConfig
from bidr.training.material import tokenise_documents
from bidr.training.recipe import Resume
from bidr.training.recipe import train as train_run
from bidr.training.recipes import with_recipe
from bidr.training.workshop import pick_device

if TYPE_CHECKING:
    from bidr.model.onnx import Exported

__all__ = ["OpenIndex", "TrainConfig", "build", "evaluate", "export_onnx", "load", "open_index", "train"]


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

    `recipe` names settings to begin with (`bidr recipes` lists them), `settings` replace fields of the configuration:
    ``bidr.train(data, "runs/a", recipe="star-opq", bytes_per_doc=8)``. A run that was cut off in the same folder with
    the same settings is continued; resume="never" refuses a folder with a run in it, "must" one without.
    """
    chosen = config or TrainConfig()
    return train_run(data, replace(with_recipe(chosen, recipe) if recipe else chosen, **settings), out, resume)


def build(
    data: Dataset,
    model: Model | Path | str,
    out: Path | str,
    *,
    engine: str = "auto",
    tokens: Path | None = None,
    device: str = "auto",
) -> Path:
    """Encode a corpus and put an index of it in force; a build that was cut off is continued.

    tokens: a folder of the tokenised corpus to share; by default one beside the index, removed in the end.
    """
    model = model if isinstance(model, Model) else Model(model, pick_device(device))
    out = Path(out)
    work = out / ".work"
    check(data, splits=[])
    with storage_errors(out):
        work.mkdir(parents=True, exist_ok=True)
    source, text = tokens or work / "tokens", model.text
    limits: dict[str, Any] = {"titles": text.titles, "max_length": text.document_length}
    documents = tokenise_documents(data, model.sparse, source, **limits)
    codes = encode_corpus(
        model.sparse, documents, work / "codes.npy", codebooks=model.codebooks, label="encode into codes"
    )
    documents = tokenise_documents(data, model.dense, source, **limits)
    vectors = encode_corpus(model.dense, documents, work / "vectors.npy", label="encode into vectors")
    build_index(
        out,
        codebooks=model.codebooks,
        codes=codes,
        vectors=vectors,
        documents=data.corpus,
        model=ModelStamp(model.fingerprint, str(model.folder.resolve())),
        engine=engine,
    )
    shutil.rmtree(work)
    return out


class OpenIndex(Searcher):
    """An index with the model that made it, ready for questions in words. Use it in a `with` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.reader.close()


def open_index(
    folder: Path | str, model: Path | str | None = None, *, candidates: int | None = None, device: str = "cpu"
) -> OpenIndex:
    """Open an index for searching.

    model:  its model folder, if that is no longer where it was when the index was built.
    device: where queries are encoded.
    """
    stamp = open_generation(Path(folder))[1].model
    if model is None and stamp is None:
        return OpenIndex(IndexReader.open(folder))
    where = model if model is not None else stamp.folder if stamp else ""
    try:
        opened = Model(where, pick_device(device))
    except ModelError as error:
        if model is not None:
            raise
        raise ModelError(
            f"{folder} was built with the model in {where}, which cannot be opened there any more ({error}); "
            "say where it is now with --model, or model=... in Python"
        ) from error
    reader = IndexReader.open(folder, expect_model=opened.fingerprint)

    def encode(texts: Sequence[str]) -> QueryVectors:
        return QueryVectors(*opened.encode_queries(list(texts)))

    return OpenIndex(reader, encode, candidates or opened.candidates)


def evaluate(
    searcher: Searcher, split: Split, measures: Sequence[str] = MEASURES, *, candidates: int | None = None
) -> Report:
    """Measure an open index on the judged questions of a split."""
    return evaluate_searcher(searcher, split, measures, candidates=candidates)


def export_onnx(model: Model | Path | str, out: Path | str, *, int8: bool = False) -> "Exported":
    """Write a model's encoders as ONNX files, each compared with the encoder that it came from.

    int8: files with 8-bit weights besides. Needs the extra 'onnx'.
    """
    from bidr.model.onnx import export_onnx as export

    return export(model if isinstance(model, Model) else Model(model), out, int8=int8)
