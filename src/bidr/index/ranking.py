"""The best of scored documents: compiled, as numpy's steps would each cost more than what they do for a thousand."""

from typing import Any

import numpy as np

from bidr.index.engines.topk import LAST_ROW, find_kth_largest, keep_above, make_key
from bidr.utils.jit import njit_cached


@njit_cached()
def rank_scores(scores: Any, places: Any, order: Any, found: Any) -> bool:
    """Fill `order` with where the best are and `found` with what they score; whether some of these are equal.

    Equal ones go by place. Where fewer have scores than are wanted, the next follow: -inf.
    """
    keys, wanted = _select_best_keys(scores, len(order)), len(order)
    keys.sort()
    count, ties = len(keys), False
    at_first = np.empty(count, dtype=np.int64)
    for number in range(count):
        here = np.int64(LAST_ROW - (keys[count - 1 - number] & LAST_ROW))
        at = number
        while at and scores[at_first[at - 1]] == scores[here] and places[at_first[at - 1]] > places[here]:
            at_first[at] = at_first[at - 1]
            at -= 1
        at_first[at] = here
        ties = ties or (number > 0 and keys[count - number] >> 32 == keys[count - 1 - number] >> 32)
    for number in range(wanted):
        order[number] = at_first[number] if number < count else number
        found[number] = scores[at_first[number]] if number < count else -np.inf
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
