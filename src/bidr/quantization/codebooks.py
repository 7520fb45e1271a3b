"""Product-quantization codebooks as plain arrays: encode, decode, score, save and load."""

import json
import math
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bidr.errors import ConfigError, ModelError
from bidr.quantization.kmeans import CentroidSearcher
from bidr.utils.array_types import Codes, Floats
from bidr.utils.deprecation import DeprecatedAlias
from bidr.utils.files import open_to_read
from bidr.utils.reproducible_matmul import ColumnPanels, matmul_transposed, multiply

ENCODE_ROWS = 16_384
MAX_HEADER_BYTES = 1 << 20
READ_ERRORS = (OSError, LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
"""Exceptions from reading a damaged array file, beside SafetensorError."""


class Codebooks(NamedTuple):
    """A rotation and M books of P codewords each; a document is M codeword numbers.

    rotation:  (rotated_dim, dim); vectors are rotated as ``x @ rotation.T``, the convention of Faiss.
    centroids: (M, P, rotated_dim / M).
    choosing:  codewords for encoding, if `centroids` were learned further after encoding; None: `centroids`.
    centre, document: offset and projection of documents for additive codes (see `AdditiveQuantizer`); `rotation` is
               then the projection of queries.
    """

    rotation: Floats
    centroids: Floats
    choosing: Floats | None = None
    centre: Floats | None = None
    document: Floats | None = None

    @property
    def books(self) -> int:
        return int(self.centroids.shape[0])

    @property
    def words(self) -> int:
        return int(self.centroids.shape[1])

    @property
    def dim(self) -> int:
        return int(self.rotation.shape[1])

    @property
    def bits(self) -> int:
        """Bits per codeword number."""
        return self.words.bit_length() - 1

    @property
    def bytes_per_doc(self) -> int:
        return self.books * self.bits // 8

    @property
    def are_of_distances(self) -> bool:
        """Whether inner products rank by Euclidean distance (see `distance_codes`)."""
        if self.choosing is None or self.document is not None:
            return False
        added = self.rotation[self.centroids.shape[2] - 1 :: self.centroids.shape[2]]
        return not self.choosing[:, :, -1].any() and not added[:, :-1].any() and bool((added[:, -1] > 0).all())

    def rotate(self, vectors: Floats) -> Floats:
        """Rotate vectors. Documents of distance codebooks lack the last component, which is 0."""
        return matmul_transposed(vectors, self._select_rotation(vectors))

    def _select_rotation(self, vectors: Floats) -> Floats:
        if vectors.shape[1] == self.dim - 1 and self.are_of_distances:
            return np.ascontiguousarray(self.rotation[:, :-1])
        return self.rotation

    def encode(self, vectors: Floats) -> Codes:
        """Find the nearest codeword (Euclidean) of every book: (n, M) uint8."""
        if self.document is not None:
            from bidr.quantization.additive_quantizer import to_additive

            return to_additive(self).encode(vectors)
        rotation = ColumnPanels(self._select_rotation(vectors))
        searcher = CentroidSearcher(self.centroids if self.choosing is None else self.choosing)
        codes = np.empty((len(vectors), self.books), dtype=np.uint8)
        for start in range(0, len(vectors), ENCODE_ROWS):
            part = slice(start, start + ENCODE_ROWS)
            codes[part] = searcher.search(multiply(vectors[part], rotation))
        return codes

    def decode(self, codes: Codes) -> Floats:
        """Concatenate the chosen codewords, in rotated space: (n, rotated_dim)."""
        return self.centroids[np.arange(self.books), codes].reshape(len(codes), len(self.rotation))

    def compute_scores(self, queries: Floats, codes: Codes) -> Floats:
        """Compute the inner products of queries with decoded documents: (queries, n)."""
        return matmul_transposed(self.rotate(queries), self.decode(codes))

    def save(self, path: Path) -> None:
        from safetensors.numpy import save_file

        arrays = {name: array for name, array in self._asdict().items() if array is not None}
        temporary = path.with_name(f".{path.name}.new")
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, temporary)
        temporary.replace(path)

    @classmethod
    def load(cls, path: Path, *, mapped: bool = False) -> "Codebooks":
        """Load from a safetensors file; `mapped`: as memory-mapped arrays."""
        from safetensors import SafetensorError

        try:
            codebooks = cls(**(_map_arrays(path) if mapped else load_arrays(path)))
            codebooks._check()
            return codebooks
        except (*READ_ERRORS, SafetensorError) as error:
            raise ModelError(f"{path}: not a codebook file ({error}); build or train it again") from error

    def _check(self) -> None:
        """Raise ValueError for arrays that are not valid codebooks."""
        check_arrays(self._asdict(), {"rotation": 2, "centroids": 3, "choosing": 3, "centre": 1, "document": 2})
        books, words, width = self.centroids.shape
        if words not in (16, 256) or len(self.rotation) != books * width:
            raise ValueError(f"centroids of shape {self.centroids.shape} for a rotation of {self.rotation.shape}")
        if self.choosing is not None and self.choosing.shape != self.centroids.shape:
            raise ValueError(f"choosing of shape {self.choosing.shape}, expected {self.centroids.shape}")
        if (self.centre is None) != (self.document is None) or (self.choosing is None and self.document is not None):
            raise ValueError("of choosing, centre and document one is missing")
        if self.centre is not None and self.document is not None:
            check_sums(self.centre, self.document, self.centroids)
            if self.dim != len(self.centre):
                raise ValueError(f"documents of {len(self.centre)} dimensions, queries of {self.dim}")


