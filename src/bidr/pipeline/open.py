"""Open an index with its model, for searching or for writing."""

import time
from collections.abc import Collection, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Self, Unpack

import numpy as np
import numpy.typing as npt

from bidr.data.types import Document, DocumentPage, validate_ids
from bidr.data.vector_source import normalize_l2, open_query_vectors
from bidr.errors import ConfigError, DataError, IndexFolderError, ModelError
from bidr.index.filters.filter_expression import parse_filter
from bidr.index.live.document_encoder import EncodedBatch
from bidr.index.live.document_list import list_documents
from bidr.index.live.lexical_search import has_lexical_index
from bidr.index.live.live_reader import LiveIndex
from bidr.index.live.view import LiveView
from bidr.index.live.writer import LiveWriter
from bidr.index.reader import IndexReader
from bidr.index.storage.live_state import read_model_reference
from bidr.index.vectors.vector_memory import CacheSize, parse_cache_size
from bidr.models.codes_only_model import CodesOnlyModel, open_model
from bidr.models.saved_model import Model, SearchSettings
from bidr.pipeline.build import Vectors
from bidr.pipeline.document_encoders import make_codebook_encoder, make_codes_only_encoder, make_model_encoder
from bidr.pipeline.index_encoder import add_text_encoder, attach_encoder
from bidr.search.candidate_suggestion import (
    MAX_QUERIES,
    CandidateSuggestion,
    QuerySample,
    sample_documents,
    suggest_candidates,
)
from bidr.search.cross_encoder import CrossEncoder, rerank_result
from bidr.search.searcher import CANDIDATES, QueryEncoder, Searcher, check_integer, make_query_vectors
from bidr.search.types import QueryVectors, RankedBatch, SearchOptions, SearchResult
from bidr.utils.array_types import Floats, Rows
from bidr.utils.deprecation import DeprecatedAlias
from bidr.utils.device import pick_device
from bidr.utils.reproducible_matmul import matmul_transposed

SCROLL_DOCUMENTS = 1_000
"""Documents of a page of `OpenIndex.scroll`."""


