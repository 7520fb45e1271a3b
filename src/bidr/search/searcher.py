"""Search: find candidates by codes in RAM, then rank them by vectors read from disk."""

import math
import time
from collections.abc import Sequence
from typing import Any, Protocol, Unpack, overload

import numpy as np

from bidr.data.validation import validate_query_texts
from bidr.data.vector_source import as_array
from bidr.errors import ConfigError, DataError
from bidr.index.lexical.candidate_union import CandidateUnion
from bidr.index.live.lexical_search import add_lexical_candidates
from bidr.index.live.live_reader import LiveIndex
from bidr.index.live.view import LiveView
from bidr.index.reader import IndexReader
from bidr.index.storage.manifest import Manifest
from bidr.index.vectors import ReadStats
from bidr.search.types import STEPS, QueryVectors, RankedBatch, SearchHit, SearchOptions, SearchResult, Texts, Timings
from bidr.utils.array_types import Floats, Rows
from bidr.utils.cpu_gate import cpu_gate
from bidr.utils.deprecation import DeprecatedAlias

CANDIDATES = 200
INTEGER_TYPES = (int, np.integer)
NUMBER_TYPES = (int, float, np.integer, np.floating)


class StoredVectors(Protocol):
    """Vectors on disk, of one segment or of many."""

    @property
    def waits_for_disk(self) -> bool: ...

    def fetch(self, rows: Rows, query: Floats) -> Any: ...

    def sum_stats(self, fetched: Any) -> ReadStats: ...

    def score(self, rows: Rows, query: Floats, fetched: Any = None) -> Floats: ...

    def read(self, rows: Rows) -> Floats: ...


class QueryEncoder(Protocol):
    """Encodes query texts as vectors."""

    def __call__(self, texts: Sequence[str]) -> QueryVectors: ...


