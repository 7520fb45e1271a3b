"""The walk over a graph of codes, compiled."""

from typing import Any

import numpy as np

from bidr.index.builder.reorder import GROUP
from bidr.index.engines.adc_kernels import score_row
from bidr.index.engines.graph.adjacency import read_links
from bidr.index.engines.graph.build import MAX_LINKS, NODE
from bidr.index.engines.topk import LAST_ROW, make_key
from bidr.index.vectors.scoring_kernels import CACHE_LINE, prefetch
from bidr.utils.jit import njit_cached

ONE = np.uint32(1)
U = np.uint64


@njit_cached()
def walk(
    codes: Any, table: Any, links: Any, entries: Any, starts: int, ef: int, allowed: Any, least: int, most: int
) -> Any:
    """Keys of the `ef` best allowed documents that a walk meets, unsorted; how many it compared; groups gone on from.

    Where a link leads to a group that is not there, -1 is what it says of the groups gone on from.

    None where it gives up: of the best quarter of the entries fewer than `least` are allowed, or it went on from `most`
    groups and had not come to an end.

    It goes on from the node of the best group that it has not gone on from, as good as its best document, until
    that is worse than all `ef` documents it keeps. Links are as `packed` writes them: each leads to a group, which is
    compared whole.
    """
    score = np.empty(1, dtype=np.float32)
    bits = score.view(np.uint32)
    flat, numbers, books = codes.reshape(-1), table.reshape(-1), U(codes.shape[1])
    near, width, count = links.reshape(-1), links.shape[1], len(codes)
    seen = np.zeros((count // GROUP + 32) // 32, dtype=np.uint32)
    ahead, waiting = np.empty(4 * ef + MAX_LINKS + starts, dtype=np.uint64), 0
    best, kept, compared, passed = np.empty(ef, dtype=np.uint64), 0, len(entries), 0
    groups, found, there = _select_entry_groups(flat, numbers, books, entries, starts, allowed)
    if there < least:
        return best[:0], compared, passed
    while True:
        found = _drop_visited(groups, found, seen, flat, U(GROUP) * books, U((count + GROUP - 1) // GROUP))
        if found < 0:
            return best[:0], compared, -1
        if waiting + found > len(ahead):
            more = np.empty(2 * len(ahead), dtype=np.uint64)
            more[:waiting] = ahead[:waiting]
            ahead = more
        for group in groups[:found]:
            first = U(0)
            for row in range(GROUP * group, min(GROUP * group + GROUP, count)):
                score[0] = score_row(flat, numbers, books, row)
                compared += 1
                met = make_key(bits[0], row)
                first = max(first, met)
                if (kept < ef or met > best[0]) and _is_allowed(allowed, row):
                    kept = _push_bounded(best, kept, met)
            if kept < ef or first >= best[0]:
                waiting = _push(ahead, waiting, ~first)
        if not waiting or (kept == ef and ~ahead[0] < best[0]):
            return best[:kept], compared, passed
        if passed == most:
            return best[:0], compared, passed
        here = np.int64(LAST_ROW - (~ahead[0] & LAST_ROW)) // NODE
        waiting = _pop(ahead, waiting)
        passed += 1
        found = read_links(near, here * width, width, groups)


@njit_cached()
def _select_entry_groups(
    flat: Any, numbers: Any, books: Any, entries: Any, starts: int, allowed: Any
) -> tuple[Any, int, int]:
    """The groups of the best entries, with room for those that a group links to; how many of the best quarter may be
    found."""
    score = np.empty(1, dtype=np.float32)
    bits, keys = score.view(np.uint32), np.empty(len(entries), dtype=np.uint64)
    for place in range(len(entries)):
        score[0] = score_row(flat, numbers, books, entries[place])
        keys[place] = make_key(bits[0], entries[place])
    keys.sort()
    groups, found = np.empty(max(starts, MAX_LINKS), dtype=np.int64), 0
    for key in keys[-starts:]:
        groups[found] = np.int64(LAST_ROW - (key & LAST_ROW)) // GROUP
        found += 1
    there = 0
    for key in keys[len(keys) - len(keys) // 4 :]:
        there += _is_allowed(allowed, np.int64(LAST_ROW - (key & LAST_ROW)))
    return groups, found, there


@njit_cached()
def _drop_visited(groups: Any, found: int, seen: Any, flat: Any, size: Any, there: Any) -> int:
    """Move the groups that were not met before to the front, and ask memory for their codes; how many they are.

    -1 where one is none of those that are there: links come from a file, and decoding all of them takes longer than
    opening it.
    """
    fresh = 0
    for number in range(found):
        group = groups[number]
        if U(group) >= there:
            return -1
        word, bit = group >> 5, ONE << np.uint32(group & 31)
        if seen[word] & bit:
            continue
        seen[word] |= bit
        groups[fresh] = group
        fresh += 1
        start = U(group) * size
        for line in range(U(0), size, U(CACHE_LINE)):
            prefetch(flat, start + line)
        prefetch(flat, start + size - U(1))
    return fresh


@njit_cached()
def _is_allowed(allowed: Any, row: Any) -> bool:
    return len(allowed) == 0 or (allowed[row >> 5] >> np.uint32(row & 31)) & ONE != 0


@njit_cached()
def _push_bounded(heap: Any, count: int, key: Any) -> int:
    """Put a key among the kept ones, of which the smallest stands first and goes where there is no room."""
    if count < len(heap):
        return _push(heap, count, key)
    if key > heap[0]:
        _replace_root(heap, count, key)
    return count


@njit_cached()
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


@njit_cached()
def _pop(heap: Any, count: int) -> int:
    """Take the smallest away."""
    count -= 1
    if count:
        _replace_root(heap, count, heap[count])
    return count


@njit_cached()
def _replace_root(heap: Any, count: int, key: Any) -> None:
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
