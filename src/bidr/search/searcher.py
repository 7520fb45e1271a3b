"""Search: candidates from the codes in RAM, their vectors read from disk, and the ranking those decide."""

import math
import time
from collections.abc import Sequence
from typing import Any, Protocol, Unpack, overload

import numpy as np

from bidr.data.validation import validate_query_texts
from bidr.data.vector_source import as_array
from bidr.errors import ConfigError, DataError
from bidr.index.lexical.candidate_union import CandidateUnion
from bidr.index.live.lexical_search import with_words
from bidr.index.live.live_index import LiveIndex
from bidr.index.live.view import LiveView
from bidr.index.reader import IndexReader
from bidr.index.storage.manifest import Manifest
from bidr.search.types import STEPS, QueryVectors, RankedBatch, SearchHit, SearchOptions, SearchResult, Texts, Timings
from bidr.utils.array_types import Floats, Rows

CANDIDATES = 200
WHOLE = (int, np.integer)
NUMBER = (int, float, np.integer, np.floating)


class StoredVectors(Protocol):
    """Vectors on disk: of one file or of many."""

    def fetch(self, rows: Rows) -> Any: ...

    def score(self, rows: Rows, query: Floats, fetched: Any = None) -> Floats: ...

    def read(self, rows: Rows) -> Floats: ...


class QueryEncoder(Protocol):
    """Turns questions into vectors."""

    def __call__(self, texts: Sequence[str]) -> QueryVectors: ...


class Searcher:
    """Answers queries from an open index.

    encoder:    needed to search by text; without it search by vectors.
    candidates: how many documents are read from disk for a query: more cost time and find more.
    fuse:       how much of the codes' score is added to the vectors' score (0: the vectors decide alone).
    lexical:    how many documents the words find (BM25) join the codes' candidates; 0: none. The index must have been
                built with them.
    lexical_weight: how much of BM25's score, as a share of the query's best, is added to the vectors' score.
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
        check_integer("lexical", lexical, least=0)
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
        """The k best documents for a question, or for each of many; options as `SearchOptions` has them."""
        texts = validate_query_texts([query] if isinstance(query, str) else query)
        queries, milliseconds = self.encode(texts)
        ranking = self.search_vectors(queries, k, candidates, words=texts, **options)
        ranking = ranking._replace(timings=ranking.timings._replace(encode=milliseconds))
        found = self.answers(ranking)
        return found[0] if isinstance(query, str) else found

    def encode(self, texts: Sequence[str]) -> tuple[QueryVectors, float]:
        """Queries as vectors, and the milliseconds that took."""
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
        """The k best documents for each query, as arrays; options as `SearchOptions` has them.

        `k` and `candidates` beyond the number of documents mean all of them; fewer candidates than k are k.
        words: the same questions in words, for the documents that words find.
        """
        check_integer("k", k)
        depth = self.candidates if candidates is None else candidates
        check_integer("candidates", depth)
        view = self.reader.latest()
        codes, vectors = _checked(queries, view.manifest)
        clock = _Clock()
        engine = view.candidates if filter is None else view.filtered(filter)
        depth = min(k if codes_only else max(depth, k), engine.count)
        code_scores, places = engine.search(codes, depth)
        if codes_only:
            return _as_coded(code_scores, places, view, clock)
        if joined := self._joined(code_scores, places, view, engine, words, lexical, lexical_weight):
            code_scores, places = joined.code_scores, joined.positions
        added = self._added(code_scores, joined)
        clock.took("candidates")
        order, scores, ties = self._ranked(places, vectors, min(k, depth), added, view.vectors, clock)
        found = view.rows_of(_picked(places, order))
        if ties:
            by_row = np.lexsort((found, -scores), axis=1)
            found, order, scores = (_picked(each, by_row) for each in (found, order, scores))
        code_scores = _picked(code_scores, order)
        clock.took("ranking")
        ranking = RankedBatch(found, scores, order + 1, code_scores, places, clock.timings(), view)
        if joined is None:
            return ranking
        ranks, word_ranks = _picked(joined.ranks, order), _picked(joined.word_ranks, order)
        return ranking._replace(candidate_ranks=ranks, word_ranks=word_ranks)

    def _added(self, code_scores: Floats, joined: CandidateUnion | None) -> Floats | None:
        """What the codes and the words add to the scores of candidates; None: nothing."""
        added = np.float32(self.fuse) * code_scores if self.fuse else None
        if joined is None:
            return added
        return joined.added if added is None else added + joined.added

    def _ranked(
        self, places: Rows, vectors: Floats, k: int, added: Floats | None, stored: StoredVectors, clock: "_Clock"
    ) -> tuple[Rows, Floats, bool]:
        """Which k of its candidates each query's vector puts first, their scores, and whether any are equal."""
        order = np.empty((len(places), k), dtype=np.int64)
        scores, ties = np.empty(order.shape, dtype=np.float32), False
        for number, near in enumerate(places):
            # Places of -1, at the end, stand for documents that could not be found: fewer pass than were asked for.
            there = near if len(near) and near[-1] >= 0 else near[near >= 0]
            exact = self._score(there, vectors[number], clock, stored)
            if added is not None:
                exact += added[number, : len(there)]
            ties |= self._best(exact, near, order[number], scores[number])
            clock.took("ranking")
        return order, scores, ties

    def _joined(
        self,
        scores: Floats,
        places: Rows,
        view: Any,
        engine: Any,
        words: Sequence[str] | None,
        lexical: int | None,
        weight: float | None,
    ) -> CandidateUnion | None:
        """The codes' candidates and those of the words; None where words are not asked."""
        lexical = self.lexical if lexical is None else lexical
        weight = self.lexical_weight if weight is None else weight
        check_integer("lexical", lexical, least=0)
        _check_weight("lexical_weight", weight)
        if not lexical:
            return None
        return with_words(scores, places, view, engine, words, lexical, weight)

    def answers(self, ranking: RankedBatch) -> list[SearchResult]:
        """Ids and texts for rows: reads them from disk, so only for answers that somebody looks at."""
        timings = Timings(*(step / max(len(ranking.rows), 1) for step in ranking.timings))
        return [SearchResult(self._answers_to(ranking, number), timings) for number in range(len(ranking.rows))]

    def _answers_to(self, ranking: RankedBatch, number: int) -> list[SearchHit]:
        documents = (ranking.view or self.reader).documents
        words = np.zeros_like(ranking.rows) if ranking.word_ranks is None else ranking.word_ranks
        columns = (ranking.rows, ranking.scores, ranking.candidate_ranks, ranking.candidate_scores, words)
        found = zip(*(column[number].tolist() for column in columns), strict=True)
        answers = []
        for rank, (row, score, candidate_rank, candidate_score, word_rank) in enumerate(found, start=1):
            if row >= 0:
                document = documents.document(row)
                name = documents.id(row) if document is None else document.id
                answers.append(SearchHit(rank, name, score, candidate_rank, candidate_score, document, word_rank))
        return answers

    def _score(self, rows: Rows, query: Floats, clock: "_Clock", stored: StoredVectors) -> Floats:
        """What the vectors say of some candidates; other ways to store them score otherwise (`shrunk`)."""
        fetched = stored.fetch(rows)
        clock.took("reads")
        return stored.score(rows, query, fetched)


