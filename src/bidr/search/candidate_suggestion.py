"""Suggest the number of candidates for a recall, measured on the index itself."""

import math
from typing import NamedTuple

import numpy as np

from bidr.errors import ConfigError, DataError
from bidr.index.live.view import LiveView
from bidr.search.searcher import Searcher, check_integer
from bidr.search.types import QueryVectors
from bidr.utils.array_types import Floats, Rows
from bidr.utils.reproducible_matmul import matmul_transposed

MAX_QUERIES, SEED = 500, 0
POSITIONS_PER_BLOCK = 32_768
# Limit of candidates, per result and at least: beyond it, longer codes are cheaper.
CANDIDATES_PER_RESULT, MIN_LIMIT, GROWTH = 50, 2_000, 1.05


class CandidateSuggestion(NamedTuple):
    """The fewest candidates that reach a recall.

    recall:  what was measured with so many; below the target if none up to the limit reach it.
    queries: number of queries that it was measured with.
    """

    candidates: int
    recall: float
    queries: int


class QuerySample(NamedTuple):
    """Queries to measure with. `excluded`: position of the document that each of them is; None: they are none."""

    queries: QueryVectors
    excluded: Rows | None = None


def suggest_candidates(
    searcher: Searcher, view: LiveView, sample: QuerySample, recall: float, k: int
) -> CandidateSuggestion:
    """Measure how many candidates contain the share `recall` of the exact top `k`; reads all vectors once.

    Args:
        searcher: searches `view`.
        view: a state of the index.
        sample: queries to measure with.
        recall: share of the exact top k, such as .95.
        k: number of hits.
    """
    if isinstance(recall, bool) or not isinstance(recall, int | float) or not 0 < recall <= 1:
        raise ConfigError(f"recall: given {recall!r}, expected a share above 0 and up to 1, such as .95")
    check_integer("k", k)
    excluded = 0 if sample.excluded is None else 1
    if view.count < k + excluded or not len(sample.queries.codes):
        raise DataError(f"{view.folder}: {view.count:,} documents, expected {k + excluded} or more; choose a smaller k")
    exact = find_exact_top(view, sample, k)
    limit = min(view.count, max(MIN_LIMIT, CANDIDATES_PER_RESULT * k))
    batch = searcher.search_vectors(sample.queries, k + excluded, limit)
    ranks = np.concatenate([_find_ranks(*pair) for pair in zip(exact, batch.candidate_positions, strict=True)])
    candidates = max(k + excluded, int(np.sort(ranks)[math.ceil(recall * len(ranks)) - 1]) + 1)
    while True:
        candidates = min(limit, candidates)
        measured = _measure_recall(searcher, sample, exact, k + excluded, candidates)
        if measured >= recall or candidates == limit:
            return CandidateSuggestion(candidates, measured, len(exact))
        candidates = math.ceil(GROWTH * candidates)


def sample_documents(view: LiveView, count: int = MAX_QUERIES) -> tuple[Floats, Rows]:
    """Return vectors and positions of documents drawn at random."""
    positions = view.places()
    chosen = np.sort(np.random.default_rng(SEED).choice(positions, min(count, len(positions)), replace=False))
    return view.vectors.read(chosen), chosen


def find_exact_top(view: LiveView, sample: QuerySample, k: int) -> Rows:
    """Return the positions of the exact top k of each query, by the stored vectors."""
    queries, positions = view.manifest.truncate(sample.queries.vectors), view.places()
    best = np.full((len(queries), k), -np.inf, np.float32), np.full((len(queries), k), -1, np.int64)
    for start in range(0, len(positions), POSITIONS_PER_BLOCK):
        block = positions[start : start + POSITIONS_PER_BLOCK]
        vectors = view.vectors.read(block)
        scores = matmul_transposed(queries, vectors)
        if view.manifest.similarity == "l2":
            scores -= np.square(vectors, dtype=np.float64).sum(axis=1).astype(np.float32) / 2
        if sample.excluded is not None:
            scores[sample.excluded[:, None] == block] = -np.inf
        scores = np.concatenate([best[0], scores], axis=1)
        all_positions = np.concatenate([best[1], np.broadcast_to(block, (len(queries), len(block)))], axis=1)
        top = np.argpartition(-scores, k - 1, axis=1)[:, :k]
        best = np.take_along_axis(scores, top, axis=1), np.take_along_axis(all_positions, top, axis=1)
    return best[1]


def _find_ranks(positions: Rows, candidates: Rows) -> Rows:
    """Return the rank of each position among the candidates; their number if it is missing."""
    order = np.argsort(candidates)
    ranks = order[np.searchsorted(candidates, positions, sorter=order).clip(max=len(candidates) - 1)]
    return np.where(candidates[ranks] == positions, ranks, len(candidates))


def _measure_recall(searcher: Searcher, sample: QuerySample, exact: Rows, k: int, candidates: int) -> float:
    """Return the share of the exact top k among the hits."""
    batch = searcher.search_vectors(sample.queries, k, candidates)
    assert batch.positions is not None
    shares = [np.isin(top, hits).mean() for top, hits in zip(exact, batch.positions, strict=True)]
    return float(np.mean(shares))
