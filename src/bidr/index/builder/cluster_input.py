"""What documents are divided into lists and blocks by: their vectors, or what their codes say, in the space of queries.

Vectors divide better (docs/engines.md), but codes may be of another space than they: of an encoder of their own, or
with an adapter before them. So vectors count where plain codebooks give them the very codes that are there.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from bidr.quantization.codebooks import Codebooks
from bidr.utils.array_types import Codes, Floats
from bidr.utils.matmul import matmul_transposed

AT_ONCE = 8_192
# How many documents are coded again, and which share of the codewords must be what they have: vectors that were stored
# in a byte a dimension get .985 or more of them again, those of another model few.
LOOKED_AT, ALIKE = 256, 0.9
Which = slice | npt.NDArray[Any]


class Source:
    """Documents as float32 in the space of queries, some at a time: as vectors say.

    name: what tells steps of a build that go by it from those of another engine, which may go by codes.
    """

    name = "vectors"

    def __init__(self, array: Any) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    def of(self, array: Any) -> "Source":
        """The same of other documents."""
        return Source(array)

    def __getitem__(self, which: Which) -> Floats:
        return self.floats(self.array[which])

    def floats(self, rows: Any) -> Floats:
        """What rows of `array` say."""
        return np.ascontiguousarray(rows, dtype=np.float32)

    def blocks(self, first: int = 0) -> Iterator[tuple[int, Floats]]:
        """Documents from a row on."""
        for start in range(first, len(self), AT_ONCE):
            yield start, self[start : start + AT_ONCE]


class Decoded(Source):
    """As codes say."""

    name = "codes"

    def __init__(self, codebooks: Codebooks, codes: Codes) -> None:
        super().__init__(codes)
        self._codebooks = codebooks

    def of(self, array: Codes) -> "Decoded":
        return Decoded(self._codebooks, array)

    def floats(self, rows: Any) -> Floats:
        return np.ascontiguousarray(in_query_space(self._codebooks, np.asarray(rows)), dtype=np.float32)


def in_query_space(codebooks: Codebooks, codes: Codes) -> Floats:
    """What codes say of documents, in the space of queries: (n, dim)."""
    books, _, width = codebooks.centroids.shape
    if len(codebooks.rotation) <= codebooks.dim:
        return matmul_transposed(codebooks.decode(codes), codebooks.rotation.T)
    # Additive codes: a copy of the space for every book, so side by side they would take as many times the memory.
    parts = codebooks.rotation.reshape(books, width, -1)
    total = np.zeros((len(codes), codebooks.dim), dtype=np.float32)
    for book in range(books):
        total += matmul_transposed(codebooks.centroids[book], parts[book].T)[codes[:, book]]
    summed: Floats = total
    return summed


def source_of(codebooks: Codebooks, codes: Codes, vectors: Any) -> Source:
    """What documents with codes and vectors are divided by."""
    return Source(vectors) if in_the_same_space(codebooks, codes, vectors) else Decoded(codebooks, codes)


def in_the_same_space(codebooks: Codebooks, codes: Codes, vectors: Any) -> bool:
    """Whether codes are of these vectors, and a query's products with both mean the same."""
    rotation = codebooks.rotation
    if codebooks.document is not None or codebooks.choosing is not None or rotation.shape[0] != rotation.shape[1]:
        return False
    if vectors.shape[1] != codebooks.dim or not np.allclose(rotation @ rotation.T, np.eye(len(rotation)), atol=1e-3):
        return False
    rows = np.unique(np.linspace(0, len(codes) - 1, LOOKED_AT).astype(np.int64))
    again = codebooks.encode(np.asarray(vectors[rows], dtype=np.float32))
    return float(np.mean(again == np.asarray(codes[rows]))) >= ALIKE
