"""Blocks of 32 documents that stand side by side, by their means: those that a query should look into.

Means are in 4-bit codes of their own: a query is compared with all of them as quickly as with as many documents.
"""

from typing import Any

import numpy as np

from bidr.codes.codebooks import Codes, Floats
from bidr.compiled import compiled
from bidr.index.engines.base import Rows
from bidr.index.engines.near import AHEAD, from_above, largest_sum
from bidr.index.engines.shuffle import BLOCK, next_block, shuffle_here
from bidr.index.engines.store import to_blocks
from bidr.index.engines.tables import even_books, products, round_table

# From so many blocks on (400,000 documents) they are looked into. Of 200,000 documents whole lists take as long for .95
# of the exact top 100; the more documents there are, the more blocks save (docs/engines.md).
FEWEST = 12_500
# How many blocks codewords are fitted to, and in how many rounds.
FITTED, ROUNDS = 8_192, 10
BITS, WORDS, MOST_BOOKS = 4, 16, 128


def blocks_of(count: int) -> int:
    """How many blocks so many documents stand in."""
    return -(-count // BLOCK)


def has_means(engine: str, count: int) -> bool:
    """Whether an index of so many documents has means of blocks."""
    return engine == "lists" and blocks_of(count) >= FEWEST


def books_for(dim: int) -> int:
    """How many books means of so many dimensions are coded with."""
    return max(books for books in range(1, MOST_BOOKS + 1) if dim % books == 0)


class Means:
    """The mean of each block, coded. words: (books, 16, width), books side by side; rows: two codes a byte."""

    def __init__(self, words: Floats, rows: Codes) -> None:
        self._words, self.count, self._shuffle = np.array(words, dtype=np.float32), len(rows), shuffle_here()
        self._codes = to_blocks(rows)
        self._all = np.zeros(1, dtype=np.int64), np.full(1, self.count, dtype=np.int64)

    @property
    def nbytes(self) -> int:
        return int(self._codes.nbytes)

    def nearest(self, query: Floats, count: int, within: tuple[Rows, Rows] | None = None) -> Rows:
        """About so many blocks, ascending, whose means have the largest inner products with the query.

        within: ranges of blocks, where each begins and ends, ascending; by default all.
        """
        table = even_books(products(query[None], self._words)[0])
        found: Rows = best_means(self._codes, round_table(table), *(within or self._all), count, self._shuffle)
        return found


@compiled()
def best_means(codes: Any, table: Any, starts: Any, stops: Any, count: int, shuffle: Any) -> Any:
    """Rows within ranges with the `count` largest sums, and those that equal the last of them."""
    pairs, base, entries = codes.shape[1], codes.ctypes.data, table.ctypes.data
    groups, total = 0, 0
    for part in range(len(starts)):
        groups += (stops[part] + BLOCK - 1) // BLOCK - starts[part] // BLOCK
        total += stops[part] - starts[part]
    sums, done = np.empty(groups * BLOCK, dtype=np.uint16), 0
    often = np.zeros(largest_sum(pairs) + 1, dtype=np.int32)
    for part in range(len(starts)):
        first = done * BLOCK - starts[part] // BLOCK * BLOCK
        for group in range(starts[part] // BLOCK, (stops[part] + BLOCK - 1) // BLOCK):
            here = sums.ctypes.data + sums.itemsize * BLOCK * done
            next_block(base, entries, pairs, group, group + 1, here, AHEAD, np.uint16(0), shuffle)
            done += 1
        for row in range(starts[part], stops[part]):
            often[sums[first + row]] += 1
    least, rows, found = from_above(often, min(count, total)), np.empty(total + 1, dtype=np.int64), 0
    done = 0
    for part in range(len(starts)):
        first = done * BLOCK - starts[part] // BLOCK * BLOCK
        for row in range(starts[part], stops[part]):
            rows[found] = row  # put there in any case: no branch depends on a sum
            found += sums[first + row] >= least
        done += (stops[part] + BLOCK - 1) // BLOCK - starts[part] // BLOCK
    return rows[:found]
