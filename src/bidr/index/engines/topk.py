"""Keeping the best of what a scan comes by, compiled. A score and a row are one number, so that one comparison orders
both: the score's bits above, the row's complement below. Equal scores thus go to the lower row."""

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
    """A float32 score and a row as a number that sorts as they do; `score` is given as its bits (uint32)."""
    bits = np.uint32(score)
    bits = ~bits if bits & SIGN else bits | SIGN
    return (np.uint64(bits) << ROW_BITS) | (LAST_ROW - np.uint64(row))


def sort_keys(keys: Keys, k: int) -> tuple[Any, Any]:
    """Scores and rows of the k largest keys, largest first; sorted by numpy, which is ten times as fast as numba.

    The keys are sorted where they are.
    """
    keys.sort()
    scores, rows = split_keys(keys, k)
    return scores, rows


@njit_cached()
def split_keys(keys: Any, k: int) -> tuple[Any, Any]:
    """Scores and rows of the k largest keys, largest first; keys must be sorted."""
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
    """The k-th largest of the first `count` keys, k from 1; they are left as they are.

    Counted into bins between the least and the largest, of which one is looked at further: no branch depends on a key,
    which makes it several times as fast as exchanging keys about a pivot.
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
    """The least key, and by how many bits its differences from the others are cut to number the bins."""
    smallest, largest = keys[0], keys[0]
    for key in keys:
        smallest, largest = min(smallest, key), max(largest, key)
    shift = np.uint64(0)
    while (largest - smallest) >> shift >= np.uint64(BINS):
        shift += np.uint64(1)
    return smallest, shift


@njit_cached()
def _select_kth(work: Any, count: int, k: int) -> Any:
    """The same of a few, which are moved about."""
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
    """Move the keys that are not below `least` to the front; how many they are."""
    size = 0
    for place in range(count):
        key = keys[place]
        if key >= bound:
            keys[size] = key
            size += 1
    return size


@njit_cached()
def grow_keys(keys: Any, count: int) -> Any:
    """The keys, in twice the space where half of it is taken (many equal scores: none of them can go)."""
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
    """Fill `order` with where the best are and `found` with what they score; whether some of these are equal.

    Equal ones go by place. Where fewer have scores than are wanted, the next follow: -inf.
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
    """Keys of the k best, and of all that score as the last of them: the score above, the position below."""
    keys, count = np.empty(len(scores), dtype=np.uint64), len(scores)
    bits = (scores + np.float32(0)).view(np.uint32)  # -0 becomes 0
    for place in range(count):
        keys[place] = make_key(bits[place], place)
    if count > k:
        count = keep_above(keys, count, find_kth_largest(keys, count, k) & ~LAST_ROW)
    return keys[:count]
