"""The means of blocks of documents, as what codes say of these, and codes for the means."""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import numpy as np

from bidr.codes.codebooks import Codebooks, Codes, Floats
from bidr.index.engines.clusters import AT_ONCE, in_query_space
from bidr.index.engines.means import BITS, FITTED, ROUNDS, blocks_of, book_shape, filled
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


def means_of(codebooks: Codebooks, codes: Codes) -> Floats:
    """What the codes of each 32 documents say on average, in the space of queries; the last may be fewer."""
    return np.concatenate([_means(codebooks, codes[at : at + AT_ONCE]) for at in range(0, len(codes), AT_ONCE)])


def sampled(count: int) -> list[slice]:
    """Places of whole blocks that stand evenly over the corpus, for codewords to be fitted to."""
    whole = count // BLOCK
    blocks = np.unique(np.linspace(0, whole - 1, min(FITTED, whole)).astype(np.int64))
    return [slice(BLOCK * block, BLOCK * block + BLOCK) for block in blocks.tolist()]


def coded_means(codebooks: Codebooks, placed: Codes) -> tuple[Floats, Codes]:
    """Codewords and codes of the means of documents in the order in which they stand, all in memory."""
    coder = MeanCoder(codebooks.dim)
    coder.fit(means_of(codebooks, np.concatenate([placed[part] for part in sampled(len(placed))])))
    return coder.words, coder.encode(means_of(codebooks, placed))


def encoded(
    coder: MeanCoder, codebooks: Codebooks, placed: Callable[[int], Iterator[Codes]]
) -> Callable[[int], Iterator[Codes]]:
    """Codes of means from a block on, some at a time. placed: documents' codes from a place on, by whole blocks."""
    return lambda first: (coder.encode(means_of(codebooks, codes)) for codes in placed(BLOCK * first))


def shape_of(coder: MeanCoder, count: int) -> tuple[int, int]:
    return blocks_of(count), coder.code_bytes


def _means(codebooks: Codebooks, codes: Codes) -> Floats:
    heads = np.arange(0, len(codes), BLOCK)
    summed = np.add.reduceat(in_query_space(codebooks, np.asarray(codes)), heads)
    sizes = np.diff(heads, append=len(codes)).astype(np.float32)
    return np.ascontiguousarray(summed / sizes[:, None], dtype=np.float32)
