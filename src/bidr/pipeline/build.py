"""From a corpus and a model, or from vectors, to an index: encode, then write."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bidr.data.dataset import Corpus, Dataset, check_corpus
from bidr.data.row_ids import open_id_source
from bidr.data.types import Document
from bidr.data.vector_source import VectorSource, check_dims, open_vectors
from bidr.errors import ConfigError, ModelError
from bidr.index.builder.build import build_index
from bidr.index.builder.journal import Step, WorkFolder, fingerprint_array, open_work_folder, release_pages
from bidr.index.cost_model.memory_budget import check_budget, estimate_build_peaks, watch_memory
from bidr.index.cost_model.sizes import Shape
from bidr.index.engines.engine_files import write_codebooks
from bidr.index.engines.factory import choose_engine
from bidr.index.live.drift import ERRORS_SAMPLED
from bidr.index.storage.manifest import ModelStamp, Spread
from bidr.index.vectors import StorageKind
from bidr.models.codes_only_model import CodesOnlyModel, open_model
from bidr.models.corpus_encoding import encode_corpus
from bidr.models.corpus_tokens import tokenize_corpus
from bidr.models.saved_model import Model
from bidr.quantization.additive_quantizer import AdditiveQuantizer
from bidr.quantization.codebooks import Codebooks
from bidr.quantization.metrics import compute_reconstruction_errors
from bidr.quantization.opq import PlainCodes, encode_blocks
from bidr.quantization.pq_training import make_too_few_error
from bidr.utils.array_types import Codes
from bidr.utils.device import pick_device
from bidr.utils.progress import say

Vectors = Path | str | npt.NDArray[Any]
Names = Path | str | Sequence[str]


def build(
    data: Dataset,
    model: Model | Path | str,
    out: Path | str,
    *,
    engine: str = "auto",
    stored: StorageKind = "fp16",
    dims: int | None = None,
    lexical: bool = False,
    learned_lists: bool = True,
    tokens: Path | None = None,
    device: str = "auto",
    ram_budget: int | str | None = None,
) -> Path:
    """Encode a corpus and put an index of it in force; a build that was cut off is continued.

    stored: how vectors lie on disk: "fp16", or "int8", which is half of it.
    dims: store and rank by the first so many numbers of the vectors, for models that were trained so; None: by all.
    lexical: also index the words of the texts, for searches that join what words find (`Searcher`).
    learned_lists: with engine "lists", take those that the model learned, where it has any; else k-means finds them.
    tokens: a folder of the tokenised corpus to share; by default one beside the index, removed in the end.
    ram_budget: most anonymous memory that making the index may take (bytes, or "1GiB"); what cannot be kept is refused.
        Encoding the texts is not in it: that takes what the model takes.
    """
    model = model if isinstance(model, Model) else Model(model, pick_device(device))
    options: dict[str, Any] = {"engine": engine, "stored": stored, "lexical": model.text.titles if lexical else None}
    options |= {"dims": check_dims(dims, model.dense.dim), "unit": model.dense.normalized}
    out = Path(out)
    check_corpus(data, out)
    data.corpus.report_dropped_fields()
    shape = _shape(data.corpus.count(), model.dense.dim, model.codebooks.books, model.codebooks.bits, engine, stored)
    if learned_lists and model.lists is not None and shape.engine == "lists":
        options["lists"] = model.lists
        shape = replace(shape, learned=len(model.lists.means))
    peaks = estimate_build_peaks(
        shape, fits_codebooks=False, has_ids=True, has_postings=lexical, has_attributes=_described(data)
    )
    budget = check_budget(ram_budget, peaks)
    with watch_memory(budget), open_work_folder(out) as work:
        codes, vectors = _encoded(data, model, work.folder, tokens or work.folder / "tokens")
        options["model"] = _stamp(model)
        named = _named(None, data, len(codes), out)
        _finish(work, out, vectors, codebooks=model.codebooks, codes=codes, **named, **options)
    return out


def _encoded(data: Dataset, model: Model, folder: Path, tokens: Path) -> tuple[Codes, npt.NDArray[Any]]:
    """Codes and vectors of all documents, on disk."""
    limits: dict[str, Any] = {"titles": model.text.titles, "max_length": model.text.document_length}
    documents = tokenize_corpus(data, model.sparse, tokens, **limits)
    codes = encode_corpus(
        model.sparse, documents, folder / "codes.npy", codebooks=model.codebooks, label="encode into codes"
    )
    documents = tokenize_corpus(data, model.dense, tokens, **limits)
    return codes, encode_corpus(model.dense, documents, folder / "vectors.npy", label="encode into vectors")


def build_vectors(
    vectors: Vectors,
    model: CodesOnlyModel | Path | str | None,
    out: Path | str,
    *,
    ids: Names | None = None,
    data: Dataset | None = None,
    engine: str = "auto",
    stored: StorageKind = "fp16",
    dims: int | None = None,
    plain: PlainCodes | None = None,
    lexical: bool = False,
    ram_budget: int | str | None = None,
) -> Path:
    """Code documents' vectors and put an index of them in force.

    model:  of `train_vectors`; None: nothing is learned, codes are fitted (OPQ) as `plain` says.
    ids:    one for every row; by default row numbers.
    data:   a data set whose corpus has the documents' ids and texts, in the order of the rows.
    stored: how vectors lie on disk: "fp16", or "int8", which is half of it.
    dims:   store and rank by the first so many numbers of each vector (Matryoshka), code all of them; None: all.
    lexical: also index the words of the texts of `data`.
    ram_budget: most anonymous memory that the build may take (bytes, or "1GiB"); what cannot be kept is refused.

    A build that was cut off is continued, if vectors, ids and settings are the same.
    """
    if lexical and data is None:
        raise ConfigError("lexical: no texts given, expected data (--data) with a corpus; leave lexical out")
    if model is not None and plain is not None:
        raise ConfigError("plain: given with a model, expected one of them: its codes are learned; leave plain out")
    options: dict[str, Any] = {"engine": engine, "stored": stored, "lexical": "prepend" if lexical else None}
    options["dims"] = dims
    if model is None:
        return _build_plain(vectors, out, plain or PlainCodes(), ids, data, ram_budget, options)
    model = model if isinstance(model, CodesOnlyModel) else _frozen(model)
    rows, books, bits = model.documents(vectors), model.codebooks.books, model.codebooks.bits
    dims = options["dims"] = check_dims(dims, rows.dim)
    shape, named = _shape(*rows.shape, books, bits, engine, stored), _named(ids, data, len(rows), Path(out))
    peaks = estimate_build_peaks(
        shape, fits_codebooks=False, has_ids=bool(named), has_postings=lexical, has_attributes=_described(data)
    )
    budget = check_budget(ram_budget, peaks)
    options |= {"model": _stamp(model), "unit": model.metric == "cosine"}
    with watch_memory(budget), open_work_folder(Path(out)) as work:
        codes = _coded(work, rows, model.fingerprint, books, partial(model.additive.encode_blocks, rows))
        options["code_error"] = _code_error(dims, model.additive, rows, codes)
        _finish(work, out, rows, codebooks=model.codebooks, codes=codes, **named, **options)
    return Path(out)


def _build_plain(
    vectors: Vectors,
    out: Path | str,
    plain: PlainCodes,
    ids: Names | None,
    data: Dataset | None,
    ram_budget: int | str | None,
    options: dict[str, Any],
) -> Path:
    rows = open_vectors(vectors, "vectors", plain.metric)
    if len(rows) < plain.codewords:
        raise make_too_few_error(len(rows), plain.codewords)
    options["dims"] = check_dims(options["dims"], rows.dim)
    shape = _shape(
        *rows.shape, plain.count_books(rows.dim), plain.codewords.bit_length() - 1, options["engine"], options["stored"]
    )
    named = _named(ids, data, len(rows), Path(out))
    lexical = bool(options["lexical"])
    peaks = estimate_build_peaks(shape, has_ids=bool(named), has_postings=lexical, has_attributes=_described(data))
    budget = check_budget(ram_budget, peaks)
    with watch_memory(budget), open_work_folder(Path(out)) as work:
        name = "codebooks.safetensors"

        def fit(step: Step) -> None:
            say("fitting codebooks")
            write_codebooks(step.open_file, plain.fit(rows))

        fitted = work.run_step(name, [fingerprint_array(rows), plain._asdict()], fit)
        release_pages(rows)
        codebooks = Codebooks.load(work.folder / name)
        codes = _coded(work, rows, fitted[name].xxh3, codebooks.books, partial(encode_blocks, codebooks, rows))
        options |= {**named, "unit": plain.metric == "cosine"}
        options["code_error"] = _code_error(options["dims"], codebooks, rows, codes)
        _finish(work, out, rows, codebooks=codebooks, codes=codes, **options)
    return Path(out)


def _shape(count: int, dim: int, books: int, bits: int, engine: str, stored: StorageKind) -> Shape:
    return Shape(count, dim, choose_engine(engine, count, bits), bits, (books * bits + 7) // 8, stored)


def _stamp(model: Model | CodesOnlyModel) -> ModelStamp:
    return ModelStamp(model.fingerprint, str(model.folder.resolve()))


def _described(data: Dataset | None) -> bool:
    """Whether documents may have attributes."""
    return data is not None and data.corpus.has_attributes is not False


class _Telling:
    """The documents of a corpus, of which it is said in the end what was left out."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus

    def __iter__(self) -> Iterator[Document]:
        yield from self.corpus
        self.corpus.report_dropped_fields()


