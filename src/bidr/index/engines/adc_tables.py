"""ADC lookup tables: inner products of a query with every codeword."""

import math
from typing import Any

import numpy as np

from bidr.index.engines.fast_scan_kernels import BYTE_SUMS
from bidr.quantization.codebooks import Codebooks
from bidr.utils.array_types import Floats
from bidr.utils.jit import njit_cached
from bidr.utils.reproducible_matmul import ColumnPanels, matmul_transposed, multiply

# Rounding changes each of BYTE_SUMS entries by up to half a step.
STEPS = 255 - BYTE_SUMS // 2
# Sums of more books may not fit 16 bits with this step.
UINT16_BOOKS, UINT16_MAX = 1_024, 0xFFFF
# A quantized sum is off by more standard deviations in one of fifty thousand documents.
DEVIATIONS = 4.2


class AdcTables:
    """Compute lookup tables; holds copies of the codewords, as a mapped file is slower.

    Books that see the same slice of a query (additive codes) share its rotation. Where all of them do and the rotation
    does not shorten the query, the codewords are rotated once instead.
    """

    def __init__(self, codebooks: Codebooks) -> None:
        books, codewords, width = codebooks.centroids.shape
        parts = codebooks.rotation.reshape(books, width, -1)
        slice_numbers = np.cumsum(
            [book > 0 and not np.array_equal(parts[book], parts[book - 1]) for book in range(books)]
        )
        slice_books = np.searchsorted(slice_numbers, np.arange(slice_numbers[-1] + 1))
        rotation = parts[slice_books].reshape(-1, codebooks.dim)
        self._shape, self._distinct_slices = (books, codewords), len(slice_books) == books
        self._centroids = np.array(codebooks.centroids if self._distinct_slices else [], dtype=np.float32)
        self._rotation: ColumnPanels | None = None
        self._groups: list[ColumnPanels] = []
        if len(slice_books) == 1 < books and codebooks.dim <= width:
            rotated = matmul_transposed(codebooks.centroids.reshape(-1, width), rotation.T)
            self._groups = [ColumnPanels(rotated)]
            return
        self._rotation = ColumnPanels(rotation)
        if not self._distinct_slices:
            self._groups = [
                ColumnPanels(group.reshape(-1, width)) for group in np.split(codebooks.centroids, slice_books[1:])
            ]

    @property
    def nbytes(self) -> int:
        columns = [*self._groups, *([] if self._rotation is None else [self._rotation])]
        return int(self._centroids.nbytes + sum(panels.nbytes for panels in columns))

    def compute(self, queries: Floats) -> Floats:
        """Compute the scores of all codewords: (queries, books, codewords)."""
        rotated = queries if self._rotation is None else multiply(queries, self._rotation)
        if self._distinct_slices:
            slice_tables: Floats = compute_slice_tables(rotated, self._centroids)
            return slice_tables
        parts = [rotated] if len(self._groups) == 1 else np.split(rotated, len(self._groups), axis=1)
        scores: list[Floats] = [multiply(part, group) for part, group in zip(parts, self._groups, strict=True)]
        table = scores[0] if len(scores) == 1 else np.concatenate(scores, axis=1)
        return table.reshape(-1, *self._shape)


@njit_cached()
def compute_slice_tables(rotated: Any, centroids: Any) -> Any:
    """Compute tables of books that each see their own slice: (queries, books, codewords)."""
    books, codewords, width = centroids.shape
    table = np.empty((len(rotated), books, codewords), dtype=np.float32)
    for query in range(len(rotated)):
        for book in range(books):
            for codeword in range(codewords):
                total = np.float32(0)
                for place in range(width):
                    total += centroids[book, codeword, place] * rotated[query, book * width + place]
                table[query, book, codeword] = total
    return table


def merge_pairs(table: Floats) -> Floats:
    """Merge pairs of books to a table for bytes of two 4-bit codes, (books / 2, 256); the first is the low nibble."""
    even = pad_books(table)
    merged: Floats = even[1::2, :, None] + even[0::2, None, :]
    return merged.reshape(len(merged), 256)


def pad_books(table: Floats) -> Floats:
    """Add a book of zeros where their number is odd."""
    return np.pad(table, ((0, len(table) % 2), (0, 0))) if len(table) % 2 else table


def compute_margin(books: int) -> int:
    """Return by how much rounding may lower a sum of quantized entries below one that it exceeds."""
    return math.ceil(DEVIATIONS * math.sqrt(books / 6))


@njit_cached()
def quantize_table(table: Any) -> Any:
    """Quantize a 4-bit table to bytes: sums of BYTE_SUMS books must fit a byte, sums of all books 16 bits.

    The number of books must be even.
    """
    books = len(table)
    minima, widest, total = np.empty(books, dtype=np.float32), np.float32(1e-30), np.float32(0)
    spans = np.zeros(2, dtype=np.float32)
    for book in range(books):
        minima[book] = table[book].min()
        if book % (2 * BYTE_SUMS) == 0:
            spans[:] = 0
        spans[book % 2] += table[book].max() - minima[book]
        widest = max(widest, spans[book % 2])
        total += table[book].max() - minima[book]
    factor = np.float32(STEPS) / widest
    if books > UINT16_BOOKS:
        factor = min(factor, np.float32(UINT16_MAX - books) / max(total, np.float32(1e-30)))
    entries = np.empty((books, 16), dtype=np.uint8)
    for book in range(books):
        for codeword in range(16):
            entries[book, codeword] = np.uint8((table[book, codeword] - minima[book]) * factor + np.float32(0.5))
    return entries.reshape(books // 2, 32)
