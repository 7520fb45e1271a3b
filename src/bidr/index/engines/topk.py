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
    found = min(k, len(keys))
    bits, rows = np.zeros(k, dtype=np.uint32), np.full(k, -1, dtype=np.int64)
    for place in range(found):
        key = keys[len(keys) - 1 - place]
        high = np.uint32(key >> ROW_BITS)
        bits[place] = high ^ SIGN if high & SIGN else ~high
        rows[place] = np.int64(LAST_ROW - (key & LAST_ROW))
    scores = bits.view(np.float32)
    scores[found:] = -np.inf
    return scores, rows


@njit_cached()
def find_kth_largest(keys: Any, count: int, k: int) -> Any:
    """The k-th largest of the first `count` keys, k from 1; they are left as they are.

    Counted into bins between the least and the largest, of which one is looked at further: no branch depends on a key,
    which makes it several times as fast as exchanging keys about a pivot.
    """
    work, counts = keys[:count].copy(), np.empty(BINS, dtype=np.int64)
    while count > MAX_SELECTED:
        least, shift = _choose_bins(work[:count])
        counts[:] = 0
        for place in range(count):
            counts[(work[place] - least) >> shift] += 1
        at, above = BINS - 1, 0
        while above + counts[at] < k:
            above += counts[at]
            at -= 1
        if shift == 0:
            return least + np.uint64(at)
        kept = 0
        for place in range(count):
            key = work[place]
            work[kept] = key
            kept += ((key - least) >> shift) == np.uint64(at)
        count, k = kept, k - above
    return _select_kth(work, count, k)


@njit_cached()
def _choose_bins(keys: Any) -> Any:
    """The least key, and by how many bits its differences from the others are cut to number the bins."""
    least, most = keys[0], keys[0]
    for key in keys:
        least, most = min(least, key), max(most, key)
    shift = np.uint64(0)
    while (most - least) >> shift >= np.uint64(BINS):
        shift += np.uint64(1)
    return least, shift


@njit_cached()
def _select_kth(work: Any, count: int, k: int) -> Any:
    """The same of a few, which are moved about."""
    low, high, wanted = 0, count - 1, count - k
    while low < high:
        pivot = _find_median(work[low], work[(low + high) // 2], work[high])
        left, right = low, high
        while left <= right:
            while work[left] < pivot:
                left += 1
            while work[right] > pivot:
                right -= 1
            if left <= right:
                work[left], work[right] = work[right], work[left]
                left += 1
                right -= 1
        if wanted <= right:
            high = right
        elif wanted >= left:
            low = left
        else:
            break
    return work[wanted]


@njit_cached()
def keep_above(keys: Any, count: int, least: Any) -> int:
    """Move the keys that are not below `least` to the front; how many they are."""
    kept = 0
    for place in range(count):
        key = keys[place]
        if key >= least:
            keys[kept] = key
            kept += 1
    return kept


@njit_cached()
def grow_keys(keys: Any, count: int) -> Any:
    """The keys, in twice the space where half of it is taken (many equal scores: none of them can go)."""
    if 2 * count <= len(keys):
        return keys
    more = np.empty(2 * len(keys), dtype=np.uint64)
    more[:count] = keys[:count]
    return more


@njit_cached()
def _find_median(a: Any, b: Any, c: Any) -> Any:
    return max(min(a, b), min(max(a, b), c))