class OpenIndex(Searcher):
    """An index with its model, searched by text or vectors. Use it as a context manager."""

    model: Model | CodesOnlyModel | None = None
    reranker: CrossEncoder | None = None
    is_lexical_optional = False
    """Whether BM25 candidates are the model's recommendation: searches by vectors without words have none."""

    def encode(self, texts: Sequence[str]) -> tuple[QueryVectors, float]:
        """Encode query texts; refuse if the index has no model."""
        if self.encoder is None:
            raise ConfigError(
                f"{self.reader.folder} was made from vectors without an encoder: a query text cannot be encoded; give "
                "the encoder that made them (--encoder, or encoder=... in Python), or give its vector "
                "(--query-vectors, or search_vectors); for hybrid search pass both the vector and the text "
                "(--lexical, words=...)"
            )
        return super().encode(texts)

    def search_vectors(
        self,
        queries: QueryVectors | Path | npt.ArrayLike,
        k: int = 10,
        candidates: int | None = None,
        *,
        words: Sequence[str] | None = None,
        **options: Any,
    ) -> RankedBatch:
        """Return the best k documents for each query as arrays; options: see `SearchOptions`.

        Args:
            queries: query vectors, also from another model.
            k: number of documents.
            candidates: number of candidates to read.
            words: texts of the queries for BM25.
        """
        encoded = queries if isinstance(queries, QueryVectors) else self.query_vectors(queries)
        if words is None and self.is_lexical_optional and options.get("lexical") is None:
            options["lexical"] = 0
        return super().search_vectors(encoded, k, candidates, words=words, **options)

    def more_like(
        self, ids: str | Sequence[str], k: int = 10, candidates: int | None = None, **options: Unpack[SearchOptions]
    ) -> SearchResult:
        """Return the documents most like one document, or like the mean of several, without these.

        Args:
            ids: ids of documents of the index.
            k: number of documents.
            candidates: number of candidates to read.
            **options: see `SearchOptions`.
        """
        view, names = self.view, [ids] if isinstance(ids, str) else validate_ids(ids)
        rows = view.find_rows(names)
        missing = [name for name in names if name not in rows]
        if missing or not names:
            raise DataError(f"ids: given {missing or names}, expected ids of documents of the index; give one or more")
        queries = read_query_vectors(view, np.fromiter(rows.values(), dtype=np.int64), self.model)
        check_integer("k", k)
        options.setdefault("lexical", 0)
        batch = Searcher.search_vectors(self, queries, k + len(rows), candidates, **options)
        result = self.load_results(batch)[0]
        hits = [hit for hit in result if hit.id not in rows][:k]
        return SearchResult([hit._replace(rank=rank) for rank, hit in enumerate(hits, 1)], result.timings)

    def search_reranked(
        self,
        query: str,
        k: int = 10,
        candidates: int | None = None,
        *,
        rerank: int = 50,
        seconds: float | None = None,
        **options: Unpack[SearchOptions],
    ) -> SearchResult:
        """Return the best k documents for a query text, the best `rerank` hits ordered by a cross-encoder.

        Args:
            query: the text.
            k: number of documents.
            candidates: number of candidates to read.
            rerank: number of hits that the cross-encoder reads.
            seconds: time for the cross-encoder; hits that it does not reach follow in the order of their vectors.
            **options: see `SearchOptions`.
        """
        if self.reranker is None:
            raise ConfigError("rerank: the index was opened without a cross-encoder; give its folder (reranker=...)")
        check_integer("k", k)
        check_integer("rerank", rerank)
        offset = options.pop("offset", 0)
        check_integer("offset", offset, minimum=0)
        result = self.search(query, max(rerank, offset + k), candidates, **options)
        deadline = np.inf if seconds is None else time.monotonic() + seconds
        hits = rerank_result(self.reranker, query, result, rerank, deadline)[offset : offset + k]
        return SearchResult([hit._replace(rank=rank) for rank, hit in enumerate(hits, 1)], result.timings)

    def suggest_candidates(
        self, recall: float = 0.95, k: int = 10, queries: QueryVectors | Path | npt.ArrayLike | None = None
    ) -> CandidateSuggestion:
        """Return the fewest candidates with which this share of the exact top k is found, measured on the index.

        Reads all vectors once. Up to MAX_QUERIES queries are measured; the more, the nearer is the recall of others.

        Args:
            recall: share of the exact top k, such as .95.
            k: number of hits.
            queries: query vectors, such as those of a log; None: documents of the index take their place, which
                resemble each other more than queries resemble documents.
        """
        view = self.view
        searcher = Searcher(view, candidates=self.candidates, fuse=self.fuse)
        if queries is not None:
            encoded = queries if isinstance(queries, QueryVectors) else self.query_vectors(queries)
            encoded = QueryVectors(encoded.codes[:MAX_QUERIES], encoded.vectors[:MAX_QUERIES])
            return suggest_candidates(searcher, view, QuerySample(encoded), recall, k)
        vectors, positions = sample_documents(view)
        if view.manifest.stored_dim != view.manifest.dim or (self.model is not None and self.encoder is not None):
            raise ConfigError("queries: none given, but documents of this index are no queries; give query vectors")
        sample = QuerySample(self.query_vectors(vectors), positions)
        return suggest_candidates(searcher, view, sample, recall, k)

    def count(self, filter: Any = None) -> int:
        """Count the documents, or those that match a filter."""
        return self.view.count if filter is None else self.view.count_matching(parse_filter(filter))

    def get(self, ids: Collection[str]) -> dict[str, Document]:
        """Return documents by id, without those that do not exist."""
        view = self.view
        return {doc_id: view.documents.record(row) for doc_id, row in view.find_rows(validate_ids(ids)).items()}

    def list_documents(
        self, filter: Any = None, limit: int = 100, cursor: str | None = None, *, text: bool = True
    ) -> DocumentPage:
        """List documents without a query, page by page, in an order of their own.

        A document that stays is listed once, whatever is written between two pages.

        Args:
            filter: condition on attributes.
            limit: maximum number of documents of the page.
            cursor: `cursor` of the page before; None: from the beginning.
            text: whether titles and texts are read.
        """
        check_integer("limit", limit)
        if cursor is not None and not isinstance(cursor, str):
            raise ConfigError(f"cursor: given {cursor!r}, expected the cursor of the page before, or None")
        condition = None if filter is None else parse_filter(filter)
        return list_documents(self.view, condition, limit, cursor, texts=text)

    def scroll(self, filter: Any = None, *, text: bool = True) -> Iterator[Document]:
        """Iterate over all documents, or those that match a filter, in constant memory."""
        cursor: str | None = None
        while True:
            page = self.list_documents(filter, SCROLL_DOCUMENTS, cursor, text=text)
            yield from page.documents
            if (cursor := page.cursor) is None:
                return

    def schema(self) -> list[dict[str, Any]]:
        """Describe the attributes: name, type, number of documents, examples or range."""
        return self.view.describe_attributes()

    @property
    def view(self) -> LiveView:
        """The newest state of the index."""
        view = self.reader.latest()
        return LiveView.from_reader(view) if isinstance(view, IndexReader) else view

    by_vectors = DeprecatedAlias("OpenIndex.by_vectors", "make_lookup_encoder")

    def make_lookup_encoder(self, vectors: Vectors, rows: dict[str, int]) -> QueryEncoder:
        """Return an encoder that looks up the vectors of query ids, for `evaluate`."""
        encoded = self.query_vectors(vectors)

        def encode(texts: Sequence[str]) -> QueryVectors:
            selected = [rows[name] for name in texts]
            return QueryVectors(encoded.codes[selected], encoded.vectors[selected])

        return encode

    def query_vectors(self, vectors: Path | npt.ArrayLike) -> QueryVectors:
        """Prepare query vectors for the codes and for the vectors; a single one may have one dimension."""
        if isinstance(self.model, CodesOnlyModel):
            return QueryVectors(*self.model.queries(vectors))
        view = self.reader.latest()
        return make_query_vectors(view, open_query_vectors(vectors, "query vectors", view.manifest.similarity)[:])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.reader.close()


