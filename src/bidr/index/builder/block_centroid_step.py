"""The means of blocks of documents as they stand: steps of a build."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bidr.index.builder.block_centroids import MeanCoder, sampled
from bidr.index.builder.journal import Files, Step, Work, write_rows
from bidr.index.engines.block_centroids import choose_book_shape
from bidr.index.engines.engine_files import MEAN_WORDS_FILE, MEANS_FILE, read_codewords
from bidr.utils.array_types import Codes, Floats

AT_ONCE = 8_192


def write_means(
    work: Work, shape: tuple[int, int], means: Callable[[int], Iterator[Floats]], made_from: list[Any]
) -> Files:
    """The means, then codewords for them, then their codes. means: of blocks from one on, some at a time."""
    found, coder = work.rows("blocks.npy", made_from, "<f4", shape, means), MeanCoder(shape[1])

    def fit(step: Step) -> None:
        from safetensors.numpy import save

        coder.fit(sampled(found))
        with step.file(MEAN_WORDS_FILE) as out:
            out.write(save({"words": coder.words}))

    def encoded(first: int) -> Iterator[Codes]:
        return (coder.encode(np.array(found[at : at + AT_ONCE])) for at in range(first, len(found), AT_ONCE))

    def write(step: Step) -> None:
        coder.words = read_codewords(work.folder)
        write_rows(step, MEANS_FILE, np.dtype(np.uint8), (len(found), coder.code_bytes), encoded)

    files = work.run("mean words", [made_from, choose_book_shape(shape[1])], fit)
    return files | work.run("means", [made_from, files[MEAN_WORDS_FILE].xxh3], write)
