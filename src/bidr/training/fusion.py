"""Fusion with BM25, measured on dev: number of BM25 candidates and weight of their score."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bidr.data.positives import Positives
from bidr.index.lexical.postings import Postings, concat_term_counts, count_terms
from bidr.index.live.lexical_search import MemoryLexicalSearcher, unite_lexical_hits
from bidr.quantization.exact_search import TopK
from bidr.utils.array_types import Floats, Rows

Means = npt.NDArray[np.float64]
CUTOFFS = (10, 100)
TEXTS_PER_BATCH = 4_096
# Weights of the relative BM25 score, in standard deviations of the vector scores of a query's candidates, so that
# they fit unit vectors and others alike. Neighbors are measured together: see `smooth`.
RELATIVE_WEIGHTS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0, 13.0, 20.0)
# BM25 decides; equal BM25 scores, and documents without a term of the query, are ordered by vectors.
LEXICAL_ONLY = 1_000.0


class Fusion(NamedTuple):
    """BM25 candidates per query beside those of the codes, and the weight of their score; 0: none."""

    lexical: int = 0
    weight: float = 0.0


class Recalls(NamedTuple):
    """Recall of each dev query at the cutoffs, and among all candidates."""

    at_10: Means
    at_100: Means
    candidates: Means

    @property
    def criterion(self) -> Means:
        """Mean of R@10 and R@100 of each query."""
        return (self.at_10 + self.at_100) / 2


class RankedCandidates(NamedTuple):
    """Candidates of codes and BM25 of each dev query, (queries, n), padded with positions of -1.

    by_codes: found by the codes. word_ranks: rank by BM25 from 1, 0: not among its best.
    scores: of the vectors. words: BM25 scores relative to the best of the query.
    """

    positions: Rows
    by_codes: Rows
    word_ranks: Rows
    scores: Floats
    words: Floats


def build_lexical_searcher(texts: Sequence[str]) -> MemoryLexicalSearcher:
    """Index texts for BM25 in RAM; positions are their places in the sequence."""
    starts = range(0, len(texts), TEXTS_PER_BATCH)
    counts = [count_terms(texts[start : start + TEXTS_PER_BATCH]) for start in starts]
    return MemoryLexicalSearcher(Postings.from_counts(concat_term_counts(counts)))


def collect_candidates(
    by_codes: TopK,
    queries: Floats,
    vectors: npt.NDArray[np.float16],
    texts: Sequence[str],
    searcher: MemoryLexicalSearcher | None,
    lexical: int,
) -> RankedCandidates:
    """Unite the candidates of codes and BM25, and score them by vectors as an index does.

    Args:
        queries: vectors of the dev queries.
        vectors: document vectors, stored with 16 bits.
        texts: texts of the dev queries.
        searcher: BM25; None: candidates of the codes alone.
        lexical: number of BM25 candidates.
    """
    positions, word_ranks = by_codes.rows, np.zeros_like(by_codes.rows)
    words, count = np.zeros(by_codes.rows.shape, np.float32), by_codes.rows.shape[1]
    if searcher is not None and lexical:
        hits = searcher.search(texts, min(lexical, len(vectors)), [row[row >= 0] for row in by_codes.rows])
        union = unite_lexical_hits(by_codes.scores, by_codes.rows, hits, 1.0)
        positions, word_ranks, words = union.positions, union.word_ranks, union.added
    scores = np.full(positions.shape, -np.inf, np.float32)
    for query, candidates in enumerate(positions):
        used = np.flatnonzero(candidates >= 0)
        scores[query, used] = vectors[candidates[used]].astype(np.float32) @ queries[query]
    by_codes_mask = np.zeros(positions.shape, bool)
    by_codes_mask[:, :count] = positions[:, :count] >= 0
    return RankedCandidates(positions, by_codes_mask, word_ranks, scores, words)


def measure_spread(candidates: RankedCandidates) -> float:
    """Return the mean standard deviation of the vector scores of a query's candidates."""
    scores = np.where(candidates.by_codes, candidates.scores, np.nan)
    spreads = np.nanstd(scores[candidates.by_codes.any(axis=1)], axis=1)
    return float(spreads.mean()) if len(spreads) else 0.0


def measure_recalls(candidates: RankedCandidates, pairs: Positives, fusion: Fusion, depth: int) -> Recalls:
    """Measure recall of each dev query when candidates are ranked with a fusion.

    Args:
        depth: number of candidates of the codes, which is the largest number of hits.
    """
    ranked = candidates.by_codes | ((candidates.word_ranks > 0) & (candidates.word_ranks <= fusion.lexical))
    scores = candidates.scores + np.float32(fusion.weight if fusion.lexical else 0.0) * candidates.words
    scores = np.where(ranked, scores, -np.inf)
    queries, rows = pairs.list_edges(np.arange(len(pairs)))
    is_positive = (candidates.positions[queries] == rows[:, None]) & ranked[queries]
    column, is_candidate = is_positive.argmax(axis=1), is_positive.any(axis=1)
    score, edge_scores = scores[queries, column], scores[queries]
    ties = (edge_scores == score[:, None]) & (candidates.positions[queries] < rows[:, None]) & ranked[queries]
    ranks = (edge_scores > score[:, None]).sum(axis=1) + ties.sum(axis=1)
    counts = np.diff(pairs.starts)

    def average(hits: npt.NDArray[np.bool_]) -> Means:
        shares: Means = np.bincount(queries, weights=hits, minlength=len(pairs)) / counts
        return shares

    at_10, at_100 = (average(is_candidate & (ranks < min(cutoff, depth))) for cutoff in CUTOFFS)
    return Recalls(at_10, at_100, average(is_candidate))


def smooth(values: Sequence[float]) -> Means:
    """Average each value with its neighbors: a peak of one weight alone is chance."""
    padded = np.pad(np.asarray(values, dtype=np.float64), 1, mode="edge")
    means: Means = (padded[:-2] + padded[1:-1] + padded[2:]) / 3
    return means


def choose_fusion(
    candidates: RankedCandidates, pairs: Positives, lexical: Sequence[int], depth: int
) -> tuple[Fusion, Recalls]:
    """Choose the number of BM25 candidates and their weight by the smoothed criterion; fewer candidates if equal."""
    spread = measure_spread(candidates)
    best: tuple[float, Fusion, Recalls] | None = None
    for count in sorted(lexical):
        fusions = [Fusion(count, round_weight(weight * spread)) for weight in RELATIVE_WEIGHTS]
        recalls = [measure_recalls(candidates, pairs, fusion, depth) for fusion in fusions]
        smoothed = smooth([float(recall.criterion.mean()) for recall in recalls])
        index = int(smoothed.argmax())
        if best is None or smoothed[index] > best[0]:
            best = float(smoothed[index]), fusions[index], recalls[index]
    assert best is not None
    return best[1:]


def round_weight(weight: float) -> float:
    """Round to three significant digits, as the weight is printed and stored."""
    return float(f"{weight:.3g}")