def read_query_vectors(view: LiveView, rows: Rows, model: Model | CodesOnlyModel | None) -> QueryVectors:
    """Return one query: the mean of stored vectors of documents.

    The codes are searched with the same vector where documents and queries share a space, otherwise with the mean of
    what the documents' codes stand for.
    """
    manifest, positions = view.manifest, view.find_positions(rows)
    mean = view.vectors.read(positions).mean(axis=0, dtype=np.float32, keepdims=True)
    if manifest.unit:
        mean = normalize_l2(mean)
    if isinstance(model, CodesOnlyModel) and manifest.stored_dim == manifest.dim:
        return QueryVectors(*model.queries(mean))
    vectors = np.zeros((1, manifest.dim), dtype=np.float32)
    vectors[:, : manifest.stored_dim] = mean
    decoded = view.codebooks.decode(view.read_codes(positions)).mean(axis=0, dtype=np.float32, keepdims=True)
    codes = matmul_transposed(decoded, view.codebooks.rotation.T)
    if manifest.similarity == "l2":
        codes = codes[:, :-1]
    if model is None and manifest.stored_dim == manifest.dim:
        codes = vectors
    return QueryVectors(make_query_vectors(view, codes).codes, vectors)


def open_index_model(
    folder: Path | str, model: Path | str | None = None, device: str = "cpu"
) -> Model | CodesOnlyModel | None:
    """Open the model of an index; None if it was built from arrays. `model`: its folder, if that has moved."""
    stamp = read_model_reference(Path(folder))
    if model is None and stamp is None:
        return None
    model_folder = model if model is not None else stamp.folder if stamp else ""
    try:
        return open_model(model_folder, pick_device(device))
    except ModelError as error:
        if model is not None:
            raise
        raise ModelError(
            f"{folder} was built with the model in {model_folder}, which cannot be opened there any more ({error}); "
            "say where it is now with --model, or model=... in Python"
        ) from error


def open_index(
    folder: Path | str,
    model: Path | str | None = None,
    *,
    encoder: Path | str | None = None,
    candidates: int | None = None,
    ef: int | None = None,
    device: str = "cpu",
    fuse: float = 0.0,
    lexical: int | None = None,
    lexical_weight: float | None = None,
    reranker: CrossEncoder | Path | str | None = None,
    cache: CacheSize = None,
) -> OpenIndex:
    """Open an index for searching. Later additions and deletions are visible within a second.

    Args:
        model: the folder of the model, if it has moved since the index was built.
        encoder: for an index of vectors, the encoder that made them: a folder, an .onnx file or a Hugging Face id.
            Some texts of the index are encoded again to check it. None: that which the index was built with.
        candidates: number of candidates to read for a query; None: as the model was trained for.
        ef: nprobe of lists, or ef_search of a graph.
        device: where queries are encoded.
        fuse: weight of the code score (see `Searcher`).
        lexical: number of BM25 candidates (see `Searcher`); None: as the model recommends for texts, if the index
            has words.
        lexical_weight: weight of the BM25 score (see `Searcher`); None: as the model recommends.
        reranker: cross-encoder of `search_reranked`: the folder of an ONNX model (see `CrossEncoder`).
        cache: memory for vectors: bytes, or a text such as "2GiB"; 0: none. None: the page cache if all vectors fit in
            the available memory, otherwise a cache of half of it.
    """
    cross_encoder = CrossEncoder(reranker) if isinstance(reranker, Path | str) else reranker
    for name, number in (("ef", ef), ("candidates", candidates)):
        if number is not None:
            check_integer(name, number)
    parse_cache_size(cache)
    opened = open_index_model(folder, model, device)
    _refuse_encoder_of_text_model(folder, opened, encoder)
    reader = LiveIndex.open(folder, expect_model=None if opened is None else opened.fingerprint, ef=ef, cache=cache)
    recommended = SearchSettings()
    if opened is not None and has_lexical_index(reader.latest()):
        recommended = opened.search
    options: dict[str, Any] = {
        "fuse": fuse,
        "lexical": recommended.lexical if lexical is None else lexical,
        "lexical_weight": recommended.lexical_weight if lexical_weight is None else lexical_weight,
    }
    try:
        default_candidates = CANDIDATES if opened is None else opened.candidates
        searcher = OpenIndex(reader, None, candidates or default_candidates, **options)
        searcher.model, searcher.is_lexical_optional = opened, opened is not None and lexical is None
        searcher.reranker = cross_encoder
        searcher.encoder = _make_query_encoder(searcher, encoder, device)
    except BaseException:
        reader.close()
        raise
    return searcher


