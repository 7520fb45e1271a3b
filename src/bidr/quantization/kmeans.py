"""K-means by Euclidean distance: which centroid is nearest, and where centroids move.

Which centroid a row goes to depends on the row alone, and sums are taken row after row: any division into blocks, and
any number of threads, gives the same bytes.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from bidr.utils.jit import njit_cached
from bidr.utils.matmul import CACHED_ROWS, Floats, multiply_rows, pack_panels, run_in_parts

Numbers = npt.NDArray[np.int32]
# Centroids that are compared at once: their products with a block of rows stay in the cache.
CHUNK = 256


class CentroidSearcher:
    """Finds, in every book, the centroid nearest to its slice of a row. centroids: (books, count, width)."""

    def __init__(self, centroids: Floats) -> None:
        self.books, self.count, self.width = centroids.shape
        centroids = np.ascontiguousarray(centroids, dtype=np.float32)
        self._panels, self._norms = pack_panels(centroids), compute_squared_norms(centroids)

    def search(self, rows: Floats, *, threads: int | None = None) -> Numbers:
        """Numbers of the nearest centroids, (n, books), of equally near ones the first; rows: (n, books * width)."""
        vectors = np.ascontiguousarray(rows, dtype=np.float32)
        numbers = np.empty((len(vectors), self.books), dtype=np.int32)
        run_in_parts(
            lambda part: _nearest(vectors[part], self._panels, self._norms, numbers[part]), len(vectors), threads
        )
        return numbers


@njit_cached()
def compute_squared_norms(centroids: Any) -> Any:
    """The squared length of each centroid, (books, count)."""
    books, count, width = centroids.shape
    lengths = np.zeros((books, count), dtype=np.float32)
    for book in range(books):
        for number in range(count):
            for place in range(width):
                lengths[book, number] += centroids[book, number, place] * centroids[book, number, place]
    return lengths


@njit_cached()
def add_rows(sums: Any, sizes: Any, rows: Any, near: Any) -> None:
    """Add each row's slices to the sums of the centroids that they are nearest to, and count them.

    sums: (books, count, width), sizes: (books, count), near: (n, books).
    """
    books, _, width = sums.shape
    for row in range(len(rows)):
        for book in range(books):
            number = near[row, book]
            sizes[book, number] += 1
            for place in range(width):
                sums[book, number, place] += rows[row, book * width + place]


@njit_cached()
def _nearest(rows: Any, panels: Any, norms: Any, numbers: Any) -> None:
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
                    least = _least_distance(lengths, part[row])
                    if least < best[row]:
                        best[row] = least
                        numbers[start + row, book] = first + _place_of(least, lengths, part[row])


@njit_cached()
def _least_distance(lengths: Any, products: Any) -> Any:
    """The smallest squared distance, but for the row's own squared length."""
    least = np.float32(np.inf)
    for number in range(len(lengths)):
        distance = lengths[number] - np.float32(2) * products[number]
        least = distance if distance < least else least
    return least


@njit_cached()
def _place_of(least: Any, lengths: Any, products: Any) -> int:
    """The first centroid at that distance."""
    for number in range(len(lengths)):
        if lengths[number] - np.float32(2) * products[number] == least:
            return number
    return 0
