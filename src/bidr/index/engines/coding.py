"""The means of blocks of documents, and codes for them."""

from importlib import import_module
from typing import Any

import numpy as np

from bidr.codes.codebooks import Codes, Floats
from bidr.index.engines.means import BITS, FITTED, ROUNDS, book_shape, filled
from bidr.index.engines.shuffle import BLOCK


class MeanCoder:
    """Codes means with 16 codewords a book, side by side and as they are: a rotation would find hardly more."""

    def __init__(self, dim: int) -> None:
        self._faiss: Any = import_module("faiss")
        books, width = book_shape(dim)
        self._coder = self._faiss.ProductQuantizer(books * width, books, BITS)
        self._coder.cp.niter, self._coder.cp.max_points_per_centroid = ROUNDS, FITTED

    @property
    def code_bytes(self) -> int:
        return int(self._coder.code_size)

    @property
    def words(self) -> Floats:
        """(books, 16, width)."""
        shape = (self._coder.M, self._coder.ksub, self._coder.dsub)
        words: Floats = self._faiss.vector_to_array(self._coder.centroids).reshape(shape)
        return words

    @words.setter
    def words(self, words: Floats) -> None:
        self._faiss.copy_array_to_vector(np.ascontiguousarray(words, dtype=np.float32).ravel(), self._coder.centroids)

    def fit(self, means: Floats) -> None:
        self._coder.train(filled(means, self._coder.d))

    def encode(self, means: Floats) -> Codes:
        """Two codes a byte, the first one low."""
        codes: Codes = self._coder.compute_codes(filled(means, self._coder.d))
        return codes


def means_of(rows: Floats) -> Floats:
    """The mean of each 32 rows; the last may be of fewer."""
    heads = np.arange(0, len(rows), BLOCK)
    sizes = np.diff(heads, append=len(rows)).astype(np.float32)
    return np.ascontiguousarray(np.add.reduceat(rows, heads) / sizes[:, None], dtype=np.float32)


def sampled(means: Floats) -> Floats:
    """Means of blocks that stand evenly over the corpus, for codewords to be fitted to."""
    some = np.unique(np.linspace(0, len(means) - 1, min(FITTED, len(means))).astype(np.int64))
    return np.array(means[some], dtype=np.float32)


def coded_means(means: Floats) -> tuple[Floats, Codes]:
    """Codewords and codes of means that are all in memory."""
    coder = MeanCoder(means.shape[1])
    coder.fit(sampled(means))
    return coder.words, coder.encode(means)
