"""From a corpus and a model, or from vectors, to an index: encode, then write."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from bidr.codes.plain import PlainCodes, encode_all
from bidr.codes.vectors import open_vectors
from bidr.errors import ConfigError, ModelError
from bidr.files import storage_errors
from bidr.index.build import build_index
from bidr.index.folder import ModelStamp
from bidr.index.vectors import Kind
from bidr.model.encode import encode_corpus
from bidr.model.folder import Model
from bidr.model.frozen import FrozenModel, open_model
from bidr.progress import bar
from bidr.text import Dataset, check
from bidr.text.labels import read_ids
from bidr.training.material import tokenise_documents
from bidr.training.workshop import pick_device

Vectors = Path | str | npt.NDArray[Any]
Names = Path | str | Sequence[str]


def build(
    data: Dataset,
    model: Model | Path | str,
    out: Path | str,
    *,
    engine: str = "auto",
    stored: Kind = "fp16",
    lexical: bool = False,
    tokens: Path | None = None,
    device: str = "auto",
) -> Path:
    """Encode a corpus and put an index of it in force; a build that was cut off is continued.

    stored: how vectors lie on disk: "fp16", or "int8", which is half of it.
    lexical: also index the words of the texts, for searches that join what words find (`Searcher`).
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
        stored=stored,
        lexical=text.titles if lexical else None,
    )
    shutil.rmtree(work)
    return out


def build_vectors(
    vectors: Vectors,
    model: FrozenModel | Path | str | None,
    out: Path | str,
    *,
    ids: Names | None = None,
    data: Dataset | None = None,
    engine: str = "auto",
    stored: Kind = "fp16",
    plain: PlainCodes | None = None,
    lexical: bool = False,
) -> Path:
    """Code documents' vectors and put an index of them in force.

    model:  of `train_vectors`; None: nothing is learned, codes are fitted (OPQ) as `plain` says.
    ids:    one for every row; by default row numbers.
    data:   a data set whose corpus has the documents' ids and texts, in the order of the rows.
    stored: how vectors lie on disk: "fp16", or "int8", which is half of it.
    lexical: also index the words of the texts of `data`.
    """
    if lexical and data is None:
        raise ConfigError("lexical: no texts given, expected data (--data) with a corpus; leave lexical out")
    options: dict[str, Any] = {"engine": engine, "stored": stored, "lexical": "prepend" if lexical else None}
    if model is None:
        return _build_plain(vectors, out, plain or PlainCodes(), ids, data, **options)
    model = model if isinstance(model, FrozenModel) else _frozen(model)
    rows: Any = model.documents(vectors)
    names = None if ids is None else read_ids(ids, len(rows), "documents")
    with bar("encode into codes", len(rows), "documents") as advance:
        codes = model.additive.encode(rows, advance=advance)
    build_index(
        out,
        codebooks=model.codebooks,
        codes=codes,
        vectors=rows,
        documents=None if data is None else data.corpus,
        ids=names,
        model=ModelStamp(model.fingerprint, str(model.folder.resolve())),
        **options,
    )
    return Path(out)


def _build_plain(
    vectors: Vectors, out: Path | str, plain: PlainCodes, ids: Names | None, data: Dataset | None, **options: Any
) -> Path:
    rows: Any = open_vectors(vectors, "vectors", plain.metric)
    names = None if ids is None else read_ids(ids, len(rows), "documents")
    codebooks = plain.fit(rows)
    with bar("encode into codes", len(rows), "documents") as advance:
        codes = encode_all(codebooks, rows, advance)
    corpus = None if data is None else data.corpus
    options |= {"documents": corpus, "ids": names, "unit": plain.metric == "cosine"}
    build_index(out, codebooks=codebooks, codes=codes, vectors=rows, **options)
    return Path(out)


def _frozen(folder: Path | str) -> FrozenModel:
    model = open_model(folder)
    if isinstance(model, FrozenModel):
        return model
    raise ModelError(f"{folder} holds a model with text encoders; give it the corpus (--data), not vectors")
