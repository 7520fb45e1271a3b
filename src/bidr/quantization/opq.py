"""Codes that are fitted to a user's vectors and not learned: an index without any training."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from bidr.data.vector_source import Metric, VectorSource
from bidr.errors import ConfigError, DataError
from bidr.quantization.codebooks import ENCODE_ROWS, Codebooks, check_shape
from bidr.quantization.pq_training import FIT_ROWS, fit_pq
from bidr.utils.array_types import Codes

DEFAULT_BYTES, PLANNED_BYTES = 32, 16
# Distances between larger numbers do not fit 32 bits.
MAX_MAGNITUDE = 1e15


class PlainCodes(NamedTuple):
    """OPQ codes. bytes_per_doc: by default 32, or the most below that divide the dimensions.

    codewords: 16 a book are quicker to scan, 256 finer at the same bytes.
    """

    bytes_per_doc: int | None = None
    codewords: Literal[16, 256] = 16
    metric: Metric = "cosine"
    seed: int = 0

    def list_sizes(self, dim: int) -> list[int]:
        """The bytes that codes of vectors of so many dimensions can take: their codebooks divide the dimensions."""
        return [size for size in range(1, dim // self._books_per_byte + 1) if dim % (self._books_per_byte * size) == 0]

    def count_books(self, dim: int) -> int:
        """How many codebooks vectors get; refuses what cannot be, before anything is computed."""
        each, fitting, size = self._books_per_byte, self.list_sizes(dim), self.bytes_per_doc
        if size is None and not fitting:
            raise ConfigError(
                f"codewords: 16 take an even number of codebooks, which cannot divide the {dim} dimensions of the "
                "vectors; take 256 codewords (--codewords 256)"
            )
        if size is None:
            size = max(own for own in fitting if own <= DEFAULT_BYTES)
        if size not in fitting:
            near = sorted(sorted(fitting, key=lambda other: abs(other - size))[:3])
            choose = f"choose {' or '.join(map(str, near))}" if near else "take 256 codewords"
            raise ConfigError(
                f"bytes_per_doc: given {size}, that is {each * size} codebooks of {self.codewords} codewords, expected "
                f"a number of codebooks that divides the {dim} dimensions; {choose}"
            )
        check_shape(dim, each * size, self.codewords)
        return each * size

    @property
    def _books_per_byte(self) -> int:
        """Codebooks that a byte holds."""
        return 1 if self.codewords == 256 else 2

    def fit(self, rows: VectorSource) -> Codebooks:
        books = self.count_books(rows.dim)
        some = np.random.default_rng(self.seed).choice(len(rows), min(FIT_ROWS, len(rows)), replace=False)
        sample = rows.gather(np.sort(some))
        if (largest := float(np.abs(sample).max())) > MAX_MAGNITUDE:
            raise DataError(
                f"{rows.name}: a row holds a number of {largest:g} in size, expected numbers up to {MAX_MAGNITUDE:g}; "
                "scale or normalise the vectors"
            )
        return fit_pq(sample, books, self.codewords, seed=self.seed)


def encode_blocks(codebooks: Codebooks, rows: VectorSource, first: int = 0) -> Iterator[Codes]:
    """Codes of all rows from one on, some at a time."""
    for start in range(first, len(rows), ENCODE_ROWS):
        yield codebooks.encode(rows[start : start + ENCODE_ROWS])


def list_bits(dim: int, size: int) -> list[int]:
    """Of 8 and 4 bits a codeword those of which codes of a size can be made; refuses a size that neither can have."""
    sizes = {8: PlainCodes(codewords=256).list_sizes(dim), 4: PlainCodes(codewords=16).list_sizes(dim)}
    found = [bits for bits, own in sizes.items() if size in own]
    if not found:
        near = sorted({other for own in sizes.values() for other in own}, key=lambda other: abs(other - size))
        raise ConfigError(
            f"bytes_per_doc: given {size}, expected a number of codebooks (one a byte, or two of 4 bits) that divides "
            f"the {dim} dimensions; choose {' or '.join(map(str, sorted(near[:3])))}"
        )
    return found


def choose_planned_bytes(dim: int) -> int:
    """Bytes of a code to plan with: 16, or the most below that vectors of so many dimensions can have."""
    if dim < 1:
        raise ConfigError(f"dim: given {dim}, expected 1 or more")
    return max(size for size in PlainCodes(codewords=256).list_sizes(dim) if size <= PLANNED_BYTES)
