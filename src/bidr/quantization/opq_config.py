"""OPQ settings for indexes without a trained model."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from bidr.data.vector_source import Metric, VectorSource
from bidr.errors import ConfigError, DataError
from bidr.quantization.codebooks import ENCODE_ROWS, Codebooks, check_shape
from bidr.quantization.distance_codes import make_distance_codebooks
from bidr.quantization.pq_training import FIT_ROWS, ITERATIONS, fit_pq
from bidr.utils.array_types import Codes, Floats
from bidr.utils.deprecation import DeprecatedAlias
from bidr.utils.progress import ProgressCallback, show_progress

DEFAULT_BYTES = 32
# Squared distances between larger numbers overflow float32.
MAX_MAGNITUDE = 1e15


class PlainCodes(NamedTuple):
    """OPQ settings.

    bytes_per_doc: None: a build chooses on a sample of the vectors; of few vectors 32, or the largest size from 16 on
                   that divides the dimensions.
    codewords:     16 per book scan faster, 256 are more accurate at the same size.
    """

    bytes_per_doc: int | None = None
    codewords: Literal[16, 256] = 16
    metric: Metric = "cosine"
    seed: int = 0

    def list_sizes(self, dim: int) -> list[int]:
        """List the code sizes in bytes whose number of codebooks divides `dim`."""
        return [size for size in range(1, dim // self._books_per_byte + 1) if dim % (self._books_per_byte * size) == 0]

    def get_max_size(self, dim: int) -> int:
        """Return the largest code size in bytes: one codebook a dimension."""
        return max(dim // self._books_per_byte, 1)

    def choose_size(self, dim: int, size: int) -> int:
        """Return the largest size up to `size` that divides `dim`; where that is below half of it, `size` itself.

        Vectors are then padded with zeros, which the rotation of OPQ spreads over the codebooks.
        """
        size = min(size, self.get_max_size(dim))
        even = max((valid for valid in self.list_sizes(dim) if valid <= size), default=0)
        return even if 2 * even >= size else size

    def count_books(self, dim: int) -> int:
        """Return the number of codebooks; ConfigError for settings that are invalid for `dim`."""
        size = self.choose_size(dim, DEFAULT_BYTES) if self.bytes_per_doc is None else self.bytes_per_doc
        if not 1 <= size <= self.get_max_size(dim):
            raise ConfigError(
                f"bytes_per_doc: given {size}, expected 1 to {self.get_max_size(dim)}: a codebook of {self.codewords} "
                f"codewords for each of the {dim} dimensions at most"
            )
        books = self._books_per_byte * size
        check_shape(get_padded_dim(dim, books), books, self.codewords)
        return books

    @property
    def _books_per_byte(self) -> int:
        """Codebooks per byte."""
        return 1 if self.codewords == 256 else 2

    def fit(self, rows: VectorSource) -> Codebooks:
        """Train codebooks on a sample of the vectors."""
        books = self.count_books(rows.dim)
        sampled = np.random.default_rng(self.seed).choice(len(rows), min(FIT_ROWS, len(rows)), replace=False)
        sample = rows.gather(np.sort(sampled))
        refuse_huge_numbers(sample, rows.name)
        with show_progress("fit codebooks", 2 * ITERATIONS, "iterations") as advance:
            return self.fit_books(sample, books, advance=advance)

    def fit_books(
        self,
        sample: Floats,
        books: int,
        *,
        iterations: int = ITERATIONS,
        advance: ProgressCallback | None = None,
    ) -> Codebooks:
        """Train codebooks on vectors, padded where the number of books does not divide their dimensions."""
        dim = sample.shape[1]
        padded = np.pad(sample, ((0, 0), (0, get_padded_dim(dim, books) - dim)))
        codebooks = fit_pq(padded, books, self.codewords, iterations=iterations, seed=self.seed, advance=advance)
        # The columns of the padding multiply zeros.
        codebooks = codebooks._replace(rotation=np.ascontiguousarray(codebooks.rotation[:, :dim]))
        return make_distance_codebooks(codebooks) if self.metric == "l2" else codebooks


PlainCodes.sizes = DeprecatedAlias("PlainCodes.sizes", "list_sizes")  # type: ignore[attr-defined]
PlainCodes.books = DeprecatedAlias("PlainCodes.books", "count_books")  # type: ignore[attr-defined]


def refuse_huge_numbers(sample: Floats, name: str) -> None:
    """Raise DataError for numbers whose squared distances overflow."""
    if (largest := float(np.abs(sample).max())) > MAX_MAGNITUDE:
        raise DataError(
            f"{name}: a row holds a number of {largest:g} in size, expected numbers up to {MAX_MAGNITUDE:g}; "
            "scale or normalize the vectors"
        )


def get_padded_dim(dim: int, books: int) -> int:
    """Return the dimensions that the codebooks divide: `dim`, or the next multiple of their number."""
    return -(-dim // books) * books


def encode_blocks(codebooks: Codebooks, rows: VectorSource, first: int = 0) -> Iterator[Codes]:
    """Encode vectors block by block, from row `first` on."""
    for start in range(first, len(rows), ENCODE_ROWS):
        yield codebooks.encode(rows[start : start + ENCODE_ROWS])


def list_bits(dim: int, size: int) -> list[int]:
    """List the bits per codeword (8, 4) that allow codes of `size` bytes; ConfigError when none does."""
    limits = {bits: PlainCodes(codewords=words).get_max_size(dim) for bits, words in ((8, 256), (4, 16))}  # type: ignore[arg-type]
    if not 1 <= size <= limits[8]:
        raise ConfigError(
            f"bytes_per_doc: given {size}, expected 1 to {limits[8]}: at most a codebook for each of {dim} dimensions"
        )
    return [bits for bits, limit in limits.items() if size <= limit]
