"""Search: find candidates by codes in RAM, then rank them by vectors read from disk."""

import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, Unpack, overload

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
from bidr.quantization.distance_codes import add_query_component
from bidr.search.hit_selection import ShapingOptions, shape_batch
from bidr.search.types import STEPS, QueryVectors, RankedBatch, SearchHit, SearchOptions, SearchResult, Texts, Timings
from bidr.utils.array_types import Floats, Rows
from bidr.utils.cpu_gate import cpu_gate
from bidr.utils.deprecation import DeprecatedAlias
from bidr.utils.notebook import render_table

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

    def __len__(self) -> int:
        """Return the number of documents."""
        return self.reader.latest().count

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"{type(self).__name__}({format_index(self.reader.folder, self.reader.latest())})"

    def _repr_html_(self) -> str:
        """Return what the index holds as a table, for notebooks."""
        view = self.reader.latest()
        manifest = view.manifest
        rows = [
            ("documents", f"{view.count:,}"),
            ("vectors", f"{manifest.stored_dim} dimensions, ranked by {manifest.similarity}"),
            ("codes", f"{(manifest.books * (manifest.words.bit_length() - 1) + 7) // 8} bytes a document"),
            ("engine", manifest.engine),
            ("candidates", self.candidates),
            ("queries", "vectors" if self.encoder is None else "texts or vectors"),
        ]
        return render_table(str(self.reader.folder), ("index", ""), rows)

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
        **shaping: Any,
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
        ranked = _validate_queries(queries, view.manifest)
        lexical = self.lexical if lexical is None else lexical
        weight = self.lexical_weight if lexical_weight is None else lexical_weight
        check_integer("lexical", lexical, minimum=0)
        _check_weight("lexical_weight", weight)
        options = _RankingOptions(filter, words, codes_only, lexical, weight)
        with cpu_gate:
            if not shaping:
                return self._rank(view, ranked, k, depth, options)
            return self._rank_shaped(view, ranked, k, depth, options, ShapingOptions(**shaping))

    def _rank_shaped(
        self, view: Any, queries: QueryVectors, k: int, depth: int, options: "_RankingOptions", shaping: ShapingOptions
    ) -> RankedBatch:
        """Rank as many candidates as the shaping of the result needs, and shape it."""
        shaping.check()
        end = shaping.offset + k
        if shaping.fusion == "rrf":
            options = options._replace(lexical_weight=0.0)
        needs_all = shaping.needs_all_candidates and not options.codes_only
        count = max(end, depth) if shaping.needs_all_candidates else end
        if shaping.combine is None:
            batch = self._rank(view, queries, count, depth, options, rank_all=needs_all)
        else:
            batch = self._rank_combined(view, queries, depth, options, shaping.combine, end)
        return shape_batch(batch, k, shaping, view if isinstance(view, LiveView) else LiveView.from_reader(view))

    def _rank_combined(
        self, view: Any, queries: QueryVectors, depth: int, options: "_RankingOptions", combine: str, end: int
    ) -> RankedBatch:
        """Rank the candidates of all queries together by the maximum or the mean of their scores."""
        if options.lexical:
            raise ConfigError(
                f"lexical: given {options.lexical} with combine, expected 0; BM25 takes one text for each query"
            )
        if not len(queries.codes):
            raise DataError("combine: no queries given, expected one or more vectors of one query")
        clock = _StepClock()
        engine = view.candidates if options.filter is None else view.select(options.filter)
        code_scores, positions = engine.search(queries.codes, min(_get_depth(view, end, depth, options), engine.count))
        columns = np.broadcast_to(np.arange(positions.shape[1]), positions.shape)[positions >= 0]
        united, places = np.unique(positions[positions >= 0], return_inverse=True)
        best_codes, ranks = np.full(len(united), -np.inf, np.float32), np.full(len(united), engine.count + 1)
        np.maximum.at(best_codes, places, code_scores[positions >= 0])
        np.minimum.at(ranks, places, columns + 1)
        clock.add_step("candidates")
        scores = best_codes
        if not options.codes_only:
            by_query = [self._score(united, vector, clock, view.vectors) for vector in queries.vectors]
            scores = np.max(by_query, axis=0) if combine == "max" else np.mean(by_query, axis=0, dtype=np.float32)
        rows = view.rows_of(united)
        order = np.lexsort((rows, -scores))
        clock.add_step("ranking")
        arrays = rows[order][None], scores[order][None], ranks[order][None], best_codes[order][None]
        batch = RankedBatch(*arrays, united[None], clock.to_timings(), view)
        return batch._replace(positions=united[order][None], read_stats=clock.read_stats)

    def _rank(
        self,
        view: Any,
        queries: QueryVectors,
        k: int,
        depth: int,
        options: "_RankingOptions",
        *,
        rank_all: bool = False,
    ) -> RankedBatch:
        """Return the best `k` documents for each query; `rank_all`: all candidates, those of BM25 too."""
        codes, vectors = queries
        clock = _StepClock()
        engine = view.candidates if options.filter is None else view.select(options.filter)
        depth = min(_get_depth(view, k, depth, options), engine.count)
        code_scores, positions = engine.search(codes, depth)
        if options.codes_only:
            return _rank_by_codes(code_scores, positions, view, clock)
        union = None
        if options.lexical:
            lexical, weight = options.lexical, options.lexical_weight
            union = add_lexical_candidates(code_scores, positions, view, engine, options.words, lexical, weight)
            code_scores, positions = union.code_scores, union.positions
        added = self._sum_added_scores(code_scores, union)
        clock.add_step("candidates")
        k = positions.shape[1] if rank_all else min(k, depth)
        order, scores, ties = self._rank_by_vectors(positions, vectors, k, added, view.vectors, clock)
        hit_positions = _take(positions, order)
        rows = view.rows_of(hit_positions)
        if ties:
            by_row = np.lexsort((rows, -scores), axis=1)
            rows, order, scores, hit_positions = (
                _take(values, by_row) for values in (rows, order, scores, hit_positions)
            )
        code_scores = _take(code_scores, order)
        clock.add_step("ranking")
        batch = RankedBatch(rows, scores, order + 1, code_scores, positions, clock.to_timings(), view)
        batch = batch._replace(positions=hit_positions, read_stats=clock.read_stats)
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


