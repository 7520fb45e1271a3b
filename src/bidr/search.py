"""Search: candidates from the codes in RAM, their vectors read from disk, and the ranking those decide."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, overload

import numpy as np

from bidr.codes.codebooks import Floats
from bidr.errors import ConfigError, DataError
from bidr.index.candidates import Rows
from bidr.index.lexical.join import Joined
from bidr.index.live.index import LiveIndex
from bidr.index.live.view import LiveVectors, LiveView
from bidr.index.live.words import with_words
from bidr.index.reader import IndexReader
from bidr.index.vectors import VectorFile
from bidr.text.records import Document

CANDIDATES = 200
Texts = list[str] | tuple[str, ...]
STEPS = ("encode", "candidates", "reads", "ranking")


class QueryVectors(NamedTuple):
    """Queries as each side sees them; the same array twice where one encoder serves both."""

    codes: Floats
    vectors: Floats


class QueryEncoder(Protocol):
    """Turns questions into vectors."""

    def __call__(self, texts: Sequence[str]) -> QueryVectors: ...


StoredVectors = VectorFile | LiveVectors


class Timings(NamedTuple):
    """Milliseconds of each step."""

    encode: float = 0.0
    candidates: float = 0.0
    reads: float = 0.0
    ranking: float = 0.0

    @property
    def total(self) -> float:
        return sum(self)


class Answer(NamedTuple):
    """One document that was found, and where the codes alone had put it (ranks start at 1).

    candidate_rank: 0 where the words alone found it; its candidate_score is then the least of the codes' candidates.
    word_rank:      where the words had it; 0: not asked for, or not among those that were.
    """

    rank: int
    id: str
    score: float
    candidate_rank: int
    candidate_score: float
    document: Document | None
    word_rank: int = 0


class Answers(list[Answer]):
    """The answers to one query, best first. `timings` are milliseconds, for one query out of a batch its share."""

    def __init__(self, answers: Sequence[Answer], timings: Timings) -> None:
        super().__init__(answers)
        self.timings = timings


class Ranking(NamedTuple):
    """Answers to many queries as arrays: (queries, k) each, and (queries, candidates) for what the codes found.

    Places are where documents stand in the index; `IndexReader.rows` says which rows these are.
    """

    rows: Rows
    scores: Floats
    candidate_ranks: Rows
    candidate_scores: Floats
    candidate_places: Rows
    timings: Timings
    view: "IndexReader | LiveView | None" = None
    """The state of the index that the rows belong to: of a live index the numbers may mean others later."""
    word_ranks: Rows | None = None

    @property
    def candidate_rows(self) -> Rows:
        """The candidates by row, as answers have them."""
        return self.candidate_places if self.view is None else self.view.rows_of(self.candidate_places)


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
        _check_number("candidates", candidates)
        _check_number("lexical", lexical, least=0)
        for name, weight in (("fuse", fuse), ("lexical_weight", lexical_weight)):
            if not np.isfinite(weight):
                raise ConfigError(
                    f"{name}: given {weight}, expected a finite weight; 0 leaves the ranking to the vectors"
                )
        self.lexical, self.lexical_weight = lexical, lexical_weight
        self.reader, self.encoder, self.candidates, self.fuse = reader, encoder, candidates, fuse

    @overload
    def search(
        self, query: str, k: int = 10, candidates: int | None = None, *, filter: Any = None, lexical: int | None = None
    ) -> Answers: ...

    @overload
    def search(
        self,
        query: Texts,
        k: int = 10,
        candidates: int | None = None,
        *,
        filter: Any = None,
        lexical: int | None = None,
    ) -> list[Answers]: ...

    def search(
        self,
        query: str | Texts,
        k: int = 10,
        candidates: int | None = None,
        *,
        filter: Any = None,
        lexical: int | None = None,
    ) -> Answers | list[Answers]:
        """The k best documents for a question, or for each of many.

        filter: what attributes the answers must have, such as {"lang": "en", "year": {"gte": 2020}} (`index/filters`).
        lexical: as that of the class, for these questions.
        """
        texts = [query] if isinstance(query, str) else list(query)
        queries, milliseconds = self.encode(texts)
        ranking = self.search_vectors(queries, k, candidates, filter=filter, words=texts, lexical=lexical)
        ranking = ranking._replace(timings=ranking.timings._replace(encode=milliseconds))
        found = self.answers(ranking)
        return found[0] if isinstance(query, str) else found

    def encode(self, texts: Sequence[str]) -> tuple[QueryVectors, float]:
        """Queries as vectors, and the milliseconds that took."""
        if self.encoder is None:
            raise ConfigError("search by text needs a query encoder, none was given; open the index with its model")
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
        lexical: int | None = None,
    ) -> Ranking:
        """The k best documents for each query, as arrays.

        `k` and `candidates` beyond the number of documents mean all of them; fewer candidates than k are k.
        words: the same questions in words, for the documents that words find.
        """
        _check_number("k", k)
        depth = self.candidates if candidates is None else candidates
        _check_number("candidates", depth)
        view = self.reader.latest()
        codes, vectors = self._checked(queries)
        clock = _Clock()
        with clock("candidates"):
            engine = view.candidates if filter is None else view.filtered(filter)
            depth = min(max(depth, k), engine.count)
            code_scores, places = engine.search(codes, depth)
            if joined := self._joined(code_scores, places, view, engine, words, lexical):
                code_scores, places = joined.code_scores, joined.places
        order = np.empty((len(places), min(k, depth)), dtype=np.int64)
        scores = np.empty(order.shape, dtype=np.float32)
        for number in range(len(places)):
            # Places of -1, at the end, stand for documents that could not be found: fewer pass than were asked for.
            there = int(np.count_nonzero(places[number] >= 0))
            all_scores = np.full(len(places[number]), -np.inf, dtype=np.float32)
            all_scores[:there] = self._score(places[number, :there], vectors[number], clock, view.vectors)
            with clock("ranking"):
                if self.fuse:
                    all_scores += np.float32(self.fuse) * code_scores[number]
                if joined:
                    all_scores += joined.added[number]
                order[number] = best(all_scores, places[number], order.shape[1])
                scores[number] = all_scores[order[number]]
        found = view.rows_of(np.take_along_axis(places, order, axis=1))
        by_row = np.lexsort((found, -scores), axis=1)
        found, order = np.take_along_axis(found, by_row, axis=1), np.take_along_axis(order, by_row, axis=1)
        scores = np.take_along_axis(scores, by_row, axis=1)
        code_scores = np.take_along_axis(code_scores, order, axis=1)
        ranking = Ranking(found, scores, order + 1, code_scores, places, clock.timings(), view)
        if joined:
            ranks, word_ranks = (np.take_along_axis(each, order, axis=1) for each in (joined.ranks, joined.word_ranks))
            ranking = ranking._replace(candidate_ranks=ranks, word_ranks=word_ranks)
        return ranking

    def _joined(
        self, scores: Floats, places: Rows, view: Any, engine: Any, words: Sequence[str] | None, lexical: int | None
    ) -> Joined | None:
        """The codes' candidates and those of the words; None where words are not asked."""
        lexical = self.lexical if lexical is None else lexical
        _check_number("lexical", lexical, least=0)
        if not lexical:
            return None
        return with_words(scores, places, view, engine, words, lexical, self.lexical_weight)

    def answers(self, ranking: Ranking) -> list[Answers]:
        """Ids and texts for rows: reads them from disk, so only for answers that somebody looks at."""
        timings = Timings(*(step / max(len(ranking.rows), 1) for step in ranking.timings))
        return [Answers(self._answers_to(ranking, number), timings) for number in range(len(ranking.rows))]

    def _answers_to(self, ranking: Ranking, number: int) -> list[Answer]:
        documents = (ranking.view or self.reader).documents
        words = np.zeros_like(ranking.rows) if ranking.word_ranks is None else ranking.word_ranks
        columns = (ranking.rows, ranking.scores, ranking.candidate_ranks, ranking.candidate_scores, words)
        found = zip(*(column[number].tolist() for column in columns), strict=True)
        return [
            Answer(rank, documents.id(row), score, candidate_rank, candidate_score, documents.document(row), word_rank)
            for rank, (row, score, candidate_rank, candidate_score, word_rank) in enumerate(found, start=1)
            if row >= 0
        ]

    def _score(self, rows: Rows, query: Floats, clock: "_Clock", stored: "StoredVectors") -> Floats:
        with clock("reads"):
            stored.fetch(rows)
        with clock("ranking"):
            return stored.score(rows, query)

    def _checked(self, queries: QueryVectors) -> QueryVectors:
        manifest = self.reader.manifest
        codes = _as_matrix("queries for the codes", queries.codes, manifest.code_dim)
        vectors = _as_matrix("queries for the vectors", queries.vectors, manifest.dim)
        if len(codes) != len(vectors):
            raise DataError(
                f"{len(codes)} queries for the codes, {len(vectors)} for the vectors: expected as many of both"
            )
        return QueryVectors(codes, vectors)