def _named(ids: Names | None, data: Dataset | None, count: int, out: Path) -> dict[str, Any]:
    """What documents are called, and what tells these names from others."""
    if data is not None:
        return {"documents": _Telling(data.corpus), "documents_stamp": data.corpus.fingerprint()}
    if ids is None:
        return {}
    names = open_id_source(ids, count, "documents", out)
    return {"ids": names, "documents_stamp": names.fingerprint}


def _coded(
    work: WorkFolder, rows: VectorSource, coder: str, books: int, blocks: Callable[[int], Iterator[Codes]]
) -> Codes:
    """The codes of all rows, on disk; `coder` tells what makes them from others."""

    def forgetting(first: int) -> Iterator[Codes]:
        for block in blocks(first):
            yield block
            release_pages(rows)

    shape = (len(rows), books)
    return work.build_array(
        "coded.npy", [fingerprint_array(rows), coder], np.uint8, shape, forgetting, "encode into codes"
    )


def _code_error(
    dims: int | None, coder: Codebooks | AdditiveQuantizer, rows: VectorSource, codes: Codes
) -> Spread | None:
    """What the codes of some rows miss, where the index will not hold the vectors that tell it."""
    if dims is None:
        return None
    some = np.unique(np.linspace(0, len(rows) - 1, ERRORS_SAMPLED).astype(np.int64))
    return Spread.of(compute_reconstruction_errors(coder, rows.gather(some), codes[some]))


def _finish(work: WorkFolder, out: Path | str, rows: Any, **given: Any) -> None:
    build_index(out, vectors=rows, work=work.open_subfolder("index"), **given)


def _frozen(folder: Path | str) -> CodesOnlyModel:
    model = open_model(folder)
    if isinstance(model, CodesOnlyModel):
        return model
    raise ModelError(f"{folder} holds a model with text encoders; give it the corpus (--data), not vectors")
