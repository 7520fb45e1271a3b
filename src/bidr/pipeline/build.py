"""Build an index from a corpus and a model, or from vectors."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import numpy.typing as npt

from bidr.data.dataset import Corpus, Dataset, Titles, check_corpus
from bidr.data.types import Document
from bidr.data.vector_ids import IdSource as RowIdSource
from bidr.data.vector_source import Metric, VectorSource, check_dims, is_table
from bidr.errors import ConfigError, ModelError
from bidr.index.builder.build import build_index
from bidr.index.builder.journal import WorkFolder, fingerprint_array, open_work_folder, release_pages
from bidr.index.cost_model.build_memory import check_budget, estimate_build_peaks, watch_memory
from bidr.index.cost_model.memory_split import RECALL, choose_split, is_worth_choosing
from bidr.index.cost_model.sizes import Shape
from bidr.index.engines.engine_choice import choose_engine
from bidr.index.engines.engine_files import write_codebooks
from bidr.index.live.drift import ERRORS_SAMPLED
from bidr.index.storage.manifest import L2_METRIC, METRIC, ErrorStats, ModelReference
from bidr.index.vectors import StorageKind
from bidr.models.codes_only_model import CodesOnlyModel, open_model
from bidr.models.corpus_encoding import encode_corpus
from bidr.models.corpus_tokens import tokenize_corpus
from bidr.models.saved_model import Model
from bidr.pipeline.vector_input import VectorInput, open_vector_input
from bidr.quantization.additive_quantizer import AdditiveQuantizer
from bidr.quantization.code_quality import compute_reconstruction_errors
from bidr.quantization.codebooks import Codebooks
from bidr.quantization.opq_config import PlainCodes, encode_blocks
from bidr.quantization.pq_training import make_too_few_error
from bidr.search.searcher import CANDIDATES
from bidr.utils.array_types import Codes
from bidr.utils.byte_sizes import parse_bytes
from bidr.utils.device import pick_device
from bidr.utils.progress import say

if TYPE_CHECKING:
    from bidr.pipeline.index_encoder import IndexEncoder

Vectors = Any
"""An array, .npy files, a table with a column of vectors, or a VectorSource."""
IdSource = Path | str | Sequence[str]


def build(
    data: Dataset,
    model: Model | Path | str | None = None,
    out: Path | str | None = None,
    *,
    encoder: Path | str | None = None,
    engine: str = "auto",
    stored: StorageKind = "fp16",
    dims: int | None = None,
    lexical: bool | None = None,
    learned_lists: bool = True,
    tokens: Path | None = None,
    device: str = "auto",
    ram_budget: int | str | None = None,
    plain: PlainCodes | None = None,
    learn: bool = False,
    query_prompt: str | None = None,
    document_prompt: str | None = None,
    max_length: int | None = None,
    titles: Titles = "prepend",
) -> Path:
    """Encode a corpus and build an index; an interrupted build is resumed.

    Give a model of `train`, or a pretrained encoder, for whose vectors codes are then fitted.

    Args:
        encoder: a folder of sentence-transformers, model2vec or ONNX files, an .onnx file, a Hugging Face id, or
            "wordllama". The index records it, so that it is searched and extended by texts.
        stored: type of the vectors on disk: "fp16", or "int8", half the size.
        dims: store and rank by the first so many dimensions (Matryoshka); None: by all.
        lexical: also build a BM25 index of the texts; None: if the model recommends fusion with BM25.
        learned_lists: with engine "lists", use the lists of the model if it has any, else k-means.
        tokens: folder of the tokenized corpus, to share it; by default a temporary one beside the index.
        ram_budget: most anonymous memory of the build (bytes, or "1GiB"), with a model without the encoding; a build
            that needs more is refused.
        plain: with an encoder: settings of the codes.
        learn: with an encoder: learn the codes, with passages of the documents as queries, instead of fitting OPQ.
        query_prompt: with an encoder: prefix of queries; None: as its settings say.
        document_prompt: with an encoder: prefix of documents; None: as its settings say.
        max_length: with an encoder: maximum number of tokens of a text; None: as its settings say.
        titles: with an encoder: "prepend" titles to the texts, or "ignore" them.
    """
    if out is None:
        raise ConfigError("out: no folder given for the index, expected one: build(data, encoder=..., out=...)")
    if (model is None) == (encoder is None):
        given_names = "neither a model nor an encoder" if model is None else "a model and an encoder"
        raise ConfigError(f"build: given {given_names}, expected one of them: build(data, model, out) or encoder=...")
    if encoder is not None:
        from bidr.pipeline.encoder_build import EncoderBuildSettings, build_encoded

        settings = EncoderBuildSettings(query_prompt, document_prompt, max_length, titles, learn, plain)
        options: dict[str, Any] = {"engine": engine, "stored": stored, "dims": dims}
        options["lexical"] = titles if lexical else None
        return build_encoded(data, encoder, Path(out), settings, tokens, pick_device(device), ram_budget, options)
    text_settings: dict[str, Any] = {"plain": plain, "learn": learn or None, "query_prompt": query_prompt}
    text_settings |= {"document_prompt": document_prompt, "max_length": max_length}
    unused = [name for name, value in text_settings.items() if value is not None]
    if unused:
        raise ConfigError(f"{unused[0]}: goes with an encoder, but a model was given, which has its own; leave it out")
    assert model is not None
    model = model if isinstance(model, Model) else Model(model, pick_device(device))
    lexical = model.search.lexical > 0 if lexical is None else lexical
    options = {"engine": engine, "stored": stored, "lexical": model.text.titles if lexical else None}
    options |= {"dims": check_dims(dims, model.dense.dim), "unit": model.dense.normalized}
    out = Path(out)
    check_corpus(data, out)
    data.corpus.report_dropped_fields()
    shape = get_shape(data.corpus.count(), model.dense.dim, model.codebooks.books, model.codebooks.bits, engine, stored)
    if learned_lists and model.lists is not None and shape.engine == "lists":
        options["lists"] = model.lists
        shape = replace(shape, learned=len(model.lists.means))
    peaks = estimate_build_peaks(
        shape, fits_codebooks=False, has_ids=True, has_postings=lexical, has_attributes=has_attributes(data)
    )
    budget = check_budget(ram_budget, peaks)
    with watch_memory(budget), open_work_folder(out) as work:
        codes, vectors = _encode_corpus(data, model, work.folder, tokens or work.folder / "tokens")
        options["model"] = _make_stamp(model)
        named = collect_ids(None, data)
        _write_index(work, out, vectors, codebooks=model.codebooks, codes=codes, **named, **options)
    return out


def _encode_corpus(data: Dataset, model: Model, folder: Path, tokens: Path) -> tuple[Codes, npt.NDArray[Any]]:
    """Encode all documents; return codes and vectors on disk."""
    limits: dict[str, Any] = {"titles": model.text.titles, "max_length": model.text.document_length}
    documents = tokenize_corpus(data, model.sparse, tokens, **limits)
    codes = encode_corpus(
        model.sparse, documents, folder / "codes.npy", codebooks=model.codebooks, label="encode into codes"
    )
    documents = tokenize_corpus(data, model.dense, tokens, **limits)
    return codes, encode_corpus(model.dense, documents, folder / "vectors.npy", label="encode into vectors")


def build_vectors(
    vectors: Vectors,
    model: CodesOnlyModel | Path | str | None = None,
    out: Path | str | None = None,
    *,
    ids: IdSource | None = None,
    metadata: Any = None,
    metric: Metric | None = None,
    data: Dataset | None = None,
    engine: str = "auto",
    stored: StorageKind = "fp16",
    dims: int | None = None,
    plain: PlainCodes | None = None,
    lexical: bool = False,
    ram_budget: int | str | None = None,
    encoder: "IndexEncoder | Path | str | None" = None,
    serve_ram: int | str | None = None,
    recall: float | None = None,
) -> Path:
    """Encode vectors and build an index; an interrupted build with the same arguments is resumed.

    Args:
        vectors: an array, .npy files (a path, folder or pattern), or a table with a column of vectors: a data frame, an
            Arrow table, or a file that `load` reads. Its other columns are the ids, texts and attributes. Or a
            VectorSource, whose array may compute the rows that are read from it.
        model: a model of `train_vectors`; None: OPQ codes are fitted as `plain` says.
        out: the index folder.
        ids: one for each row; by default row numbers.
        metadata: a data frame, a dict of columns or another table of attributes (and ids and texts), in row order.
        metric: similarity of the vectors, without a model: "cosine" (the default; they are normalized), "ip" (inner
            product) or "l2" (Euclidean; scores are negative squared distances).
        data: a dataset whose corpus has the ids and texts of the documents in row order.
        stored: type of the vectors on disk: "fp16", or "int8", half the size.
        dims: store and rank by the first so many dimensions (Matryoshka), encode all of them; None: all.
        plain: settings of the OPQ codes; without a code size, it is chosen on a sample of the vectors.
        lexical: also build a BM25 index of the texts of `data`.
        ram_budget: most anonymous memory of the build (bytes, or "1GiB"); a build that needs more is refused.
        encoder: the encoder that made the vectors, to search and add texts (see `build`; with other prompts than its
            own: see `open_index_encoder`). Some texts of `data` are encoded again to check it.
        serve_ram: RAM of the searching process, to choose a code size that leaves the fewest reads.
        recall: share of the exact top 10 that candidates should contain, to choose a code size; .98 by default.
    """
    _check_choice(model, plain, serve_ram, recall)
    if lexical and data is None and metadata is None and not is_table(vectors):
        raise ConfigError("lexical: no texts given, expected data (--data) with a corpus; leave lexical out")
    if model is not None and plain is not None:
        raise ConfigError("plain: given with a model, expected one of them: its codes are learned; leave plain out")
    if metric is not None and (model is not None or plain is not None):
        raise ConfigError("metric: given with a model or plain, which have one of their own; leave metric out")
    if out is None:
        raise ConfigError("out: not given, expected a folder for the index: build_vectors(vectors, out='INDEX')")
    options: dict[str, Any] = {"engine": engine, "stored": stored, "lexical": "prepend" if lexical else None}
    options["dims"] = dims
    out = Path(out)
    if model is None:
        plain = plain or PlainCodes(metric=metric or "cosine")
        if plain.metric not in get_args(Metric):
            raise ConfigError(f"metric: given {plain.metric!r}, expected one of {', '.join(get_args(Metric))}")
        choice = {"ram": None if serve_ram is None else parse_bytes("serve_ram", str(serve_ram)), "recall": recall}
        vector_input = open_vector_input(vectors, ids, metadata, data, plain.metric, out)
        options |= _check_encoder(encoder, vector_input)
        return _build_plain(vector_input, out, plain, ram_budget, options, choice)
    model = model if isinstance(model, CodesOnlyModel) else _open_codes_only_model(model)
    vector_input = open_vector_input(vectors, ids, metadata, data, model.metric, out)
    rows, names, data = vector_input
    model.check_source(rows)
    options |= _check_encoder(encoder, vector_input)
    books, bits = model.codebooks.books, model.codebooks.bits
    dims = options["dims"] = check_dims(dims, rows.dim)
    shape, named = get_shape(*rows.shape, books, bits, engine, stored), collect_ids(names, data)
    peaks = estimate_build_peaks(
        shape, fits_codebooks=False, has_ids=bool(named), has_postings=lexical, has_attributes=has_attributes(data)
    )
    budget = check_budget(ram_budget, peaks)
    options |= {"model": _make_stamp(model), "unit": model.metric == "cosine"}
    with watch_memory(budget), open_work_folder(out) as work:
        codes = _encode_rows(work, rows, model.fingerprint, books, partial(model.additive.encode_blocks, rows))
        options["code_error"] = _measure_code_error(dims, model.additive, rows, codes)
        _write_index(work, out, rows, codebooks=model.codebooks, codes=codes, **named, **options)
    report_zero_rows(rows)
    return out


def _check_encoder(encoder: "IndexEncoder | Path | str | None", vector_input: VectorInput) -> dict[str, Any]:
    """Return the encoder of the vectors as an argument of `build_index`; ModelError if it did not make them."""
    if encoder is None:
        return {}
    from bidr.pipeline.index_encoder import check_corpus_encoder

    return {"encoder": check_corpus_encoder(encoder, vector_input.rows, vector_input.data).reference}


def _build_plain(
    vector_input: VectorInput,
    out: Path,
    plain: PlainCodes,
    ram_budget: int | str | None,
    options: dict[str, Any],
    choice: dict[str, Any],
) -> Path:
    rows, names, data = vector_input
    if len(rows) < plain.codewords:
        raise make_too_few_error(len(rows), plain.codewords)
    rows.refuse_all_zeros()
    options["dims"] = check_dims(options["dims"], rows.dim)
    plain = _choose_code_size(rows, plain, options, **choice)
    shape = get_shape(
        *rows.shape, plain.count_books(rows.dim), plain.codewords.bit_length() - 1, options["engine"], options["stored"]
    )
    named = collect_ids(names, data)
    lexical = bool(options["lexical"])
    peaks = estimate_build_peaks(shape, has_ids=bool(named), has_postings=lexical, has_attributes=has_attributes(data))
    budget = check_budget(ram_budget, peaks)
    with watch_memory(budget), open_work_folder(out) as work:
        fit_and_write(work, out, rows, lambda: plain.fit(rows), plain._asdict(), {**options, **named})
    report_zero_rows(rows)
    return out


def fit_and_write(
    work: WorkFolder,
    out: Path | str,
    rows: VectorSource,
    fit: Callable[[], Codebooks],
    settings: Any,
    options: dict[str, Any],
) -> None:
    """Fit codebooks, encode all rows and write the index. `settings`: what `fit` depends on besides the rows."""
    name = "codebooks.safetensors"
    fitted = work.run_step(
        name, [fingerprint_array(rows), settings], lambda step: write_codebooks(step.open_file, fit())
    )
    release_pages(rows)
    codebooks = Codebooks.load(work.folder / name)
    codes = _encode_rows(work, rows, fitted[name].xxh3, codebooks.books, partial(encode_blocks, codebooks, rows))
    options |= {"unit": rows.metric == "cosine", "metric": L2_METRIC if rows.metric == "l2" else METRIC}
    options["code_error"] = _measure_code_error(options["dims"], codebooks, rows, codes)
    _write_index(work, out, rows, codebooks=codebooks, codes=codes, **options)


def _check_choice(
    model: CodesOnlyModel | Path | str | None,
    plain: PlainCodes | None,
    serve_ram: int | str | None,
    recall: float | None,
) -> None:
    """Refuse settings of a choice that there is none of."""
    settings = [name for name, value in (("serve_ram", serve_ram), ("recall", recall)) if value is not None]
    fixed = "a model" if model is not None else "bytes_per_doc" if plain and plain.bytes_per_doc else ""
    if settings and fixed:
        raise ConfigError(f"{', '.join(settings)} given with {fixed}, which fixes the code size; leave one of them out")
    if recall is not None and not 0 < recall < 1:
        raise ConfigError(f"recall: given {recall:g}, expected a share above 0 and below 1, such as .98")


def _choose_code_size(
    rows: VectorSource, plain: PlainCodes, options: dict[str, Any], ram: int | None, recall: float | None
) -> PlainCodes:
    """Return the settings with a code size: the given one, or one chosen on a sample of the vectors."""
    plain.count_books(rows.dim)  # refuses invalid settings before anything is measured
    if plain.bytes_per_doc is not None or not (recall is not None or is_worth_choosing(len(rows), ram)):
        return plain
    layout = {name: options[name] for name in ("engine", "stored", "dims")}
    choice = choose_split(rows, plain, ram=ram, recall=recall or RECALL, **layout)
    release_pages(rows)
    candidates = choice.chosen.candidates
    say(choice.explain() + (f"; search with --candidates {candidates}" if candidates > CANDIDATES else ""))
    return plain._replace(bytes_per_doc=choice.chosen.code_bytes)


def report_zero_rows(rows: VectorSource) -> None:
    """Report vectors without a direction: the cosine of each with any query counts as 0."""
    if count := rows.count_zero_rows():
        say(
            f"{rows.name}: {count:,} of {len(rows):,} vectors are all zeros; under cosine they score 0 for every "
            "query: leave them out, or encode them again"
        )


def get_shape(count: int, dim: int, books: int, bits: int, engine: str, stored: StorageKind) -> Shape:
    return Shape(count, dim, choose_engine(engine, count, bits), bits, (books * bits + 7) // 8, stored)


def _make_stamp(model: Model | CodesOnlyModel) -> ModelReference:
    return ModelReference(model.fingerprint, str(model.folder.resolve()))


def has_attributes(data: Dataset | None) -> bool:
    """Return whether documents may have attributes."""
    return data is not None and data.corpus.has_attributes is not False


class _ReportingCorpus:
    """A corpus that reports dropped fields after each pass."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus

    def __iter__(self) -> Iterator[Document]:
        yield from self.corpus
        self.corpus.report_dropped_fields()


