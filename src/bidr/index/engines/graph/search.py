"""Greedy best-first search in a graph of codes."""

from typing import Any

import numpy as np

from bidr.index.builder.reorder import GROUP
from bidr.index.engines.adc_kernels import score_row
from bidr.index.engines.graph.adjacency import read_links
from bidr.index.engines.graph.construction import MAX_LINKS, NODE
from bidr.index.engines.topk import LAST_ROW, make_key
from bidr.index.vectors.scoring_kernels import CACHE_LINE, prefetch
from bidr.utils.jit import njit_cached

ONE = np.uint32(1)
U = np.uint64


@njit_cached()
def walk(
    codes: Any,
    table: Any,
    links: Any,
    entries: Any,
    starts: int,
    ef_search: int,
    allowed: Any,
    min_allowed: int,
    max_expanded: int,
) -> Any:
    """Return keys of the best `ef_search` allowed documents, unsorted; the comparisons made; the groups expanded.

    The best group that is not yet expanded, ranked by its best document, is expanded until it is worse than all
    `ef_search` results. Links are packed as by `pack_links`; each leads to a group, whose documents are all compared.

    Returns no keys where it gives up: fewer than `min_allowed` of the best quarter of the entries are allowed, or
    `max_expanded` groups were expanded. Returns -1 expanded groups for a link to a group out of range.
    """
    score = np.empty(1, dtype=np.float32)
    bits = score.view(np.uint32)
    flat, scores, books = codes.reshape(-1), table.reshape(-1), U(codes.shape[1])
    flat_links, width, count = links.reshape(-1), links.shape[1], len(codes)
    visited = np.zeros((count // GROUP + 32) // 32, dtype=np.uint32)
    queue, queue_size = np.empty(4 * ef_search + MAX_LINKS + starts, dtype=np.uint64), 0
    results, result_count, compared, expanded = np.empty(ef_search, dtype=np.uint64), 0, len(entries), 0
    groups, group_count, allowed_count = _select_entry_groups(flat, scores, books, entries, starts, allowed)
    if allowed_count < min_allowed:
        return results[:0], compared, expanded
    while True:
        group_count = _drop_visited(
            groups, group_count, visited, flat, U(GROUP) * books, U((count + GROUP - 1) // GROUP)
        )
        if group_count < 0:
            return results[:0], compared, -1
        if queue_size + group_count > len(queue):
            grown = np.empty(2 * len(queue), dtype=np.uint64)
            grown[:queue_size] = queue[:queue_size]
            queue = grown
        for group in groups[:group_count]:
            best_key = U(0)
            for row in range(GROUP * group, min(GROUP * group + GROUP, count)):
                score[0] = score_row(flat, scores, books, row)
                compared += 1
                key = make_key(bits[0], row)
                best_key = max(best_key, key)
                if (result_count < ef_search or key > results[0]) and _is_allowed(allowed, row):
                    result_count = _push_bounded(results, result_count, key)
            if result_count < ef_search or best_key >= results[0]:
                queue_size = _push(queue, queue_size, ~best_key)
        if not queue_size or (result_count == ef_search and ~queue[0] < results[0]):
            return results[:result_count], compared, expanded
        if expanded == max_expanded:
            return results[:0], compared, expanded
        node = np.int64(LAST_ROW - (~queue[0] & LAST_ROW)) // NODE
        queue_size = _pop(queue, queue_size)
        expanded += 1
        group_count = read_links(flat_links, node * width, width, groups)


@njit_cached()
def _select_entry_groups(
    flat: Any, scores: Any, books: Any, entries: Any, starts: int, allowed: Any
) -> tuple[Any, int, int]:
    """Return the groups of the best entries, and how many of the best quarter are allowed."""
    score = np.empty(1, dtype=np.float32)
    bits, keys = score.view(np.uint32), np.empty(len(entries), dtype=np.uint64)
    for place in range(len(entries)):
        score[0] = score_row(flat, scores, books, entries[place])
        keys[place] = make_key(bits[0], entries[place])
    keys.sort()
    groups, size = np.empty(max(starts, MAX_LINKS), dtype=np.int64), 0
    for key in keys[-starts:]:
        groups[size] = np.int64(LAST_ROW - (key & LAST_ROW)) // GROUP
        size += 1
    allowed_count = 0
    for key in keys[len(keys) - len(keys) // 4 :]:
        allowed_count += _is_allowed(allowed, np.int64(LAST_ROW - (key & LAST_ROW)))
    return groups, size, allowed_count


@njit_cached()
def _drop_visited(groups: Any, group_count: int, visited: Any, flat: Any, size: Any, group_total: Any) -> int:
    """Move unvisited groups to the front and prefetch their codes; returns their number.

    -1 for a group out of range: links come from a file, and decoding all of them takes longer than opening it.
    """
    kept_count = 0
    for number in range(group_count):
        group = groups[number]
        if U(group) >= group_total:
            return -1
        word, bit = group >> 5, ONE << np.uint32(group & 31)
        if visited[word] & bit:
            continue
        visited[word] |= bit
        groups[kept_count] = group
        kept_count += 1
        start = U(group) * size
        for line in range(U(0), size, U(CACHE_LINE)):
            prefetch(flat, start + line)
        prefetch(flat, start + size - U(1))
    return kept_count


@njit_cached()
def _is_allowed(allowed: Any, row: Any) -> bool:
    return len(allowed) == 0 or (allowed[row >> 5] >> np.uint32(row & 31)) & ONE != 0


@njit_cached()
def _push_bounded(heap: Any, count: int, key: Any) -> int:
    """Push a key onto a min-heap of fixed size, replacing the smallest if full."""
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
    """Remove the smallest key."""
    count -= 1
    if count:
        _replace_root(heap, count, heap[count])
    return count


@njit_cached()
def _replace_root(heap: Any, count: int, key: Any) -> None:
    """Replace the smallest key."""
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
