"""Top-k selection. A score and a row form one uint64 key: the score's bits above, the row's complement below.

One comparison orders both, and equal scores rank by row.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from bidr.utils.jit import njit_cached

Keys = npt.NDArray[np.uint64]

ROW_BITS = np.uint64(32)
LAST_ROW = np.uint64(0xFFFFFFFF)
SIGN = np.uint32(0x80000000)
BINS, MAX_SELECTED = 1_024, 128


@njit_cached()
def make_key(score: Any, row: Any) -> Any:
    """Make the key of a row and a float32 score, given as its bits (uint32)."""
    bits = np.uint32(score)
    bits = ~bits if bits & SIGN else bits | SIGN
    return (np.uint64(bits) << ROW_BITS) | (LAST_ROW - np.uint64(row))


def sort_keys(keys: Keys, k: int) -> tuple[Any, Any]:
    """Sort keys in place and return scores and rows of the k largest, best first.

    numpy's sort is ten times as fast as numba's.
    """
    keys.sort()
    scores, rows = split_keys(keys, k)
    return scores, rows


@njit_cached()
def split_keys(keys: Any, k: int) -> tuple[Any, Any]:
    """Split the k largest of sorted keys into scores and rows, best first."""
    count = min(k, len(keys))
    bits, rows = np.zeros(k, dtype=np.uint32), np.full(k, -1, dtype=np.int64)
    for place in range(count):
        key = keys[len(keys) - 1 - place]
        high = np.uint32(key >> ROW_BITS)
        bits[place] = high ^ SIGN if high & SIGN else ~high
        rows[place] = np.int64(LAST_ROW - (key & LAST_ROW))
    scores = bits.view(np.float32)
    scores[count:] = -np.inf
    return scores, rows


@njit_cached()
def find_kth_largest(keys: Any, count: int, k: int) -> Any:
    """Find the k-th largest (k >= 1) of the first `count` keys without changing them.

    Radix selection by bins between the smallest and the largest key: no branch depends on a key, which makes it several
    times as fast as quickselect.
    """
    work, counts = keys[:count].copy(), np.empty(BINS, dtype=np.int64)
    while count > MAX_SELECTED:
        smallest, shift = _choose_bins(work[:count])
        counts[:] = 0
        for place in range(count):
            counts[(work[place] - smallest) >> shift] += 1
        at, above = BINS - 1, 0
        while above + counts[at] < k:
            above += counts[at]
            at -= 1
        if shift == 0:
            return smallest + np.uint64(at)
        remaining = 0
        for place in range(count):
            key = work[place]
            work[remaining] = key
            remaining += ((key - smallest) >> shift) == np.uint64(at)
        count, k = remaining, k - above
    return _select_kth(work, count, k)


@njit_cached()
def _choose_bins(keys: Any) -> Any:
    """Return the smallest key and the right shift that maps differences from it to bins."""
    smallest, largest = keys[0], keys[0]
    for key in keys:
        smallest, largest = min(smallest, key), max(largest, key)
    shift = np.uint64(0)
    while (largest - smallest) >> shift >= np.uint64(BINS):
        shift += np.uint64(1)
    return smallest, shift


@njit_cached()
def _select_kth(work: Any, count: int, k: int) -> Any:
    """Select the k-th largest of a few keys by quickselect, which reorders them."""
    low, high, target = 0, count - 1, count - k
    while low < high:
        pivot = _find_median(work[low], work[(low + high) // 2], work[high])
        lower, upper = low, high
        while lower <= upper:
            while work[lower] < pivot:
                lower += 1
            while work[upper] > pivot:
                upper -= 1
            if lower <= upper:
                work[lower], work[upper] = work[upper], work[lower]
                lower += 1
                upper -= 1
        if target <= upper:
            high = upper
        elif target >= lower:
            low = lower
        else:
            break
    return work[target]


@njit_cached()
def keep_above(keys: Any, count: int, bound: Any) -> int:
    """Move keys not below `bound` to the front; returns their number."""
    size = 0
    for place in range(count):
        key = keys[place]
        if key >= bound:
            keys[size] = key
            size += 1
    return size


@njit_cached()
def grow_keys(keys: Any, count: int) -> Any:
    """Double the array if more than half of it is used (many equal scores, none of which can be dropped)."""
    if 2 * count <= len(keys):
        return keys
    grown = np.empty(2 * len(keys), dtype=np.uint64)
    grown[:count] = keys[:count]
    return grown


@njit_cached()
def _find_median(a: Any, b: Any, c: Any) -> Any:
    return max(min(a, b), min(max(a, b), c))


@njit_cached()
def rank_scores(scores: Any, places: Any, order: Any, top_scores: Any) -> bool:
    """Fill `order` with indices of the best scores and `top_scores` with these; returns whether any are equal.

    Equal scores rank by place. Where there are fewer scores than requested, the remaining ones are -inf. Compiled
    because each numpy step would cost more than its work on a thousand scores.
    """
    keys, k = _select_best_keys(scores, len(order)), len(order)
    keys.sort()
    count, ties = len(keys), False
    ranking = np.empty(count, dtype=np.int64)
    for number in range(count):
        index = np.int64(LAST_ROW - (keys[count - 1 - number] & LAST_ROW))
        slot = number
        while slot and scores[ranking[slot - 1]] == scores[index] and places[ranking[slot - 1]] > places[index]:
            ranking[slot] = ranking[slot - 1]
            slot -= 1
        ranking[slot] = index
        ties = ties or (number > 0 and keys[count - number] >> 32 == keys[count - 1 - number] >> 32)
    for number in range(k):
        order[number] = ranking[number] if number < count else number
        top_scores[number] = scores[ranking[number]] if number < count else -np.inf
    return ties


@njit_cached()
def _select_best_keys(scores: Any, k: int) -> Any:
    """Return keys of the k best scores and of all ties with the last."""
    keys, count = np.empty(len(scores), dtype=np.uint64), len(scores)
    bits = (scores + np.float32(0)).view(np.uint32)  # -0 becomes 0
    for place in range(count):
        keys[place] = make_key(bits[place], place)
    if count > k:
        count = keep_above(keys, count, find_kth_largest(keys, count, k) & ~LAST_ROW)
    return keys[:count]
