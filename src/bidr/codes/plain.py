"""Codes that are fitted to a user's vectors and not learned: an index without any training."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from bidr.codes.codebooks import ENCODE_ROWS, Codebooks, Codes, check_shape
from bidr.codes.fit import FIT_ROWS, fit
from bidr.codes.vectors import Metric, VectorRows
from bidr.errors import ConfigError

USUAL_BYTES = 32


class PlainCodes(NamedTuple):
    """OPQ codes. bytes_per_doc: by default 32, or the most below that divide the dimensions.

    codewords: 16 a book are quicker to scan, 256 finer at the same bytes.
    """

    bytes_per_doc: int | None = None
    codewords: Literal[16, 256] = 16
    metric: Metric = "cosine"
    seed: int = 0

    def books(self, dim: int) -> int:
        """How many codebooks vectors get; refuses what cannot be, before anything is computed."""
        each = 1 if self.codewords == 256 else 2
        fitting = [size for size in range(1, dim // each + 1) if dim % (each * size) == 0]
        usual = max((size for size in fitting if size <= USUAL_BYTES), default=USUAL_BYTES)
        size = usual if self.bytes_per_doc is None else self.bytes_per_doc
        if size not in fitting:
            near = sorted(sorted(fitting, key=lambda other: abs(other - size))[:3])
            choose = f"choose {' or '.join(map(str, near))}" if near else "take 256 codewords"
            raise ConfigError(
                f"bytes_per_doc: given {size}, that is {each * size} codebooks of {self.codewords} codewords, expected "
                f"a number of codebooks that divides the {dim} dimensions; {choose}"
            )
        check_shape(dim, each * size, self.codewords)
        return each * size

    def fit(self, rows: VectorRows) -> Codebooks:
        books = self.books(rows.dim)
        some = np.random.default_rng(self.seed).choice(len(rows), min(FIT_ROWS, len(rows)), replace=False)
        return fit(rows.gather(np.sort(some)), books, self.codewords, seed=self.seed)


def encode_blocks(codebooks: Codebooks, rows: VectorRows, first: int = 0) -> Iterator[Codes]:
    """Codes of all rows from one on, some at a time."""
    for start in range(first, len(rows), ENCODE_ROWS):
        yield codebooks.encode(rows[start : start + ENCODE_ROWS])