class Searcher:
    """Searches an open index.

    Args:
        reader: the index.
        encoder: needed to search by text.
        candidates: number of documents whose vectors are read for a query; more take longer and find more.
        fuse: weight of the code score that is added to the vector score (0: the vectors decide alone).
        lexical: number of BM25 candidates to add to those of the codes; the index must have been built with lexical.
        lexical_weight: weight of the BM25 score, relative to the best of the query, that is added to the vector score.
    """

    def __init__(
        self,
        reader: IndexReader | LiveView | LiveIndex,
        encoder: QueryEncoder | None = None,
        candidates: int = CANDIDATES,
        *,
        fuse: float = 0.0,
        lexical: int = 0,
        lexical_weight: float = 0.0,
    ) -> None:
        from bidr.index.engines.topk import rank_scores

        check_integer("candidates", candidates)
        check_integer("lexical", lexical, minimum=0)
        _check_weight("fuse", fuse)
        _check_weight("lexical_weight", lexical_weight)
        self.lexical, self.lexical_weight = lexical, lexical_weight
        self.reader, self.encoder, self.candidates, self.fuse = reader, encoder, candidates, fuse
        self._best = rank_scores

    @overload
    def search(
        self, query: str, k: int = 10, candidates: int | None = None, **options: Unpack[SearchOptions]
    ) -> SearchResult: ...

    @overload
    def search(
        self, query: Texts, k: int = 10, candidates: int | None = None, **options: Unpack[SearchOptions]
    ) -> list[SearchResult]: ...

    def search(
        self, query: str | Texts, k: int = 10, candidates: int | None = None, **options: Unpack[SearchOptions]
    ) -> SearchResult | list[SearchResult]:
        """Return the best k documents for a query text, or for each of many; options: see `SearchOptions`."""
        texts = validate_query_texts([query] if isinstance(query, str) else query)
        queries, milliseconds = self.encode(texts)
        ranking = self.search_vectors(queries, k, candidates, words=texts, **options)
        ranking = ranking._replace(timings=ranking.timings._replace(encode=milliseconds))
        results = self.load_results(ranking)
        return results[0] if isinstance(query, str) else results

    def encode(self, texts: Sequence[str]) -> tuple[QueryVectors, float]:
        """Encode query texts; return the vectors and the milliseconds it took."""
        if self.encoder is None:
            raise ConfigError("search by text needs a query encoder, none was given; open the index with its model")
        texts = validate_query_texts(texts)
        if not texts:
            empty = np.empty((0, self.reader.manifest.code_dim), dtype=np.float32)
            return QueryVectors(empty, np.empty((0, self.reader.manifest.dim), dtype=np.float32)), 0.0
        started = time.perf_counter()
        queries = self.encoder(texts)
        return queries, 1000 * (time.perf_counter() - started)

    def search_vectors(
        self,
        queries: QueryVectors,
        k: int = 10,
        candidates: int | None = None,
        *,
        filter: Any = None,
        words: Sequence[str] | None = None,
        codes_only: bool = False,
        lexical: int | None = None,
        lexical_weight: float | None = None,
    ) -> RankedBatch:
        """Return the best k documents for each query as arrays; options: see `SearchOptions`.

        Args:
            queries: the query vectors.
            k: number of documents; at most all.
            candidates: number of candidates to read; at least k, at most all.
            words: texts of the queries for BM25.
        """
        check_integer("k", k)
        depth = self.candidates if candidates is None else candidates
        check_integer("candidates", depth)
        view = self.reader.latest()
        codes, vectors = _validate_queries(queries, view.manifest)
        with cpu_gate:
            return self._search(view, codes, vectors, k, depth, filter, words, codes_only, lexical, lexical_weight)

    def _search(
        self,
        view: Any,
        codes: Floats,
        vectors: Floats,
        k: int,
        depth: int,
        filter: Any,
        words: Sequence[str] | None,
        codes_only: bool,
        lexical: int | None,
        lexical_weight: float | None,
    ) -> RankedBatch:
        """Search with valid queries; arguments as of `search_vectors`."""
        clock = _StepClock()
        engine = view.candidates if filter is None else view.select(filter)
        depth = min(k if codes_only else max(depth, k), engine.count)
        code_scores, positions = engine.search(codes, depth)
        if codes_only:
            return _rank_by_codes(code_scores, positions, view, clock)
        union = self._add_lexical(code_scores, positions, view, engine, words, lexical, lexical_weight)
        if union:
            code_scores, positions = union.code_scores, union.positions
        added = self._sum_added_scores(code_scores, union)
        clock.add_step("candidates")
        order, scores, ties = self._rank_by_vectors(positions, vectors, min(k, depth), added, view.vectors, clock)
        rows = view.rows_of(_take(positions, order))
        if ties:
            by_row = np.lexsort((rows, -scores), axis=1)
            rows, order, scores = (_take(values, by_row) for values in (rows, order, scores))
        code_scores = _take(code_scores, order)
        clock.add_step("ranking")
        timings, read_stats = clock.to_timings(), clock.read_stats
        batch = RankedBatch(rows, scores, order + 1, code_scores, positions, timings, view, read_stats=read_stats)
        if union is None:
            return batch
        ranks, word_ranks = _take(union.ranks, order), _take(union.word_ranks, order)
        return batch._replace(candidate_ranks=ranks, word_ranks=word_ranks)

    def _sum_added_scores(self, code_scores: Floats, union: CandidateUnion | None) -> Floats | None:
        """Return what codes and BM25 add to the vector scores; None: nothing."""
        added = np.float32(self.fuse) * code_scores if self.fuse else None
        if union is None:
            return added
        return union.added if added is None else added + union.added

    def _rank_by_vectors(
        self, positions: Rows, vectors: Floats, k: int, added: Floats | None, stored: StoredVectors, clock: "_StepClock"
    ) -> tuple[Rows, Floats, bool]:
        """Return the indices of the best k candidates of each query, their scores, and whether any scores are equal."""
        order = np.empty((len(positions), k), dtype=np.int64)
        scores, ties = np.empty(order.shape, dtype=np.float32), False
        for number, candidates in enumerate(positions):
            # Positions of -1 at the end are padding: fewer documents match than were requested.
            is_full = len(candidates) and candidates[-1] >= 0
            documents = candidates if is_full else candidates[candidates >= 0]
            exact = self._score(documents, vectors[number], clock, stored)
            if added is not None:
                exact += added[number, : len(documents)]
            ties |= self._best(exact, candidates, order[number], scores[number])
            clock.add_step("ranking")
        return order, scores, ties

    def _add_lexical(
        self,
        scores: Floats,
        positions: Rows,
        view: Any,
        engine: Any,
        words: Sequence[str] | None,
        lexical: int | None,
        weight: float | None,
    ) -> CandidateUnion | None:
        """Unite the candidates of the codes with those of BM25; None if BM25 is off."""
        lexical = self.lexical if lexical is None else lexical
        weight = self.lexical_weight if weight is None else weight
        check_integer("lexical", lexical, minimum=0)
        _check_weight("lexical_weight", weight)
        if not lexical:
            return None
        return add_lexical_candidates(scores, positions, view, engine, words, lexical, weight)

    def load_results(self, batch: RankedBatch) -> list[SearchResult]:
        """Read ids and texts of the rows of a batch from disk."""
        timings = Timings(*(step / max(len(batch.rows), 1) for step in batch.timings))
        return [SearchResult(self._load_hits(batch, query), timings) for query in range(len(batch.rows))]

    answers = DeprecatedAlias("OpenIndex.answers", "load_results")

    def _load_hits(self, batch: RankedBatch, query: int) -> list[SearchHit]:
        documents = (batch.view or self.reader).documents
        word_ranks = np.zeros_like(batch.rows) if batch.word_ranks is None else batch.word_ranks
        columns = (batch.rows, batch.scores, batch.candidate_ranks, batch.candidate_scores, word_ranks)
        ranked = zip(*(column[query].tolist() for column in columns), strict=True)
        hits = []
        for rank, (row, score, candidate_rank, candidate_score, word_rank) in enumerate(ranked, start=1):
            if row >= 0:
                document = documents.document(row)
                name = documents.id(row) if document is None else document.id
                hits.append(SearchHit(rank, name, score, candidate_rank, candidate_score, document, word_rank))
        return hits

    def _score(self, rows: Rows, query: Floats, clock: "_StepClock", stored: StoredVectors) -> Floats:
        """Score candidates by their vectors. `TruncatedSearcher` overrides this."""
        if stored.waits_for_disk:
            with cpu_gate.leave():
                fetched = stored.fetch(rows, query)
        else:
            fetched = stored.fetch(rows, query)
        clock.read_stats = clock.read_stats.plus(stored.sum_stats(fetched))
        clock.add_step("reads")
        return stored.score(rows, query, fetched)


