"""BM25 over postings in blocks of positions, so that the memory of a query does not grow with the index."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bidr.index.lexical.analyzer import K1, B
from bidr.index.lexical.postings import U8, U32, Postings
from bidr.utils.array_types import Bitmap, Floats, Rows
from bidr.utils.jit import njit_cached

POSITIONS_PER_BLOCK = 16_384
SPARE_HITS = 4_096


class WeightedTerms(NamedTuple):
    """Terms of a query: the ranges of their postings, and their weights (idf times frequency in the query)."""

    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    weights: Floats


def compute_idf(documents: int, frequencies: npt.NDArray[np.int64]) -> Floats:
    """Return the inverse document frequency of terms (Lucene's formula)."""
    return np.log1p((documents - frequencies + 0.5) / (frequencies + 0.5)).astype(np.float32)


def search_postings(
    postings: Postings, query: WeightedTerms, mean_length: float, k: int, allowed: Bitmap | None, targets: Rows
) -> tuple[Floats, Rows, Floats] | None:
    """Search postings for the best k positions.

    Args:
        allowed: one bit for each position that may be found; None: all.
        targets: further positions to score.

    Returns:
        Scores and positions of at most k documents, best first, equal scores by position; scores of the targets.
        None if the postings are damaged.
    """
    bits = np.zeros(0, dtype=np.uint8) if allowed is None else allowed
    ascending = np.argsort(targets)
    slope, base = np.float32(K1 * B / mean_length), np.float32(K1 * (1 - B))
    arrays = (postings.positions, postings.counts, postings.lengths)
    scores, positions, sorted_scores, is_valid = _search(*arrays, *query, slope, base, bits, targets[ascending], k)
    if not is_valid:
        return None
    target_scores = np.empty(len(targets), dtype=np.float32)
    target_scores[ascending] = sorted_scores
    return scores, positions, target_scores


@njit_cached()
def _search(
    positions: U32,
    counts: U8,
    lengths: U32,
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    weights: Floats,
    slope: np.float32,
    base: np.float32,
    allowed: Bitmap,
    targets: Rows,
    k: int,
) -> tuple[Floats, Rows, Floats, bool]:
    count, cursors = len(lengths), starts.copy()
    sums, touched = np.zeros(POSITIONS_PER_BLOCK, np.float32), np.empty(POSITIONS_PER_BLOCK, np.int64)
    scores, hits = (
        np.empty(k + SPARE_HITS + POSITIONS_PER_BLOCK, np.float32),
        np.empty(k + SPARE_HITS + POSITIONS_PER_BLOCK, np.int64),
    )
    target_scores, target, size, threshold = np.zeros(len(targets), np.float32), 0, 0, np.float32(0)
    for first in range(0, count, POSITIONS_PER_BLOCK):
        last = min(first + POSITIONS_PER_BLOCK, count)
        count_touched = _accumulate(
            positions, counts, lengths, cursors, ends, weights, slope, base, first, last, sums, touched
        )
        if count_touched < 0:
            return scores[:0], hits[:0], target_scores, False
        while target < len(targets) and targets[target] < last:
            target_scores[target] = sums[targets[target] - first]
            target += 1
        size = _collect(touched[:count_touched], first, sums, allowed, threshold, scores, hits, size)
        if size > k + SPARE_HITS:
            size = _keep_best(scores, hits, size, k)
            threshold = scores[size - 1]
    if (cursors < ends).any():
        return scores[:0], hits[:0], target_scores, False
    size = _keep_best(scores, hits, size, k)
    return scores[:size].copy(), hits[:size].copy(), target_scores, True


@njit_cached()
def _accumulate(
    positions: U32,
    counts: U8,
    lengths: U32,
    cursors: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    weights: Floats,
    slope: np.float32,
    base: np.float32,
    first: int,
    last: int,
    sums: Floats,
    touched: Rows,
) -> int:
    """Add the scores of each term for a block of positions, and advance its cursor.

    Returns:
        The number of positions with a score, which `touched` then holds; -1 if the postings are damaged.
    """
    count = 0
    for term in range(len(cursors)):
        at = cursors[term]
        while at < ends[term] and positions[at] < last:
            position, frequency = np.int64(positions[at]), np.float32(counts[at])
            # A damaged file must not lead outside of the arrays.
            if position < first or frequency == 0:
                return -1
            if sums[position - first] == 0:
                if count == len(touched):
                    return -1
                touched[count] = position
                count += 1
            sums[position - first] += (
                weights[term] * frequency / (frequency + base + slope * np.float32(lengths[position]))
            )
            at += 1
        cursors[term] = at
    return count


@njit_cached()
def _collect(
    touched: Rows,
    first: int,
    sums: Floats,
    allowed: Bitmap,
    threshold: np.float32,
    scores: Floats,
    hits: Rows,
    size: int,
) -> int:
    """Clear the sums of touched positions; append the allowed ones above the threshold to the hits."""
    for position in touched:
        score = sums[position - first]
        sums[position - first] = 0
        if score > threshold and (len(allowed) == 0 or allowed[position >> 3] >> (position & 7) & 1):
            scores[size], hits[size] = score, position
            size += 1
    return size


@njit_cached()
def _keep_best(scores: Floats, positions: Rows, size: int, k: int) -> int:
    """Move the best k to the front, sorted by score and position. Only these are sorted, which is cheaper."""
    if size > k:
        threshold = np.partition(scores[:size], size - k)[size - k]
        equal = np.sort(positions[:size][scores[:size] == threshold])
        above = 0
        for number in range(size):
            if scores[number] > threshold:
                scores[above], positions[above] = scores[number], positions[number]
                above += 1
        scores[above:k] = threshold
        positions[above:k] = equal[: k - above]
        size = k
    by_position = np.argsort(positions[:size])
    order = by_position[np.argsort(-scores[by_position], kind="mergesort")]
    scores[:size], positions[:size] = scores[order], positions[order]
    return size
