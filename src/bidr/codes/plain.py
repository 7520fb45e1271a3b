"""Codes that are fitted to a user's vectors and not learned: an index without any training."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from bidr.codes.codebooks import ENCODE_ROWS, Codebooks, Codes, check_shape
from bidr.codes.fit import FIT_ROWS, fit
from bidr.codes.vectors import Metric, VectorRows
from bidr.errors import ConfigError


class PlainCodes(NamedTuple):
    """OPQ codes. codewords: 16 a book are quicker to scan, 256 finer at the same bytes."""

    bytes_per_doc: int = 32
    codewords: Literal[16, 256] = 16
    metric: Metric = "cosine"
    seed: int = 0

    @property
    def books(self) -> int:
        return self.bytes_per_doc * (1 if self.codewords == 256 else 2)

    def check(self, dim: int) -> None:
        """Refuse what cannot be, before anything is computed."""
        if self.bytes_per_doc < 1:
            raise ConfigError(f"bytes_per_doc: given {self.bytes_per_doc}, expected 1 or more")
        check_shape(dim, self.books, self.codewords)

    def fit(self, rows: VectorRows) -> Codebooks:
        self.check(rows.dim)
        some = np.random.default_rng(self.seed).choice(len(rows), min(FIT_ROWS, len(rows)), replace=False)
        return fit(rows.gather(np.sort(some)), self.books, self.codewords, seed=self.seed)


def encode_blocks(codebooks: Codebooks, rows: VectorRows, first: int = 0) -> Iterator[Codes]:
    """Codes of all rows from one on, some at a time."""
    for start in range(first, len(rows), ENCODE_ROWS):
        yield codebooks.encode(rows[start : start + ENCODE_ROWS])