Codebooks.scores = DeprecatedAlias("Codebooks.scores", "compute_scores")  # type: ignore[attr-defined]


def check_arrays(arrays: dict[str, Floats | None], dimensions: dict[str, int]) -> None:
    """Raise ValueError for arrays of another dtype or ndim, empty arrays, and non-finite numbers."""
    for name, array in arrays.items():
        if array is None:
            continue
        if array.dtype != np.float32 or array.ndim != dimensions[name] or not array.size:
            raise ValueError(f"{name} is {array.dtype} of shape {array.shape}, expected {dimensions[name]} dimensions")
        if not np.isfinite(array).all():
            raise ValueError(f"{name} holds a number that is not finite")


def check_sums(centre: Floats, document: Floats, codewords: Floats) -> None:
    """Raise ValueError for projections that do not match the additive codewords."""
    books, _, width = codewords.shape
    groups = len(document) // width
    if document.shape[1] != len(centre) or len(document) % width or books % groups:
        raise ValueError(f"centre {centre.shape} and document {document.shape} for codewords of {codewords.shape}")


def load_arrays(path: Path) -> dict[str, Floats]:
    """Load the arrays of a safetensors file."""
    from safetensors.numpy import load_file

    open_to_read(path).close()
    return load_file(path)


def _map_arrays(path: Path) -> dict[str, Floats]:
    """Memory-map the arrays of a safetensors file: header length, JSON header, data."""
    with open_to_read(path) as file:
        size, file_size = int.from_bytes(file.read(8), "little"), os.fstat(file.fileno()).st_size
        if size > MAX_HEADER_BYTES:
            raise ValueError(f"a header of {size:,} bytes")
        header = json.loads(file.read(size))
    start = 8 + size
    arrays: dict[str, Floats] = {}
    for name, array in header.items():
        if name == "__metadata__":
            continue
        if array["dtype"] != "F32":
            raise ValueError(f"{name} is of type {array['dtype']}, expected F32")
        shape, (first, last) = tuple(array["shape"]), array["data_offsets"]
        if not all(isinstance(number, int) and number >= 0 for number in (*shape, first, last)):
            raise ValueError(f"{name} of shape {shape} at {first} to {last}")
        if last - first != 4 * math.prod(shape) or start + last > file_size:
            raise ValueError(f"{name} of shape {shape} at {first} to {last} of {file_size - start:,} bytes")
        arrays[name] = np.memmap(path, np.dtype("<f4"), "r", start + first, shape)
    return arrays


def check_shape(dim: int, books: int, words: int) -> None:
    """Raise ConfigError for invalid numbers of books or codewords."""
    if words not in (16, 256):
        raise ConfigError(f"codewords per book: given {words}, expected 256 (8 bits) or 16 (4 bits)")
    if books < 1 or dim % books:
        divisors = [m for m in range(1, dim + 1) if dim % m == 0]
        nearest = sorted(divisors, key=lambda m: abs(m - books))[:3]
        raise ConfigError(
            f"the number of codebooks must divide the dimension: given {books} for {dim} dimensions; "
            f"choose one of {', '.join(map(str, sorted(nearest)))}"
        )
