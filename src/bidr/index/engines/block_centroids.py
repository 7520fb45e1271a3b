"""Blocks of 32 documents that stand side by side, by their means: those that a query should look into.

Means are in 4-bit codes of their own: a query is compared with all of them as quickly as with as many documents.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bidr.index.engines.adc_tables import compute_slice_tables, pad_books, quantize_table
from bidr.index.engines.code_store import to_blocks
from bidr.index.engines.fast_scan import PREFETCH_BYTES, compute_max_sum, rank_in_histogram
from bidr.index.engines.pshufb import BLOCK, detect_pshufb, find_next_block
from bidr.utils.array_types import Codes, Floats, Rows
from bidr.utils.jit import njit_cached

# From so many blocks on (400,000 documents) they are looked into. Of 200,000 documents whole lists take as long for .95
# of the exact top 100; the more documents there are, the more blocks save (docs/engines.md).
MIN_BLOCKS = 12_500
# How many blocks codewords are fitted to, and in how many rounds.
TRAINING_BLOCKS, TRAINING_ROUNDS = 8_192, 10
BITS, CODEWORDS, MAX_BOOKS = 4, 16, 128
BlockCounts = npt.NDArray[np.uint8]


def count_blocks(count: int) -> int:
    """How many blocks so many documents stand in."""
    return -(-count // BLOCK)


def has_block_centroids(engine: str, count: int) -> bool:
    """Whether an index of so many documents has means of blocks."""
    return engine == "lists" and count_blocks(count) >= MIN_BLOCKS


def choose_book_shape(dim: int) -> tuple[int, int]:
    """How many books means of so many dimensions are coded with, and of how many each is; zeros fill the last."""
    width = -(-dim // MAX_BOOKS)
    return -(-dim // width), width


def pad_columns(vectors: Floats, dim: int) -> Floats:
    """Vectors with zeros up to so many dimensions."""
    missing = dim - vectors.shape[-1]
    return np.pad(vectors, ((0, 0), (0, missing))) if missing else vectors


class BlockBudget(NamedTuple):
    """How far is looked under a filter."""

    usual: int
    """Blocks that would be looked into without it: what these hold tells whether it goes against the query."""
    more: int
    """Blocks with an allowed document that are looked into,"""
    documents: int
    """and on until they hold so many allowed documents."""
    least: float
    """The filter goes against the query where of what stands in the usual blocks a smaller share is allowed."""


class BlockCentroids:
    """The mean of each block, coded. words: (books, 16, width), books side by side; rows: two codes a byte."""

    def __init__(self, words: Floats, rows: Codes) -> None:
        self._words, self.count, self._shuffle = np.array(words, dtype=np.float32), len(rows), detect_pshufb()
        self._codes = to_blocks(rows)
        self._all = np.zeros(1, dtype=np.int64), np.full(1, self.count, dtype=np.int64)

    @property
    def nbytes(self) -> int:
        return int(self._codes.nbytes)

    def nearest(self, query: Floats, count: int, within: tuple[Rows, Rows] | None = None) -> Rows:
        """About so many blocks, ascending, whose means have the largest inner products with the query.

        within: ranges of blocks, where each begins and ends, ascending; by default all.
        """
        found: Rows = select_blocks(self._codes, self._table(query), *(within or self._all), count, self._shuffle)
        return found

    def nearest_held(
        self, query: Floats, held: BlockCounts, wanted: BlockBudget, within: tuple[Rows, Rows] | None = None
    ) -> Rows:
        """Those of the nearest blocks that hold an allowed document, ascending; none where the filter goes against the
        query.

        held: how many allowed documents each block holds.
        """
        ranges, table = within or self._all, self._table(query)
        found: Rows = select_filtered_blocks(self._codes, table, *ranges, held, wanted, self._shuffle)
        return found

    def _table(self, query: Floats) -> Any:
        books, _, width = self._words.shape
        return quantize_table(pad_books(compute_slice_tables(pad_columns(query[None], books * width), self._words)[0]))


@njit_cached()
def sum_centroids(codes: Any, table: Any, starts: Any, stops: Any, shuffle: Any) -> Any:
    """Sums of rows, range after range, and what to add to a row of each range to find its sum."""
    pairs, base, entries = codes.shape[1], codes.ctypes.data, table.ctypes.data
    groups, done = 0, 0
    for part in range(len(starts)):
        groups += (stops[part] + BLOCK - 1) // BLOCK - starts[part] // BLOCK
    sums, first = np.empty(groups * BLOCK, dtype=np.uint16), np.empty(len(starts), dtype=np.int64)
    for part in range(len(starts)):
        first[part] = done * BLOCK - starts[part] // BLOCK * BLOCK
        for group in range(starts[part] // BLOCK, (stops[part] + BLOCK - 1) // BLOCK):
            here = sums.ctypes.data + sums.itemsize * BLOCK * done
            find_next_block(base, entries, pairs, group, group + 1, here, PREFETCH_BYTES, np.uint16(0), shuffle)
            done += 1
    return sums, first


@njit_cached()
def select_blocks(codes: Any, table: Any, starts: Any, stops: Any, count: int, shuffle: Any) -> Any:
    """Rows within ranges with the `count` largest sums, and those that equal the last of them."""
    (sums, first), total = sum_centroids(codes, table, starts, stops, shuffle), 0
    often = np.zeros(compute_max_sum(codes.shape[1]) + 1, dtype=np.int32)
    for part in range(len(starts)):
        total += stops[part] - starts[part]
        for row in range(starts[part], stops[part]):
            often[sums[first[part] + row]] += 1
    least, rows, found = rank_in_histogram(often, min(count, total)), np.empty(total + 1, dtype=np.int64), 0
    for part in range(len(starts)):
        for row in range(starts[part], stops[part]):
            rows[found] = row  # put there in any case: no branch depends on a sum
            found += sums[first[part] + row] >= least
    return rows[:found]


@njit_cached()
def select_filtered_blocks(
    codes: Any, table: Any, starts: Any, stops: Any, held: Any, wanted: Any, shuffle: Any
) -> Any:
    """As `Means.nearest_held`."""
    (sums, first), total = sum_centroids(codes, table, starts, stops, shuffle), 0
    size = compute_max_sum(codes.shape[1]) + 1
    every, filled, there = np.zeros(size, np.int32), np.zeros(size, np.int32), np.zeros(size, np.int32)
    for part in range(len(starts)):
        total += stops[part] - starts[part]
        for row in range(starts[part], stops[part]):
            here = sums[first[part] + row]
            every[here] += 1
            filled[here] += held[row] > 0
            there[here] += held[row]
    near = rank_in_histogram(every, min(wanted.usual, total))
    if there[near:].sum() < wanted.least * BLOCK * every[near:].sum():
        return np.empty(0, dtype=np.int64)
    bound = min(rank_in_histogram(filled, wanted.more), rank_in_histogram(there, wanted.documents))
    rows, found = np.empty(total + 1, dtype=np.int64), 0
    for part in range(len(starts)):
        for row in range(starts[part], stops[part]):
            rows[found] = row
            found += (sums[first[part] + row] >= bound) & (held[row] > 0)
    return rows[:found]