def collect_ids(names: RowIdSource | None, data: Dataset | None) -> dict[str, Any]:
    """Return the ids or documents as arguments of `build_index`, with their fingerprint."""
    if data is not None:
        return {"documents": _ReportingCorpus(data.corpus), "documents_stamp": data.corpus.fingerprint()}
    if names is None:
        return {}
    return {"ids": names, "documents_stamp": names.fingerprint}


def _encode_rows(
    work: WorkFolder, rows: VectorSource, coder: str, books: int, blocks: Callable[[int], Iterator[Codes]]
) -> Codes:
    """Encode all rows; return the codes on disk. `coder`: fingerprint of the encoder."""

    def iter_blocks(first: int) -> Iterator[Codes]:
        for block in blocks(first):
            yield block
            release_pages(rows)

    shape = (len(rows), books)
    return work.build_array(
        "coded.npy", [fingerprint_array(rows), coder], np.uint8, shape, iter_blocks, "encode into codes"
    )


def _measure_code_error(
    dims: int | None, coder: Codebooks | AdditiveQuantizer, rows: VectorSource, codes: Codes
) -> ErrorStats | None:
    """Return the quantization error of a sample of rows, if truncated vectors cannot tell it later."""
    if dims is None:
        return None
    sample = np.unique(np.linspace(0, len(rows) - 1, ERRORS_SAMPLED).astype(np.int64))
    return ErrorStats.from_errors(compute_reconstruction_errors(coder, rows.gather(sample), codes[sample]))


def _write_index(work: WorkFolder, out: Path | str, rows: Any, **options: Any) -> None:
    build_index(out, vectors=rows, work=work.open_subfolder("index"), **options)


def _open_codes_only_model(folder: CodesOnlyModel | Path | str) -> CodesOnlyModel:
    model = folder if isinstance(folder, CodesOnlyModel) else open_model(folder)
    if isinstance(model, CodesOnlyModel):
        return model
    raise ModelError(f"{folder} holds a model with text encoders; give it the corpus (--data), not vectors")