class _RankingOptions(NamedTuple):
    """Options of the ranking of one batch."""

    filter: Any
    words: Sequence[str] | None
    codes_only: bool
    lexical: int
    lexical_weight: float


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


def format_index(folder: Any, view: Any) -> str:
    """Format folder, size and similarity of an index in one line."""
    manifest = view.manifest
    return f"{str(folder)!r}, {view.count:,} documents, {manifest.dim} dimensions, {manifest.similarity}"


def make_query_vectors(view: Any, vectors: Floats) -> QueryVectors:
    """Return the query vectors for the codes and for the vectors of an index without a model."""
    if view.manifest.similarity == "l2":
        return QueryVectors(add_query_component(view.codebooks, vectors), vectors)
    return QueryVectors(vectors, vectors)


def _validate_queries(queries: QueryVectors, manifest: Manifest) -> QueryVectors:
    """Check the shape of queries, and truncate them as the stored vectors are."""
    codes = _as_matrix("queries for the codes", queries.codes, manifest.code_dim)
    if queries.vectors is queries.codes and manifest.dim == manifest.code_dim:
        return QueryVectors(codes, manifest.truncate(codes))
    vectors = _as_matrix("queries for the vectors", queries.vectors, manifest.dim)
    if len(codes) != len(vectors):
        raise DataError(f"{len(codes)} queries for the codes, {len(vectors)} for the vectors: expected the same number")
    return QueryVectors(codes, manifest.truncate(vectors))


def _get_depth(view: Any, k: int, depth: int, options: _RankingOptions) -> int:
    """Return the number of candidates: all documents while codes are not fitted."""
    if options.codes_only:
        return k
    return max(depth, k) if view.has_codes else int(view.count)


def _rank_by_codes(scores: Floats, positions: Rows, view: Any, clock: _StepClock) -> RankedBatch:
    """Return the ranking of the codes, without reading vectors."""
    rows = view.rows_of(positions)
    ranks = np.broadcast_to(np.arange(1, rows.shape[1] + 1), rows.shape)
    clock.add_step("candidates")
    return RankedBatch(rows, scores, ranks, scores, positions, clock.to_timings(), view, positions=positions)


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
