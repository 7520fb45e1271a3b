"""Choosing codewords whose sum is near a vector, by a beam search; a row's codes depend on that row alone."""

from typing import Any

import numpy as np

from bidr.utils.array_types import Codes, Floats
from bidr.utils.jit import njit_cached
from bidr.utils.matmul import ColumnPanels, matmul_transposed, multiply_rows, run_in_parts

# Rows whose products with all codewords are in memory at once.
ROWS_PER_BLOCK = 48


class BeamSearch:
    """Encodes with codewords (M, words, width): book after book the best `beam` sums are kept."""

    def __init__(self, codewords: Floats, beam: int) -> None:
        self.books, self.words, width = codewords.shape
        flat = np.ascontiguousarray(codewords, dtype=np.float32).reshape(-1, width)
        self._columns, self._beam = ColumnPanels(flat), beam
        # Of each codeword with every other, twice: what two in a sum add to its squared length.
        self._pairs = 2 * matmul_transposed(flat, flat)

    def encode(self, rows: Floats, *, threads: int | None = None) -> Codes:
        """Numbers of the codewords of the nearest sum that was found: (n, M) uint8."""
        vectors = np.ascontiguousarray(rows, dtype=np.float32)
        codes = np.empty((len(vectors), self.books), dtype=np.uint8)

        def work(part: slice) -> None:
            _encode(vectors[part], self._columns.panels, self._pairs, self.words, self._beam, codes[part])

        run_in_parts(work, len(vectors), threads)
        return codes


@njit_cached()
def _encode(rows: Any, panels: Any, pairs: Any, words: int, beam: int, codes: Any) -> None:
    products = np.empty((ROWS_PER_BLOCK, len(pairs)), dtype=np.float32)
    for start in range(0, len(rows), ROWS_PER_BLOCK):
        block = rows[start : start + ROWS_PER_BLOCK]
        multiply_rows(block, 0, panels, products[: len(block)])
        for row in range(len(block)):
            _search(products[row], pairs, words, beam, codes[start + row])


@njit_cached()
def _search(products: Any, pairs: Any, words: int, beam: int, codes: Any) -> None:
    """Squared distances are compared, but for the squared length of the vector."""
    books = len(codes)
    # Sums in view, best first, and those of one more book: their codewords so far, and their distances.
    view, following = np.empty((beam, books), dtype=np.int64), np.empty((beam, books), dtype=np.int64)
    distances, least = np.zeros(beam, dtype=np.float32), np.empty(beam, dtype=np.float32)
    parents, chosen = np.empty(beam, dtype=np.int64), np.empty(beam, dtype=np.int64)
    alone, added, filled = np.empty(words, dtype=np.float32), np.empty(words, dtype=np.float32), 1
    for book in range(books):
        first, reached = book * words, 0
        for word in range(words):
            number = first + word
            alone[word] = np.float32(0.5) * pairs[number, number] - np.float32(2) * products[number]
        for place in range(filled):
            for word in range(words):
                added[word] = distances[place] + alone[word]
            for earlier in range(book):
                other = pairs[view[place, earlier], first : first + words]
                for word in range(words):
                    added[word] += other[word]
            bound = least[beam - 1] if reached == beam else np.float32(np.inf)
            for word in range(words):
                if added[word] < bound or reached < beam:
                    reached = _insert(least, parents, chosen, reached, added[word], place, first + word)
                    bound = least[beam - 1] if reached == beam else np.float32(np.inf)
        for place in range(reached):
            following[place, :book] = view[parents[place], :book]
            following[place, book] = chosen[place]
            distances[place] = least[place]
        view, following, filled = following, view, reached
    for book in range(books):
        codes[book] = view[0, book] - book * words


@njit_cached()
def _insert(least: Any, parents: Any, chosen: Any, count: int, distance: Any, parent: int, word: int) -> int:
    """Put a sum where it belongs among the best, behind equal ones; how many there are."""
    count = min(count + 1, len(least))
    at = count - 1
    while at > 0 and distance < least[at - 1]:
        least[at], parents[at], chosen[at] = least[at - 1], parents[at - 1], chosen[at - 1]
        at -= 1
    least[at], parents[at], chosen[at] = distance, parent, word
    return count
