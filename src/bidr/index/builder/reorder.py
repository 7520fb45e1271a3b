"""The order of documents: near ones next to each other, so that a graph's links to them are short numbers, and so that
blocks of them have means that tell whether to look into them."""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from bidr.index.builder.cluster_input import Source
from bidr.index.builder.coarse_clustering import Clusters
from bidr.utils.array_types import Floats, Rows
from bidr.utils.jit import njit_cached
from bidr.utils.prefetch import ordered_parallel_map
from bidr.utils.system import available_cpus

# Documents that a link reaches at once. Their codes of 16 bytes are one line of a processor's cache.
GROUP = 4
# Documents that are compared by their mean first, when the nearest are looked for.
PIECE = 32
# Rounds in which halves are moved to where they are nearest. In a tenth of a million's blocks stand .972 of the exact
# top 100 without any, .979 with 2, .982 with 5 and .981 with 10 (1,000 lists by vectors, tried by hand).
ROUNDS = 5
# Documents in memory at once. A list of more is divided in pieces of so many, whatever it holds: learned lists may be
# very uneven.
TOGETHER = 16_384
# Halves are put on a stack, smaller ones above: more than any number of documents is halved.
DEEPEST = 128
Range = tuple[int, int]


def arranged(source: Source, found: Clusters) -> Iterator[Rows]:
    """Rows in the order in which they should stand, cluster after cluster: near clusters follow each other, and within
    one the documents of a group are near."""
    near = halved(found.centroids, np.arange(len(found.centroids)), 1)
    ranges = (range_ for cluster in near for range_ in _pieces(found.offsets[cluster], found.offsets[cluster + 1]))
    return _divided(source, ranges, found.order, GROUP, 0)


def in_blocks(source: Source, offsets: Rows, order: Any, size: int, first: int = 0) -> Iterator[Rows]:
    """Rows in the order in which they should stand: lists stay where they are, and within one those are near that stand
    in the same block of `size` places. first: a place up to which they were made before."""
    ranges = (range_ for start, stop in pairwise(offsets.tolist()) for range_ in _pieces(max(start, first), stop))
    return _divided(source, ranges, order, size, ROUNDS)


def in_a_row(means: Floats) -> Floats:
    """Means so that near ones follow each other."""
    return means[halved(means, np.arange(len(means)), 1)]


def halved(vectors: Floats, rows: Rows, size: int, rounds: int = 0, before: int = 0) -> Rows:
    """Rows divided in two again and again, across the longest way through them, down to `size`.

    rounds: how often the way is taken anew, from the mean of the one half to that of the other.
    before: parts end at so many rows and a multiple of `size`.
    """
    order = rows.copy()
    _halve(np.ascontiguousarray(vectors, dtype=np.float32), order, size, rounds, before)
    return order


def _pieces(start: int, stop: int) -> Iterator[Range]:
    return ((at, min(at + TOGETHER, stop)) for at in range(start, stop, TOGETHER))


def _divided(source: Source, ranges: Iterable[Range], order: Any, size: int, rounds: int) -> Iterator[Rows]:
    """Rows of each range of places, halved down to blocks of `size` places."""
    for batch in _batches(ranges):
        lists = [np.asarray(order[start:stop], dtype=np.int64) for start, stop in batch]
        rows = np.sort(np.concatenate(lists))  # read forwards: the source may be a file
        halve = partial(_halved_list, source[rows], rows, size, rounds)
        yield from ordered_parallel_map(halve, zip(lists, (start for start, _ in batch), strict=True), available_cpus())


def _halved_list(vectors: Floats, rows: Rows, size: int, rounds: int, given: tuple[Rows, int]) -> Rows:
    """A list that begins at a place. rows: which the vectors are of, ascending."""
    wanted, start = given
    return rows[halved(vectors, np.searchsorted(rows, np.sort(wanted)), size, rounds, -start % size)]


def _batches(ranges: Iterable[Range]) -> Iterator[list[Range]]:
    """Ranges of `TOGETHER` places between them at most."""
    batch, held = list[Range](), 0
    for start, stop in ranges:
        if batch and held + stop - start > TOGETHER:
            yield batch
            batch, held = [], 0
        batch.append((start, stop))
        held += stop - start
    if batch:
        yield batch


@njit_cached(reorder_sums=True)
def _halve(vectors: Any, order: Any, size: int, rounds: int, before: int) -> None:
    """`halved`, in place. Not by products of numpy: of so few rows its threads wait for each other most of the time."""
    left, waiting = np.empty((DEEPEST, 2), dtype=np.int64), 1
    left[0, 0], left[0, 1] = 0, len(order)
    along = np.empty(len(order), dtype=np.float32)
    while waiting:
        waiting -= 1
        start, stop = left[waiting]
        first = start + ((before - start) % size or size)
        if first >= stop:
            continue
        middle = max(first, first + ((start + stop) // 2 + size // 2 - first) // size * size)
        part, here = order[start:stop], along[: stop - start]
        one = _furthest(vectors, part, vectors[part[0]])
        way = vectors[_furthest(vectors, part, vectors[one])] - vectors[one]
        _project(vectors, part, way, here)
        for _ in range(rounds):
            _between_means(vectors, part, here, middle - start, way)
            _project(vectors, part, way, here)
        part[:] = part[np.argsort(here, kind="mergesort")]
        left[waiting, 0], left[waiting, 1] = start, middle
        left[waiting + 1, 0], left[waiting + 1, 1] = middle, stop
        waiting += 2


@njit_cached(reorder_sums=True)
def _project(vectors: Any, part: Any, way: Any, along: Any) -> None:
    """How far each row is along a way."""
    for number in range(len(part)):
        row, total = vectors[part[number]], np.float32(0)
        for place in range(len(way)):
            total += row[place] * way[place]
        along[number] = total


@njit_cached(reorder_sums=True)
def _between_means(vectors: Any, part: Any, along: Any, lower: int, way: Any) -> None:
    """Make the way that from the mean of the `lower` nearest rows to that of the others."""
    least = np.partition(along, lower)[lower]
    level = lower - np.sum(along < least)
    below, above = np.float32(-1 / lower), np.float32(1 / (len(part) - lower))
    way[:] = 0
    for number in range(len(part)):
        beneath = along[number] < least
        if along[number] == least and level > 0:
            beneath, level = True, level - 1
        row, share = vectors[part[number]], below if beneath else above
        for place in range(len(way)):
            way[place] += share * row[place]


@njit_cached(reorder_sums=True)
def _furthest(vectors: Any, part: Any, point: Any) -> Any:
    """The row that is furthest from a point."""
    best, furthest = part[0], np.float32(-1)
    for number in range(len(part)):
        row, total = vectors[part[number]], np.float32(0)
        for place in range(len(point)):
            apart = row[place] - point[place]
            total += apart * apart
        if total > furthest:
            best, furthest = part[number], total
    return best