class _Clock:
    """Adds up what each step took."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STEPS, 0.0)
        self._since = time.perf_counter()

    def took(self, step: str) -> None:
        """What went by since the step before was this one's."""
        now = time.perf_counter()
        self.seconds[step] += now - self._since
        self._since = now

    def timings(self) -> Timings:
        return Timings(*(1000 * seconds for seconds in self.seconds.values()))


def _checked(queries: QueryVectors, manifest: Manifest) -> QueryVectors:
    """Queries as each side takes them: where vectors are cut off, queries are too."""
    codes = _as_matrix("queries for the codes", queries.codes, manifest.code_dim)
    if queries.vectors is queries.codes and manifest.dim == manifest.code_dim:
        return QueryVectors(codes, manifest.cut(codes))
    vectors = _as_matrix("queries for the vectors", queries.vectors, manifest.dim)
    if len(codes) != len(vectors):
        raise DataError(f"{len(codes)} queries for the codes, {len(vectors)} for the vectors: expected as many of both")
    return QueryVectors(codes, manifest.cut(vectors))


def _as_coded(scores: Floats, places: Rows, view: Any, clock: _Clock) -> RankedBatch:
    """The codes' own ranking: nothing is read from disk."""
    rows = view.rows_of(places)
    ranks = np.broadcast_to(np.arange(1, rows.shape[1] + 1), rows.shape)
    clock.took("candidates")
    return RankedBatch(rows, scores, ranks, scores, places, clock.timings(), view)


def _picked(values: Any, order: Rows) -> Any:
    """What stands at the given places of each query."""
    if len(values) == 1:
        return values[0].take(order[0])[None]  # a quarter of the time
    return np.take_along_axis(values, order, axis=1)


def check_integer(name: str, value: int, least: int = 1) -> None:
    """Refuse what is no whole number, or too small a one."""
    if isinstance(value, bool) or not isinstance(value, WHOLE) or value < least:
        raise ConfigError(f"{name}: given {value!r}, expected a whole number of {least} or more")


def _check_weight(name: str, weight: float) -> None:
    if not isinstance(weight, NUMBER) or not _is_finite(weight):
        raise ConfigError(f"{name}: given {weight!r}, expected a finite weight; 0 leaves the ranking to the vectors")


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # a whole number beyond all floats
        return False


def _as_floats(given: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(given, dtype=np.float32)


def _as_matrix(name: str, given: Floats, dim: int) -> Floats:
    ready = isinstance(given, np.ndarray) and given.dtype == np.float32 and given.flags.c_contiguous
    matrix = given if ready else _as_floats(as_array(given, name))
    if matrix.ndim != 2 or matrix.shape[1] != dim:
        raise DataError(f"{name}: given shape {matrix.shape}, expected (queries, {dim}); use the model of this index")
    if not math.isfinite(np.vdot(matrix, matrix)):  # one pass; very large numbers are looked at again
        bad = ~np.isfinite(matrix).all(axis=1)
        if bad.any():
            raise DataError(
                f"{name}: query {int(bad.argmax())} holds NaN or infinity, expected finite numbers; encode it again"
            )
    return matrix
