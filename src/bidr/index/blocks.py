"""The means of blocks of documents as they stand: steps of a build."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bidr.codes.codebooks import Codebooks, Codes
from bidr.index.engines.coding import MeanCoder, encoded, means_of, sampled, shape_of
from bidr.index.engines.files import MEAN_WORDS_FILE, MEANS_FILE, read_words
from bidr.index.engines.means import book_shape
from bidr.index.work import Files, Step, Work, write_rows


def write_means(
    work: Work,
    codebooks: Codebooks,
    codes: Codes,
    places: Any,
    placed: Callable[[int], Iterator[Codes]],
    made_from: Any,
) -> Files:
    """Codewords for means, then the means.

    places: which of the codes stands where; placed: codes in that order, from a place on, some whole blocks at a time.
    """
    coder = MeanCoder(codebooks.dim)

    def fit(step: Step) -> None:
        from safetensors.numpy import save

        wanted = np.concatenate([places[part] for part in sampled(len(codes))])
        rows = np.sort(wanted)  # read forwards: the array may be a file
        coder.fit(means_of(codebooks, codes[rows][np.searchsorted(rows, wanted)]))
        with step.file(MEAN_WORDS_FILE) as out:
            out.write(save({"words": coder.words}))

    def write(step: Step) -> None:
        coder.words = read_words(work.folder)
        blocks = encoded(coder, codebooks, placed)
        write_rows(step, MEANS_FILE, np.dtype(np.uint8), shape_of(coder, len(codes)), blocks)

    files = work.run("mean words", [made_from, book_shape(codebooks.dim)], fit)
    return files | work.run("means", [made_from, files[MEAN_WORDS_FILE].xxh3], write)
