"""The means of blocks of documents, and codes for them."""

import numpy as np

from bidr.index.code_packing import pack
from bidr.index.engines.block_centroids import (
    BITS,
    CODEWORDS,
    TRAINING_BLOCKS,
    TRAINING_ROUNDS,
    choose_book_shape,
    pad_columns,
)
from bidr.index.engines.pshufb import BLOCK
from bidr.quantization.kmeans import Nearest
from bidr.quantization.pq_training import first_centroids, kmeans_step
from bidr.utils.array_types import Codes, Floats

SEED = 0


class MeanCoder:
    """Codes means with 16 codewords a book, side by side and as they are: a rotation would find hardly more.

    words: (books, 16, width).
    """

    def __init__(self, dim: int) -> None:
        books, width = choose_book_shape(dim)
        self._dim, self.words = books * width, np.empty((books, CODEWORDS, width), dtype=np.float32)

    @property
    def code_bytes(self) -> int:
        return (len(self.words) * BITS + 7) // 8

    def fit(self, means: Floats) -> None:
        rows, random = pad_columns(means, self._dim), np.random.default_rng(SEED)
        self.words = first_centroids(rows, len(self.words), CODEWORDS, random)
        for _ in range(TRAINING_ROUNDS):
            _, self.words = kmeans_step(rows, self.words, random)

    def encode(self, means: Floats) -> Codes:
        """Two codes a byte, the first one low."""
        return pack(Nearest(self.words).search(pad_columns(means, self._dim)).astype(np.uint8), BITS)


def means_of(rows: Floats) -> Floats:
    """The mean of each 32 rows; the last may be of fewer."""
    heads = np.arange(0, len(rows), BLOCK)
    sizes = np.diff(heads, append=len(rows)).astype(np.float32)
    return np.ascontiguousarray(np.add.reduceat(rows, heads) / sizes[:, None], dtype=np.float32)


def sampled(means: Floats) -> Floats:
    """Means of blocks that stand evenly over the corpus, for codewords to be fitted to."""
    some = np.unique(np.linspace(0, len(means) - 1, min(TRAINING_BLOCKS, len(means))).astype(np.int64))
    return np.array(means[some], dtype=np.float32)


def coded_means(means: Floats) -> tuple[Floats, Codes]:
    """Codewords and codes of means that are all in memory."""
    coder = MeanCoder(means.shape[1])
    coder.fit(sampled(means))
    return coder.words, coder.encode(means)
