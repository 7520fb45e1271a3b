"""The walk over a graph of codes, compiled."""

from typing import Any

import numpy as np

from bidr.compiled import compiled
from bidr.index.engines.arrange import GROUP
from bidr.index.engines.keep import LAST_ROW, key_of
from bidr.index.engines.scoring import row_score

ONE = np.uint32(1)
MOST_LINKS = 256


@compiled()
def walk(codes: Any, table: Any, links: Any, entries: Any, starts: int, ef: int, allowed: Any) -> Any:
    """Keys of the `ef` best allowed documents that a walk meets, unsorted; how many it compared, and went on from.

    It goes on from the best document that it has not gone on from, until that is worse than all `ef` it keeps. Links
    are as `linking.pack_links` writes them: each leads to a group, all of whose documents are compared.
    """
    score = np.empty(1, dtype=np.float32)
    bits = score.view(np.uint32)
    flat, numbers, books = codes.reshape(-1), table.reshape(-1), np.uint64(codes.shape[1])
    near, width, count = links.reshape(-1), links.shape[1], len(codes)
    seen = np.zeros((count // GROUP + 32) // 32, dtype=np.uint32)
    ahead, waiting = np.empty(4 * ef + GROUP * (width + starts), dtype=np.uint64), 0
    best, kept, compared, passed = np.empty(ef, dtype=np.uint64), 0, len(entries), 0
    groups, found = _first_groups(flat, numbers, books, entries, starts)
    while True:
        for number in range(found):
            group = groups[number]
            word, bit = group >> 5, ONE << np.uint32(group & 31)
            if seen[word] & bit:
                continue
            seen[word] |= bit
            if waiting + GROUP > len(ahead):
                more = np.empty(2 * len(ahead), dtype=np.uint64)
                more[:waiting] = ahead[:waiting]
                ahead = more
            for row in range(GROUP * group, min(GROUP * group + GROUP, count)):
                score[0] = row_score(flat, numbers, books, row)
                compared += 1
                met = key_of(bits[0], row)
                if kept < ef or met > best[0]:
                    waiting = _push(ahead, waiting, ~met)
                    if _is_allowed(allowed, row):
                        kept = _keep(best, kept, met)
        if not waiting or (kept == ef and ~ahead[0] < best[0]):
            return best[:kept], compared, passed
        here = np.int64(LAST_ROW - (~ahead[0] & LAST_ROW))
        waiting = _pop(ahead, waiting)
        passed += 1
        found = _read(near, here * width, width, groups)


@compiled()
def _first_groups(flat: Any, numbers: Any, books: Any, entries: Any, starts: int) -> tuple[Any, int]:
    """The groups of the best entries, with room for those of a document's links."""
    score = np.empty(1, dtype=np.float32)
    bits, keys = score.view(np.uint32), np.empty(len(entries), dtype=np.uint64)
    for place in range(len(entries)):
        score[0] = row_score(flat, numbers, books, entries[place])
        keys[place] = key_of(bits[0], entries[place])
    keys.sort()
    groups, found = np.empty(max(starts, MOST_LINKS), dtype=np.int64), 0
    for key in keys[-starts:]:
        groups[found] = np.int64(LAST_ROW - (key & LAST_ROW)) // GROUP
        found += 1
    return groups, found


@compiled()
def _read(near: Any, start: int, width: int, groups: Any) -> int:
    """Put the groups that a document links to into `groups`; how many they are."""
    at, stop, group, found = np.uint64(start), np.uint64(start + width), np.int64(-1), 0
    while at < stop:
        byte = near[at]
        if byte == 0:
            break
        at += np.uint64(1)
        difference, shift = np.int64(byte & np.uint8(127)), np.int64(7)
        while byte & np.uint8(128):
            byte = near[at]
            at += np.uint64(1)
            difference |= np.int64(byte & np.uint8(127)) << shift
            shift += 7
        group += difference
        groups[found] = group
        found += 1
    return found


@compiled()
def _is_allowed(allowed: Any, row: Any) -> bool:
    return len(allowed) == 0 or (allowed[row >> 5] >> np.uint32(row & 31)) & ONE != 0


@compiled()
def _keep(heap: Any, count: int, key: Any) -> int:
    """Put a key among the kept ones, of which the smallest stands first and goes where there is no room."""
    if count < len(heap):
        return _push(heap, count, key)
    if key > heap[0]:
        _sink(heap, count, key)
    return count


@compiled()
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


@compiled()
def _pop(heap: Any, count: int) -> int:
    """Take the smallest away."""
    count -= 1
    if count:
        _sink(heap, count, heap[count])
    return count


@compiled()
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