class _Clock:
    """Adds up what each step took."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STEPS, 0.0)

    @contextmanager
    def __call__(self, step: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[step] += time.perf_counter() - started

    def timings(self) -> Timings:
        return Timings(**{step: 1000 * seconds for step, seconds in self.seconds.items()})


def best(scores: Floats, places: Rows, k: int) -> Rows:
    """Where the k best are, equal ones by place. Sorts no more than those: of 1,000 candidates a full sort is dear."""
    if k == len(scores):
        return np.lexsort((places, -scores))
    least = np.partition(scores, len(scores) - k)[len(scores) - k]
    there = np.flatnonzero(scores >= least)
    return there[np.lexsort((places[there], -scores[there]))[:k]]


def _check_number(name: str, value: int, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ConfigError(f"{name}: given {value!r}, expected a whole number of {least} or more")


def _as_matrix(name: str, given: Floats, dim: int) -> Floats:
    with np.errstate(over="ignore"):
        matrix = np.ascontiguousarray(given, dtype=np.float32)
    if matrix.ndim != 2 or matrix.shape[1] != dim:
        raise DataError(f"{name}: given shape {matrix.shape}, expected (queries, {dim}); use the model of this index")
    bad = ~np.isfinite(matrix).all(axis=1)
    if bad.any():
        raise DataError(f"{name}: query {int(bad.argmax())} holds NaN or infinity, expected finite numbers")
    return matrix
