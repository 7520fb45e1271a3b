"""Beam-search encoder of the additive quantizer; the codes of a row depend on that row only."""

from typing import Any

import numpy as np

from bidr.utils.array_types import Codes, Floats
from bidr.utils.jit import njit_cached
from bidr.utils.reproducible_matmul import ColumnPanels, matmul_transposed, multiply_rows, run_in_parts

# Rows whose inner products with all codewords are in memory together.
ROWS_PER_BLOCK = 48


class BeamSearch:
    """Encodes with codewords (M, words, width), keeping the best `beam` partial sums after every book."""

    def __init__(self, codewords: Floats, beam: int) -> None:
        self.books, self.words, width = codewords.shape
        flat = np.ascontiguousarray(codewords, dtype=np.float32).reshape(-1, width)
        self._columns, self._beam = ColumnPanels(flat), beam
        # Twice the inner products of all codewords: the contribution of a pair to the squared norm of a sum.
        self._pairs = 2 * matmul_transposed(flat, flat)

    def encode(self, rows: Floats, *, threads: int | None = None) -> Codes:
        """Return the codeword numbers of the nearest sums: (n, M) uint8."""
        vectors = np.ascontiguousarray(rows, dtype=np.float32)
        codes = np.empty((len(vectors), self.books), dtype=np.uint8)

        def encode_part(part: slice) -> None:
            _encode(vectors[part], self._columns.panels, self._pairs, self.words, self._beam, codes[part])

        run_in_parts(encode_part, len(vectors), threads)
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
    """Compare squared distances without the squared norm of the vector."""
    books = len(codes)
    # Codewords of the partial sums, best first, before and after the current book; distances likewise.
    beams, next_beams = np.empty((beam, books), dtype=np.int64), np.empty((beam, books), dtype=np.int64)
    distances, best_distances = np.zeros(beam, dtype=np.float32), np.empty(beam, dtype=np.float32)
    parents, chosen = np.empty(beam, dtype=np.int64), np.empty(beam, dtype=np.int64)
    own_distances, sum_distances, beam_count = np.empty(words, dtype=np.float32), np.empty(words, dtype=np.float32), 1
    for book in range(books):
        first, next_count = book * words, 0
        for word in range(words):
            number = first + word
            own_distances[word] = np.float32(0.5) * pairs[number, number] - np.float32(2) * products[number]
        for place in range(beam_count):
            for word in range(words):
                sum_distances[word] = distances[place] + own_distances[word]
            for earlier in range(book):
                other = pairs[beams[place, earlier], first : first + words]
                for word in range(words):
                    sum_distances[word] += other[word]
            bound = best_distances[beam - 1] if next_count == beam else np.float32(np.inf)
            for word in range(words):
                if sum_distances[word] < bound or next_count < beam:
                    next_count = _insert(
                        best_distances, parents, chosen, next_count, sum_distances[word], place, first + word
                    )
                    bound = best_distances[beam - 1] if next_count == beam else np.float32(np.inf)
        for place in range(next_count):
            next_beams[place, :book] = beams[parents[place], :book]
            next_beams[place, book] = chosen[place]
            distances[place] = best_distances[place]
        beams, next_beams, beam_count = next_beams, beams, next_count
    for book in range(books):
        codes[book] = beams[0, book] - book * words


@njit_cached()
def _insert(best_distances: Any, parents: Any, chosen: Any, count: int, distance: Any, parent: int, word: int) -> int:
    """Put a sum where it belongs among the best, behind equal ones; how many there are."""
    count = min(count + 1, len(best_distances))
    at = count - 1
    while at > 0 and distance < best_distances[at - 1]:
        best_distances[at], parents[at], chosen[at] = best_distances[at - 1], parents[at - 1], chosen[at - 1]
        at -= 1
    best_distances[at], parents[at], chosen[at] = distance, parent, word
    return count
