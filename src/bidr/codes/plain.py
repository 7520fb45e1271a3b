"""Codes that are fitted to a user's vectors and not learned: an index without any training."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from bidr.codes.codebooks import ENCODE_ROWS, Codebooks, Codes
from bidr.codes.fit import FIT_ROWS, fit
from bidr.codes.vectors import Metric, VectorRows
from bidr.errors import ConfigError


class PlainCodes(NamedTuple):
    """OPQ codes. codewords: 16 a book are quicker to scan, 256 finer at the same bytes."""

    bytes_per_doc: int = 32
    codewords: Literal[16, 256] = 16
    metric: Metric = "cosine"
    seed: int = 0

    def fit(self, rows: VectorRows) -> Codebooks:
        if self.bytes_per_doc < 1:
            raise ConfigError(f"bytes_per_doc: given {self.bytes_per_doc}, expected 1 or more")
        some = np.random.default_rng(self.seed).permutation(len(rows))[:FIT_ROWS]
        books = self.bytes_per_doc * (1 if self.codewords == 256 else 2)
        return fit(rows[np.sort(some)], books, self.codewords, seed=self.seed)


def encode_all(codebooks: Codebooks, rows: VectorRows, advance: Callable[[int], None]) -> Codes:
    """Codes of all rows, some at a time."""
    codes = np.empty((len(rows), codebooks.books), dtype=np.uint8)
    for start in range(0, len(rows), ENCODE_ROWS):
        part = slice(start, start + ENCODE_ROWS)
        codes[part] = codebooks.encode(rows[part])
        advance(len(codes[part]))
    return codes
