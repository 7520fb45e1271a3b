"""Locality ordering of documents by recursive bisection.

Near documents get adjacent positions: the delta-coded links of a graph are then small, and the centroid of a block of
documents tells whether to scan it.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from bidr.index.builder.clustering_vectors import VectorInput
from bidr.index.builder.coarse_clustering import Clusters
from bidr.utils.array_types import Floats, Rows
from bidr.utils.cpu_and_heap import count_available_cpus
from bidr.utils.jit import njit_cached
from bidr.utils.prefetch import map_in_order

# Documents that a link leads to together. Their codes of 16 bytes fill one cache line.
GROUP = 4
# Documents that are compared by their mean first when candidates for links are searched.
PIECE = 32
# Rounds in which halves are refined. In the best tenth of a million documents' blocks are .972 of the exact top 100
# without any, .979 with 2, .982 with 5 and .981 with 10 (1,000 lists of vectors).
ROUNDS = 5
# Documents in memory at a time. Longer lists are bisected in pieces of this size: learned lists may be very uneven.
MAX_BATCH_ROWS = 16_384
# The smaller half is pushed last, so the stack is never deeper than this.
MAX_STACK = 128
Range = tuple[int, int]


def order_for_graph(source: VectorInput, clusters: Clusters) -> Iterator[Rows]:
    """Yield rows in the order of their positions: near clusters adjacent, and near documents in groups of GROUP."""
    cluster_order = bisect_rows(clusters.centroids, np.arange(len(clusters.centroids)), 1)
    offsets = clusters.offsets
    ranges = (piece for cluster in cluster_order for piece in _split_range(offsets[cluster], offsets[cluster + 1]))
    return _bisect_ranges(source, ranges, clusters.order, GROUP, 0)


def order_in_blocks(source: VectorInput, offsets: Rows, order: Any, size: int, first: int = 0) -> Iterator[Rows]:
    """Yield rows in the order of their positions: lists unchanged, near documents in the same block of `size`.

    first: resume at this position.
    """
    ranges = (piece for start, stop in pairwise(offsets.tolist()) for piece in _split_range(max(start, first), stop))
    return _bisect_ranges(source, ranges, order, size, ROUNDS)


def sort_centroids(centroids: Floats) -> Floats:
    """Reorder centroids so that near ones are adjacent."""
    return centroids[bisect_rows(centroids, np.arange(len(centroids)), 1)]


def bisect_rows(vectors: Floats, rows: Rows, size: int, rounds: int = 0, offset: int = 0) -> Rows:
    """Order rows by recursive bisection across the longest direction, down to parts of `size`.

    Args:
        vectors: all vectors.
        rows: the rows to order.
        size: the size of the smallest parts.
        rounds: how often to refine the direction: from the mean of one half to that of the other.
        offset: parts end at this many rows plus a multiple of `size`.
    """
    order = rows.copy()
    _bisect_in_place(np.ascontiguousarray(vectors, dtype=np.float32), order, size, rounds, offset)
    return order


def _split_range(start: int, stop: int) -> Iterator[Range]:
    return ((piece, min(piece + MAX_BATCH_ROWS, stop)) for piece in range(start, stop, MAX_BATCH_ROWS))


def _bisect_ranges(source: VectorInput, ranges: Iterable[Range], order: Any, size: int, rounds: int) -> Iterator[Rows]:
    """Yield the rows of each range of positions, bisected down to blocks of `size` positions."""
    for batch in _batch_ranges(ranges):
        lists = [np.asarray(order[start:stop], dtype=np.int64) for start, stop in batch]
        rows = np.sort(np.concatenate(lists))  # sequential reads: the source may be a file
        bisect = partial(_bisect_list, source[rows], rows, size, rounds)
        starts = (start for start, _ in batch)
        yield from map_in_order(bisect, zip(lists, starts, strict=True), count_available_cpus())


def _bisect_list(vectors: Floats, rows: Rows, size: int, rounds: int, task: tuple[Rows, int]) -> Rows:
    """Bisect one list. rows: those of the vectors, ascending; task: the rows of the list, and where it starts."""
    list_rows, start = task
    return rows[bisect_rows(vectors, np.searchsorted(rows, np.sort(list_rows)), size, rounds, -start % size)]


def _batch_ranges(ranges: Iterable[Range]) -> Iterator[list[Range]]:
    """Group ranges into batches of at most MAX_BATCH_ROWS positions."""
    batch, rows = list[Range](), 0
    for start, stop in ranges:
        if batch and rows + stop - start > MAX_BATCH_ROWS:
            yield batch
            batch, rows = [], 0
        batch.append((start, stop))
        rows += stop - start
    if batch:
        yield batch


@njit_cached(reorder_sums=True)
def _bisect_in_place(vectors: Any, order: Any, size: int, rounds: int, offset: int) -> None:
    """Order rows in place. Not with numpy's products: for so few rows its threads mostly wait for each other."""
    stack, depth = np.empty((MAX_STACK, 2), dtype=np.int64), 1
    stack[0, 0], stack[0, 1] = 0, len(order)
    projections = np.empty(len(order), dtype=np.float32)
    while depth:
        depth -= 1
        start, stop = stack[depth]
        first = start + ((offset - start) % size or size)
        if first >= stop:
            continue
        middle = max(first, first + ((start + stop) // 2 + size // 2 - first) // size * size)
        part, projection = order[start:stop], projections[: stop - start]
        end = _find_furthest(vectors, part, vectors[part[0]])
        direction = vectors[_find_furthest(vectors, part, vectors[end])] - vectors[end]
        _project(vectors, part, direction, projection)
        for _ in range(rounds):
            _set_mean_direction(vectors, part, projection, middle - start, direction)
            _project(vectors, part, direction, projection)
        part[:] = part[np.argsort(projection, kind="mergesort")]
        stack[depth, 0], stack[depth, 1] = start, middle
        stack[depth + 1, 0], stack[depth + 1, 1] = middle, stop
        depth += 2


@njit_cached(reorder_sums=True)
def _project(vectors: Any, part: Any, direction: Any, projection: Any) -> None:
    """Write the inner product of each row with a direction."""
    for number in range(len(part)):
        row, total = vectors[part[number]], np.float32(0)
        for column in range(len(direction)):
            total += row[column] * direction[column]
        projection[number] = total


@njit_cached(reorder_sums=True)
def _set_mean_direction(vectors: Any, part: Any, projection: Any, lower: int, direction: Any) -> None:
    """Write the direction from the mean of the `lower` rows with the smallest projections to that of the others."""
    threshold = np.partition(projection, lower)[lower]
    ties = lower - np.sum(projection < threshold)
    lower_weight, upper_weight = np.float32(-1 / lower), np.float32(1 / (len(part) - lower))
    direction[:] = 0
    for number in range(len(part)):
        is_lower = projection[number] < threshold
        if projection[number] == threshold and ties > 0:
            is_lower, ties = True, ties - 1
        row, weight = vectors[part[number]], lower_weight if is_lower else upper_weight
        for column in range(len(direction)):
            direction[column] += weight * row[column]


@njit_cached(reorder_sums=True)
def _find_furthest(vectors: Any, part: Any, point: Any) -> Any:
    """Return the row that is furthest from a point."""
    best, largest = part[0], np.float32(-1)
    for number in range(len(part)):
        row, total = vectors[part[number]], np.float32(0)
        for column in range(len(point)):
            difference = row[column] - point[column]
            total += difference * difference
        if total > largest:
            best, largest = part[number], total
    return best
