"""Input of clustering: document vectors, or decoded codes in query space.

Vectors partition better (docs/reports/blocks.md). Codes may encode other vectors than the stored ones (another encoder,
or an adapter), so vectors are used only if plain codebooks encode them to these very codes.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from bidr.quantization.codebooks import Codebooks
from bidr.utils.array_types import Codes, Floats
from bidr.utils.reproducible_matmul import matmul_transposed

BLOCK_ROWS = 8_192
# Documents to encode again, and the share of codewords that must agree. Vectors restored from int8 agree in .985 or
# more of them, those of another model in few.
SAMPLE_ROWS, MIN_AGREEMENT = 256, 0.9
RowSelection = slice | npt.NDArray[Any]


class VectorInput:
    """Documents as float32 vectors in query space, read block by block from vectors.

    name: part of the hash of a step's inputs, as other engines may cluster decoded codes.
    """

    name = "vectors"

    def __init__(self, array: Any) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, rows: RowSelection) -> Floats:
        return self.to_floats(self.array[rows])

    def replace_array(self, array: Any) -> "VectorInput":
        """Return an input of the same kind over other documents."""
        return VectorInput(array)

    def to_floats(self, rows: Any) -> Floats:
        """Convert rows of `array` to vectors."""
        return np.ascontiguousarray(rows, dtype=np.float32)

    def iter_blocks(self, first: int = 0) -> Iterator[tuple[int, Floats]]:
        """Yield start and vectors of each block of rows, from a row on."""
        for start in range(first, len(self), BLOCK_ROWS):
            yield start, self[start : start + BLOCK_ROWS]


class DecodedCodes(VectorInput):
    """Documents as vectors decoded from codes."""

    name = "codes"

    def __init__(self, codebooks: Codebooks, codes: Codes) -> None:
        super().__init__(codes)
        self._codebooks = codebooks

    def replace_array(self, array: Codes) -> "DecodedCodes":
        return DecodedCodes(self._codebooks, array)

    def to_floats(self, rows: Any) -> Floats:
        return np.ascontiguousarray(decode_to_query_space(self._codebooks, np.asarray(rows)), dtype=np.float32)


def decode_to_query_space(codebooks: Codebooks, codes: Codes) -> Floats:
    """Decode codes to vectors (n, dim) whose inner product with a query is the score of the codes."""
    books, _, width = codebooks.centroids.shape
    if len(codebooks.rotation) < 2 * codebooks.dim:  # one slice of the query a book, padded at most
        return matmul_transposed(codebooks.decode(codes), codebooks.rotation.T)
    # Additive codes: each book spans all dimensions; concatenating the books would take that many times the memory.
    rotations = codebooks.rotation.reshape(books, width, -1)
    total: Floats = np.zeros((len(codes), codebooks.dim), dtype=np.float32)
    for book in range(books):
        total += matmul_transposed(codebooks.centroids[book], rotations[book].T)[codes[:, book]]
    return total


def choose_cluster_input(codebooks: Codebooks, codes: Codes, vectors: Any) -> VectorInput:
    """Return the vectors if the codes encode them, otherwise the decoded codes."""
    return VectorInput(vectors) if is_same_space(codebooks, codes, vectors) else DecodedCodes(codebooks, codes)


def is_same_space(codebooks: Codebooks, codes: Codes, vectors: Any) -> bool:
    """Return whether codes encode these vectors, and inner products with both approximate the same score."""
    rotation = codebooks.rotation
    if codebooks.document is not None or codebooks.choosing is not None or rotation.shape[0] < rotation.shape[1]:
        return False
    if vectors.shape[1] != codebooks.dim or not np.allclose(rotation.T @ rotation, np.eye(codebooks.dim), atol=1e-3):
        return False
    rows = np.unique(np.linspace(0, len(codes) - 1, SAMPLE_ROWS).astype(np.int64))
    encoded = codebooks.encode(np.asarray(vectors[rows], dtype=np.float32))
    return float(np.mean(encoded == np.asarray(codes[rows]))) >= MIN_AGREEMENT