class _StepClock:
    """Adds up the time of each step, and the reads."""

    def __init__(self) -> None:
        self.seconds, self.read_stats = dict.fromkeys(STEPS, 0.0), ReadStats()
        self._since = time.perf_counter()

    def add_step(self, step: str) -> None:
        """Add the time since the last call to a step."""
        now = time.perf_counter()
        self.seconds[step] += now - self._since
        self._since = now

    def to_timings(self) -> Timings:
        return Timings(*(1000 * seconds for seconds in self.seconds.values()))


def _validate_queries(queries: QueryVectors, manifest: Manifest) -> QueryVectors:
    """Check the shape of queries, and truncate them as the stored vectors are."""
    codes = _as_matrix("queries for the codes", queries.codes, manifest.code_dim)
    if queries.vectors is queries.codes and manifest.dim == manifest.code_dim:
        return QueryVectors(codes, manifest.truncate(codes))
    vectors = _as_matrix("queries for the vectors", queries.vectors, manifest.dim)
    if len(codes) != len(vectors):
        raise DataError(f"{len(codes)} queries for the codes, {len(vectors)} for the vectors: expected the same number")
    return QueryVectors(codes, manifest.truncate(vectors))


def _rank_by_codes(scores: Floats, positions: Rows, view: Any, clock: _StepClock) -> RankedBatch:
    """Return the ranking of the codes, without reading vectors."""
    rows = view.rows_of(positions)
    ranks = np.broadcast_to(np.arange(1, rows.shape[1] + 1), rows.shape)
    clock.add_step("candidates")
    return RankedBatch(rows, scores, ranks, scores, positions, clock.to_timings(), view)


def _take(values: Any, order: Rows) -> Any:
    """Return the values at the indices of each query."""
    if len(values) == 1:
        return values[0].take(order[0])[None]  # four times as fast
    return np.take_along_axis(values, order, axis=1)


def check_integer(name: str, value: int, minimum: int = 1) -> None:
    """Refuse anything but an integer of at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, INTEGER_TYPES) or value < minimum:
        raise ConfigError(f"{name}: given {value!r}, expected a whole number of {minimum} or more")


def _check_weight(name: str, weight: float) -> None:
    if not isinstance(weight, NUMBER_TYPES) or not _is_finite(weight):
        raise ConfigError(f"{name}: given {weight!r}, expected a finite weight; 0 leaves the ranking to the vectors")


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # an integer beyond the range of floats
        return False


def _as_floats(values: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values, dtype=np.float32)


def _as_matrix(name: str, values: Floats, dim: int) -> Floats:
    is_float32 = isinstance(values, np.ndarray) and values.dtype == np.float32 and values.flags.c_contiguous
    matrix = values if is_float32 else _as_floats(as_array(values, name))
    if matrix.ndim != 2 or matrix.shape[1] != dim:
        raise DataError(f"{name}: given shape {matrix.shape}, expected (queries, {dim}); use the model of this index")
    if not math.isfinite(np.vdot(matrix, matrix)):  # one pass; overflow of large numbers is checked again
        bad = ~np.isfinite(matrix).all(axis=1)
        if bad.any():
            raise DataError(
                f"{name}: query {int(bad.argmax())} holds NaN or infinity, expected finite numbers; encode it again"
            )
    return matrix
