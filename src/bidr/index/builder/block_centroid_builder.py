"""Centroids of blocks of documents in index order, and their 4-bit product quantization."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bidr.index.builder.journal import Files, Step, WorkFolder, write_rows
from bidr.index.code_packing import pack
from bidr.index.engines.block_centroids import (
    BITS,
    CODEWORDS,
    TRAINING_BLOCKS,
    TRAINING_ROUNDS,
    choose_book_shape,
    pad_columns,
)
from bidr.index.engines.engine_files import BLOCK_CENTROIDS_FILE, BLOCK_CODEWORDS_FILE, read_codewords
from bidr.index.engines.fast_scan_kernels import BLOCK
from bidr.quantization.kmeans import CentroidSearcher
from bidr.quantization.pq_training import draw_centroids, run_kmeans_step
from bidr.utils.array_types import Codes, Floats

SEED = 0
BLOCK_ROWS = 8_192


class BlockCentroidQuantizer:
    """Product quantizer with 16 codewords a book, without OPQ: rotating gains hardly any recall here.

    codewords: (books, 16, width).
    """

    def __init__(self, dim: int) -> None:
        books, width = choose_book_shape(dim)
        self._dim, self.codewords = books * width, np.empty((books, CODEWORDS, width), dtype=np.float32)

    @property
    def code_bytes(self) -> int:
        return (len(self.codewords) * BITS + 7) // 8

    def fit(self, centroids: Floats) -> None:
        rows, random = pad_columns(centroids, self._dim), np.random.default_rng(SEED)
        self.codewords = draw_centroids(rows, len(self.codewords), CODEWORDS, random)
        for _ in range(TRAINING_ROUNDS):
            _, self.codewords = run_kmeans_step(rows, self.codewords, random)

    def encode(self, centroids: Floats) -> Codes:
        """Return packed codes: two to a byte, the first in the low bits."""
        return pack(CentroidSearcher(self.codewords).search(pad_columns(centroids, self._dim)).astype(np.uint8), BITS)


def compute_block_centroids(rows: Floats) -> Floats:
    """Return the mean of each 32 rows; the last block may be shorter."""
    starts = np.arange(0, len(rows), BLOCK)
    sizes = np.diff(starts, append=len(rows)).astype(np.float32)
    return np.ascontiguousarray(np.add.reduceat(rows, starts) / sizes[:, None], dtype=np.float32)


def sample_centroids(centroids: Floats) -> Floats:
    """Return evenly spaced centroids to train the quantizer on."""
    sample = np.unique(np.linspace(0, len(centroids) - 1, min(TRAINING_BLOCKS, len(centroids))).astype(np.int64))
    return np.array(centroids[sample], dtype=np.float32)


def quantize_block_centroids(centroids: Floats) -> tuple[Floats, Codes]:
    """Return codewords and codes of centroids in memory."""
    quantizer = BlockCentroidQuantizer(centroids.shape[1])
    quantizer.fit(sample_centroids(centroids))
    return quantizer.codewords, quantizer.encode(centroids)


def write_block_centroids(
    work: WorkFolder, shape: tuple[int, int], compute: Callable[[int], Iterator[Floats]], inputs: list[Any]
) -> Files:
    """Run the build steps that compute centroids, train their quantizer and encode them.

    Args:
        work: where the steps are stored.
        shape: number of blocks and dimensions.
        compute: yields the centroids from a block on.
        inputs: what the centroids depend on.
    """
    centroids, quantizer = (
        work.build_array("blocks.npy", inputs, "<f4", shape, compute),
        BlockCentroidQuantizer(shape[1]),
    )

    def fit(step: Step) -> None:
        from safetensors.numpy import save

        quantizer.fit(sample_centroids(centroids))
        with step.open_file(BLOCK_CODEWORDS_FILE) as out:
            out.write(save({"words": quantizer.codewords}))

    def encode(first: int) -> Iterator[Codes]:
        for start in range(first, len(centroids), BLOCK_ROWS):
            yield quantizer.encode(np.array(centroids[start : start + BLOCK_ROWS]))

    def write(step: Step) -> None:
        quantizer.codewords = read_codewords(work.folder)
        write_rows(step, BLOCK_CENTROIDS_FILE, np.dtype(np.uint8), (len(centroids), quantizer.code_bytes), encode)

    files = work.run_step("mean words", [inputs, choose_book_shape(shape[1])], fit)
    return files | work.run_step("means", [inputs, files[BLOCK_CODEWORDS_FILE].xxh3], write)