def _make_query_encoder(searcher: OpenIndex, name: Path | str | None, device: str) -> QueryEncoder | None:
    """Make the encoder of query texts; None for an index of vectors without one."""
    model = searcher.model
    if isinstance(model, Model):
        return lambda texts: QueryVectors(*model.encode_queries(list(texts)))
    view: Any = searcher.reader.latest()
    if name is None and view.manifest.encoder is None:
        return None if model is None else lambda texts: QueryVectors(*model.encode_queries(list(texts)))
    # A recorded encoder is opened by the first text: searching by vectors must not depend on it.
    get_encoder = cache(partial(attach_encoder, view, name, device))
    if name is not None:
        get_encoder()
    return lambda texts: searcher.query_vectors(get_encoder().encode_queries(texts))


def _refuse_encoder_of_text_model(
    folder: Path | str, opened: Model | CodesOnlyModel | None, encoder: Path | str | None
) -> None:
    if encoder is not None and isinstance(opened, Model):
        raise ConfigError(
            f"encoder: given for {folder}, which has a model with text encoders of its own; leave it out (--model says "
            "where the model is)"
        )


def open_writer(
    folder: Path | str,
    model: Path | str | None = None,
    *,
    encoder: Path | str | None = None,
    device: str = "auto",
    **options: Any,
) -> LiveWriter:
    """Open an index for adding, replacing and deleting documents; use it as a context manager.

    Texts are encoded by the model or the encoder of the index, or by `encoder`, as for `open_index`. If there is none,
    give vectors: ``writer.add([Document("id", "title", "text", {"lang": "en"})], vectors)``.
    Options: see `LiveWriter`.
    """
    opened = open_index_model(folder, model, device)
    _refuse_encoder_of_text_model(folder, opened, encoder)
    if isinstance(opened, Model):
        return LiveWriter(folder, make_model_encoder(opened), expect_model=opened.fingerprint, **options)
    return _open_vector_writer(folder, opened, encoder, device, options)


def _open_vector_writer(
    folder: Path | str, model: CodesOnlyModel | None, encoder: Path | str | None, device: str, options: dict[str, Any]
) -> LiveWriter:
    """Open a writer that encodes by a codes-only model, or by the codebooks of the index once locked."""

    def code(documents: Sequence[Document], vectors: Floats | None) -> EncodedBatch:
        view = writer.view
        coder = (
            make_codebook_encoder(view.codebooks, unit=view.manifest.unit)
            if model is None
            else make_codes_only_encoder(model)
        )
        if encoder is not None or view.manifest.encoder is not None:
            coder = add_text_encoder(coder, lambda records: get_encoder().encode_documents(records))
        return coder(documents, vectors)

    get_encoder = cache(lambda: attach_encoder(writer.view, encoder, pick_device(device)))
    writer = LiveWriter(folder, code, expect_model=None if model is None else model.fingerprint, **options)
    try:
        if model is None and writer.view.state.model is not None:  # another writer may have rebuilt it meanwhile
            raise IndexFolderError(f"{folder}: built anew with a model while this waited to write; start again")
        if encoder is not None:
            get_encoder()
    except BaseException:
        writer.close()
        raise
    return writer


def has_text_encoder(folder: Path | str, model: Path | str | None = None) -> bool:
    """Return whether an index has a model of texts, so that documents are added to it without vectors."""
    return isinstance(open_index_model(folder, model), Model)
