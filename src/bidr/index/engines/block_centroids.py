"""Block centroids: the means of blocks of 32 neighboring documents select which blocks a query scans.

They have 4-bit codes of their own, so that comparing all of them is as fast as scanning as many documents.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bidr.index.engines.adc_tables import compute_slice_tables, pad_books, quantize_table
from bidr.index.engines.code_store import to_blocks
from bidr.index.engines.fast_scan import PREFETCH_BYTES, compute_max_sum, rank_in_histogram
from bidr.index.engines.fast_scan_kernels import BLOCK, detect_pshufb, find_next_block
from bidr.utils.array_types import Codes, Floats, Rows
from bidr.utils.jit import njit_cached

# Indexes from this many blocks (400,000 documents) have block centroids. At 200,000 documents complete lists take as
# long for .95 of the exact top 100; the gain grows with the number of documents (docs/reports/blocks.md).
MIN_BLOCKS = 12_500
# k-means of the codewords.
TRAINING_BLOCKS, TRAINING_ROUNDS = 8_192, 10
BITS, CODEWORDS, MAX_BOOKS = 4, 16, 128
BlockCounts = npt.NDArray[np.uint8]


def count_blocks(count: int) -> int:
    """Return the number of blocks of `count` documents."""
    return -(-count // BLOCK)


def has_block_centroids(engine: str, count: int) -> bool:
    """Tell whether an index of this engine and size has block centroids."""
    return engine == "lists" and count_blocks(count) >= MIN_BLOCKS


def choose_book_shape(dim: int) -> tuple[int, int]:
    """Choose books and dimensions per book for centroids of `dim` dimensions; zeros pad the last book."""
    width = -(-dim // MAX_BOOKS)
    return -(-dim // width), width


def pad_columns(vectors: Floats, dim: int) -> Floats:
    """Pad vectors with zeros to `dim` dimensions."""
    padding = dim - vectors.shape[-1]
    return np.pad(vectors, ((0, 0), (0, padding))) if padding else vectors


class BlockBudget(NamedTuple):
    """How many blocks a filtered search scans."""

    unfiltered_blocks: int
    """Blocks scanned without a filter; their allowed share shows whether the filter suits the query."""
    min_blocks: int
    """Blocks with an allowed document to scan at least,"""
    documents: int
    """and further ones until they contain this many allowed documents."""
    min_share: float
    """The filter is anticorrelated with the query if a smaller share of the unfiltered blocks is allowed."""


class BlockCentroids:
    """Coded centroids of blocks.

    Args:
        codewords: (books, 16, width), books side by side.
        codes: Two codes per byte, a row per block.
    """

    def __init__(self, codewords: Floats, codes: Codes) -> None:
        self._codewords, self.count, self._shuffle = np.array(codewords, dtype=np.float32), len(codes), detect_pshufb()
        self._codes = to_blocks(codes)
        self._all_blocks = np.zeros(1, dtype=np.int64), np.full(1, self.count, dtype=np.int64)

    @property
    def nbytes(self) -> int:
        return int(self._codes.nbytes)

    def find_nearest(self, query: Floats, count: int, within: tuple[Rows, Rows] | None = None) -> Rows:
        """Find about `count` blocks with the largest inner products of centroid and query, ascending.

        Args:
            within: Ranges of blocks (starts, stops), ascending; default: all.
        """
        blocks: Rows = select_blocks(
            self._codes, self._make_table(query), *(within or self._all_blocks), count, self._shuffle
        )
        return blocks

    def find_filtered(
        self, query: Floats, counts: BlockCounts, budget: BlockBudget, within: tuple[Rows, Rows] | None = None
    ) -> Rows:
        """Find the nearest blocks with an allowed document, ascending.

        Returns none where the filter is anticorrelated with the query.

        Args:
            counts: Allowed documents per block.
        """
        ranges, table = within or self._all_blocks, self._make_table(query)
        blocks: Rows = select_filtered_blocks(self._codes, table, *ranges, counts, budget, self._shuffle)
        return blocks

    def _make_table(self, query: Floats) -> Any:
        books, _, width = self._codewords.shape
        return quantize_table(
            pad_books(compute_slice_tables(pad_columns(query[None], books * width), self._codewords)[0])
        )


@njit_cached()
def sum_centroids(codes: Any, table: Any, starts: Any, stops: Any, shuffle: Any) -> Any:
    """Sum table entries of rows, range by range; also what to add to a row of each range to find its sum."""
    pairs, base, entries = codes.shape[1], codes.ctypes.data, table.ctypes.data
    total, group_count = 0, 0
    for part in range(len(starts)):
        total += (stops[part] + BLOCK - 1) // BLOCK - starts[part] // BLOCK
    sums, first = np.empty(total * BLOCK, dtype=np.uint16), np.empty(len(starts), dtype=np.int64)
    for part in range(len(starts)):
        first[part] = group_count * BLOCK - starts[part] // BLOCK * BLOCK
        for group in range(starts[part] // BLOCK, (stops[part] + BLOCK - 1) // BLOCK):
            address = sums.ctypes.data + sums.itemsize * BLOCK * group_count
            find_next_block(base, entries, pairs, group, group + 1, address, PREFETCH_BYTES, np.uint16(0), shuffle)
            group_count += 1
    return sums, first


@njit_cached()
def select_blocks(codes: Any, table: Any, starts: Any, stops: Any, count: int, shuffle: Any) -> Any:
    """Select rows within ranges with the `count` largest sums, including ties with the last."""
    (sums, first), total = sum_centroids(codes, table, starts, stops, shuffle), 0
    histogram = np.zeros(compute_max_sum(codes.shape[1]) + 1, dtype=np.int32)
    for part in range(len(starts)):
        total += stops[part] - starts[part]
        for row in range(starts[part], stops[part]):
            histogram[sums[first[part] + row]] += 1
    bound, rows, selected = rank_in_histogram(histogram, min(count, total)), np.empty(total + 1, dtype=np.int64), 0
    for part in range(len(starts)):
        for row in range(starts[part], stops[part]):
            rows[selected] = row  # unconditional: no branch depends on a sum
            selected += sums[first[part] + row] >= bound
    return rows[:selected]


@njit_cached()
def select_filtered_blocks(
    codes: Any, table: Any, starts: Any, stops: Any, counts: Any, budget: Any, shuffle: Any
) -> Any:
    """Select blocks as `BlockCentroids.find_filtered`."""
    (sums, first), total = sum_centroids(codes, table, starts, stops, shuffle), 0
    size = compute_max_sum(codes.shape[1]) + 1
    histogram, filled_histogram, document_histogram = (
        np.zeros(size, np.int32),
        np.zeros(size, np.int32),
        np.zeros(size, np.int32),
    )
    for part in range(len(starts)):
        total += stops[part] - starts[part]
        for row in range(starts[part], stops[part]):
            total_sum = sums[first[part] + row]
            histogram[total_sum] += 1
            filled_histogram[total_sum] += counts[row] > 0
            document_histogram[total_sum] += counts[row]
    nearest = rank_in_histogram(histogram, min(budget.unfiltered_blocks, total))
    if document_histogram[nearest:].sum() < budget.min_share * BLOCK * histogram[nearest:].sum():
        return np.empty(0, dtype=np.int64)
    bound = min(
        rank_in_histogram(filled_histogram, budget.min_blocks), rank_in_histogram(document_histogram, budget.documents)
    )
    rows, selected = np.empty(total + 1, dtype=np.int64), 0
    for part in range(len(starts)):
        for row in range(starts[part], stops[part]):
            rows[selected] = row
            selected += (sums[first[part] + row] >= bound) & (counts[row] > 0)
    return rows[:selected]
