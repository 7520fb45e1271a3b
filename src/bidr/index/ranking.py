"""The best of scored documents: compiled, as a query ranks a thousand of them and numpy's steps would each cost more."""

from typing import Any

import numpy as np

from bidr.codes.codebooks import Floats
from bidr.index.engines.base import Rows
from bidr.index.engines.compiled import compiled
from bidr.index.engines.keep import LAST_ROW, keep_from, key_of, kth_largest


def best(scores: Floats, places: Rows, k: int) -> tuple[Rows, Floats]:
    """Where the k best are and what they score, equal ones by place. Where fewer have scores, the next follow: -inf."""
    order, found = _in_order(np.sort(_best_keys(scores, k)), scores, places, k)
    return order, found


@compiled
def _best_keys(scores: Any, k: int) -> Any:
    """Keys of the k best, and of all that score as the last of them: the score above, the position below."""
    keys, count = np.empty(len(scores), dtype=np.uint64), len(scores)
    bits = (scores + np.float32(0)).view(np.uint32)  # -0 becomes 0
    for place in range(count):
        keys[place] = key_of(bits[place], place)
    if count > k:
        count = keep_from(keys, count, kth_largest(keys, count, k) & ~LAST_ROW)
    return keys[:count]


@compiled
def _in_order(keys: Any, scores: Any, places: Any, k: int) -> tuple[Any, Any]:
    """Positions and scores of sorted keys from the last on; among equal scores the lower place comes first."""
    count = len(keys)
    order, found = np.arange(max(k, count)), np.full(k, -np.inf, dtype=np.float32)
    for number in range(count):
        here = np.int64(LAST_ROW - (keys[count - 1 - number] & LAST_ROW))
        at = number
        while at and scores[order[at - 1]] == scores[here] and places[order[at - 1]] > places[here]:
            order[at] = order[at - 1]
            at -= 1
        order[at] = here
    for number in range(min(k, count)):
        found[number] = scores[order[number]]
    return order[:k], found
