"""The walk over a graph of codes, compiled."""

from typing import Any

import numpy as np

from bidr.index.engines.compiled import compiled
from bidr.index.engines.keep import LAST_ROW, key_of
from bidr.index.engines.scoring import row_score

ONE = np.uint32(1)


@compiled
def walk(codes: Any, table: Any, links: Any, entries: Any, starts: int, ef: int, allowed: Any) -> Any:
    """Keys of the `ef` best allowed documents that a walk meets, unsorted.

    It goes on from the best document that it has not gone on from, until that is worse than all `ef` it keeps.
    """
    flat, numbers, books = codes.reshape(-1), table.reshape(-1), np.uint64(codes.shape[1])
    score = np.empty(1, dtype=np.float32)
    bits = score.view(np.uint32)
    seen = np.zeros((len(codes) + 31) // 32, dtype=np.uint32)
    ahead, waiting = np.empty(4 * ef + links.shape[1] + starts, dtype=np.uint64), 0
    best, kept = np.empty(ef, dtype=np.uint64), 0
    first = np.empty(len(entries), dtype=np.uint64)
    for place in range(len(entries)):
        score[0] = row_score(flat, numbers, books, entries[place])
        first[place] = key_of(bits[0], entries[place])
    first.sort()
    for key in first[-starts:]:
        row = np.int64(LAST_ROW - (key & LAST_ROW))
        seen[row >> 5] |= ONE << np.uint32(row & 31)
        waiting = _push(ahead, waiting, ~key)
        if _is_allowed(allowed, row):
            kept = _keep(best, kept, key)
    while waiting:
        key = ~ahead[0]
        if kept == ef and key < best[0]:
            break
        waiting = _pop(ahead, waiting)
        here = np.int64(LAST_ROW - (key & LAST_ROW))
        for link in range(links.shape[1]):
            row = np.int64(links[here, link, 0]) | np.int64(links[here, link, 1]) << 8
            row |= np.int64(links[here, link, 2]) << 16
            if links.shape[2] == 4:
                row |= np.int64(links[here, link, 3]) << 24
            word, bit = row >> 5, ONE << np.uint32(row & 31)
            if seen[word] & bit:
                continue
            seen[word] |= bit
            score[0] = row_score(flat, numbers, books, row)
            met = key_of(bits[0], row)
            if kept < ef or met > best[0]:
                if waiting == len(ahead):
                    more = np.empty(2 * waiting, dtype=np.uint64)
                    more[:waiting] = ahead
                    ahead = more
                waiting = _push(ahead, waiting, ~met)
                if _is_allowed(allowed, row):
                    kept = _keep(best, kept, met)
    return best[:kept]


@compiled
def _is_allowed(allowed: Any, row: Any) -> bool:
    return len(allowed) == 0 or (allowed[row >> 5] >> np.uint32(row & 31)) & ONE != 0


@compiled
def _keep(heap: Any, count: int, key: Any) -> int:
    """Put a key among the kept ones, of which the smallest stands first and goes where there is no room."""
    if count < len(heap):
        return _push(heap, count, key)
    if key > heap[0]:
        _sink(heap, count, key)
    return count


@compiled
def _push(heap: Any, count: int, key: Any) -> int:
    place = count
    while place:
        above = (place - 1) >> 1
        if heap[above] <= key:
            break
        heap[place] = heap[above]
        place = above
    heap[place] = key
    return count + 1


@compiled
def _pop(heap: Any, count: int) -> int:
    """Take the smallest away."""
    count -= 1
    if count:
        _sink(heap, count, heap[count])
    return count


@compiled
def _sink(heap: Any, count: int, key: Any) -> None:
    """Put a key in the place of the smallest."""
    place = 0
    while True:
        below = 2 * place + 1
        if below >= count:
            break
        if below + 1 < count and heap[below + 1] < heap[below]:
            below += 1
        if heap[below] >= key:
            break
        heap[place] = heap[below]
        place = below
    heap[place] = key
