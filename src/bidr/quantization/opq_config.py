"""OPQ settings for indexes without a trained model."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from bidr.data.vector_source import Metric, VectorSource
from bidr.errors import ConfigError, DataError
from bidr.quantization.codebooks import ENCODE_ROWS, Codebooks, check_shape
from bidr.quantization.pq_training import FIT_ROWS, ITERATIONS, fit_pq
from bidr.utils.array_types import Codes
from bidr.utils.deprecation import DeprecatedAlias
from bidr.utils.progress import show_progress

DEFAULT_BYTES = 32
# Squared distances between larger numbers overflow float32.
MAX_MAGNITUDE = 1e15


class PlainCodes(NamedTuple):
    """OPQ settings.

    bytes_per_doc: None: a build chooses on a sample of the vectors; of few vectors 32, or the largest valid size below.
    codewords:     16 per book scan faster, 256 are more accurate at the same size.
    """

    bytes_per_doc: int | None = None
    codewords: Literal[16, 256] = 16
    metric: Metric = "cosine"
    seed: int = 0

    def list_sizes(self, dim: int) -> list[int]:
        """List the valid code sizes in bytes: the number of codebooks must divide `dim`."""
        return [size for size in range(1, dim // self._books_per_byte + 1) if dim % (self._books_per_byte * size) == 0]

    def count_books(self, dim: int) -> int:
        """Return the number of codebooks; ConfigError for settings that are invalid for `dim`."""
        per_byte, sizes, size = self._books_per_byte, self.list_sizes(dim), self.bytes_per_doc
        if size is None and not sizes:
            raise ConfigError(
                f"codewords: 16 take an even number of codebooks, which cannot divide the {dim} dimensions of the "
                "vectors; take 256 codewords (--codewords 256)"
            )
        if size is None:
            size = max(valid for valid in sizes if valid <= DEFAULT_BYTES)
        if size < 1:
            raise ConfigError(f"bytes_per_doc: given {size}, expected 1 or more")
        if size not in sizes:
            nearest = sorted(sorted(sizes, key=lambda valid: abs(valid - size))[:3])
            choose = f"choose {' or '.join(map(str, nearest))}" if nearest else "take 256 codewords"
            raise ConfigError(
                f"bytes_per_doc: given {size}, that is {per_byte * size} codebooks of {self.codewords} codewords, "
                f"expected a number of codebooks that divides the {dim} dimensions; {choose}"
            )
        check_shape(dim, per_byte * size, self.codewords)
        return per_byte * size

    @property
    def _books_per_byte(self) -> int:
        """Codebooks per byte."""
        return 1 if self.codewords == 256 else 2

    def fit(self, rows: VectorSource) -> Codebooks:
        """Train codebooks on a sample of the vectors."""
        books = self.count_books(rows.dim)
        sampled = np.random.default_rng(self.seed).choice(len(rows), min(FIT_ROWS, len(rows)), replace=False)
        sample = rows.gather(np.sort(sampled))
        if (largest := float(np.abs(sample).max())) > MAX_MAGNITUDE:
            raise DataError(
                f"{rows.name}: a row holds a number of {largest:g} in size, expected numbers up to {MAX_MAGNITUDE:g}; "
                "scale or normalize the vectors"
            )
        with show_progress("fit codebooks", 2 * ITERATIONS, "iterations") as advance:
            return fit_pq(sample, books, self.codewords, seed=self.seed, advance=advance)


PlainCodes.sizes = DeprecatedAlias("PlainCodes.sizes", "list_sizes")  # type: ignore[attr-defined]
PlainCodes.books = DeprecatedAlias("PlainCodes.books", "count_books")  # type: ignore[attr-defined]


def encode_blocks(codebooks: Codebooks, rows: VectorSource, first: int = 0) -> Iterator[Codes]:
    """Encode vectors block by block, from row `first` on."""
    for start in range(first, len(rows), ENCODE_ROWS):
        yield codebooks.encode(rows[start : start + ENCODE_ROWS])


def list_bits(dim: int, size: int) -> list[int]:
    """List the bits per codeword (8, 4) that allow codes of `size` bytes; ConfigError when none does."""
    if size < 1:
        raise ConfigError(f"bytes_per_doc: given {size}, expected 1 or more")
    sizes = {8: PlainCodes(codewords=256).list_sizes(dim), 4: PlainCodes(codewords=16).list_sizes(dim)}
    bits = [bits for bits, valid in sizes.items() if size in valid]
    if not bits:
        nearest = sorted({*sizes[8], *sizes[4]}, key=lambda valid: abs(valid - size))
        raise ConfigError(
            f"bytes_per_doc: given {size}, expected a number of codebooks (one a byte, or two of 4 bits) that divides "
            f"the {dim} dimensions; choose {' or '.join(map(str, sorted(nearest[:3])))}"
        )
    return bits
