"""Euclidean k-means kernels: nearest centroids and centroid sums.

Assignments depend on the row only and sums are sequential: results are bit-identical for any block size and number of
threads.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from bidr.utils.jit import njit_cached
from bidr.utils.reproducible_matmul import CACHED_ROWS, Floats, multiply_rows, pack_panels, run_in_parts

Numbers = npt.NDArray[np.int32]
# Centroids per block: their inner products with a block of rows stay in the cache.
CHUNK = 256


class CentroidSearcher:
    """Finds the nearest centroid of every book for slices of rows. centroids: (books, count, width)."""

    def __init__(self, centroids: Floats) -> None:
        self.books, self.count, self.width = centroids.shape
        centroids = np.ascontiguousarray(centroids, dtype=np.float32)
        self._panels, self._norms = pack_panels(centroids), compute_squared_norms(centroids)

    def search(self, rows: Floats, *, threads: int | None = None) -> Numbers:
        """Return the nearest centroids, (n, books), ties to the first; rows: (n, books * width)."""
        vectors = np.ascontiguousarray(rows, dtype=np.float32)
        numbers = np.empty((len(vectors), self.books), dtype=np.int32)
        run_in_parts(
            lambda part: _find_nearest(vectors[part], self._panels, self._norms, numbers[part]), len(vectors), threads
        )
        return numbers


@njit_cached()
def compute_squared_norms(centroids: Any) -> Any:
    """Compute the squared norm of each centroid, (books, count)."""
    books, count, width = centroids.shape
    lengths = np.zeros((books, count), dtype=np.float32)
    for book in range(books):
        for number in range(count):
            for place in range(width):
                lengths[book, number] += centroids[book, number, place] * centroids[book, number, place]
    return lengths


@njit_cached()
def add_rows(sums: Any, sizes: Any, rows: Any, nearest: Any) -> None:
    """Add the slices of each row to the sums and sizes of their nearest centroids.

    sums: (books, count, width), sizes: (books, count), nearest: (n, books).
    """
    books, _, width = sums.shape
    for row in range(len(rows)):
        for book in range(books):
            number = nearest[row, book]
            sizes[book, number] += 1
            for place in range(width):
                sums[book, number, place] += rows[row, book * width + place]


@njit_cached()
def _find_nearest(rows: Any, panels: Any, norms: Any, numbers: Any) -> None:
    books, count = norms.shape
    width, panels_at_once = panels.shape[2], CHUNK // panels.shape[3]
    products, best = np.empty((CACHED_ROWS, CHUNK), dtype=np.float32), np.empty(CACHED_ROWS, dtype=np.float32)
    for start in range(0, len(rows), CACHED_ROWS):
        block = rows[start : start + CACHED_ROWS]
        for book in range(books):
            best[:] = np.inf
            numbers[start : start + len(block), book] = 0
            for first in range(0, count, CHUNK):
                lengths, panel = norms[book, first : first + CHUNK], first // panels.shape[3]
                part = products[: len(block), : len(lengths)]
                multiply_rows(block, book * width, panels[book, panel : panel + panels_at_once], part)
                for row in range(len(block)):
                    min_distance = _find_min_distance(lengths, part[row])
                    if min_distance < best[row]:
                        best[row] = min_distance
                        numbers[start + row, book] = first + _find_centroid_at(min_distance, lengths, part[row])


@njit_cached()
def _find_min_distance(lengths: Any, products: Any) -> Any:
    """Return the smallest squared distance, without the squared norm of the row."""
    min_distance = np.float32(np.inf)
    for number in range(len(lengths)):
        distance = lengths[number] - np.float32(2) * products[number]
        min_distance = distance if distance < min_distance else min_distance
    return min_distance


@njit_cached()
def _find_centroid_at(min_distance: Any, lengths: Any, products: Any) -> int:
    """Return the first centroid at a distance."""
    for number in range(len(lengths)):
        if lengths[number] - np.float32(2) * products[number] == min_distance:
            return number
    return 0
