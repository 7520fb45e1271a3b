"""The means of blocks of 32 documents as they stand, coded: steps of a build."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np

from bidr.codes.codebooks import Codebooks, Codes, Floats
from bidr.index.engines.clusters import in_query_space
from bidr.index.engines.files import MEAN_WORDS_FILE, MEANS_FILE
from bidr.index.engines.means import BITS, FEWEST, FITTED, ROUNDS, blocks_of, books_for
from bidr.index.engines.shuffle import BLOCK
from bidr.index.work import Blocks, Files, Step, Work, write_rows


def has_means(engine: str, count: int) -> bool:
    """Whether an index of so many documents has means of blocks."""
    return engine == "lists" and blocks_of(count) >= FEWEST


def write_means(work: Work, codebooks: Codebooks, count: int, placed: Blocks, some: Codes, made_from: Any) -> Files:
    """Codewords for means, then the means. placed: codes in the order in which documents stand, from a place on, by a
    multiple of 32; some: codes of whole blocks, to fit codewords to."""
    from safetensors.numpy import load, save

    coder = _coder(codebooks.dim)

    def fit(step: Step) -> None:
        coder.train(means_of(codebooks, some))
        faiss: Any = import_module("faiss")
        words = faiss.vector_to_array(coder.centroids).reshape(coder.M, coder.ksub, coder.dsub)
        with step.file(MEAN_WORDS_FILE) as out:
            out.write(save({"words": words}))

    def coded(first: int) -> Iterator[Codes]:
        return (coder.compute_codes(means_of(codebooks, block)) for block in placed(BLOCK * first))

    def write(step: Step) -> None:
        words = load((work.folder / MEAN_WORDS_FILE).read_bytes())["words"]
        import_module("faiss").copy_array_to_vector(words.ravel(), coder.centroids)
        write_rows(step, MEANS_FILE, np.dtype(np.uint8), (blocks_of(count), coder.code_size), coded)

    files = work.run("mean words", made_from, fit)
    return files | work.run("means", [made_from, files[MEAN_WORDS_FILE]], write)


def sampled(count: int) -> Iterator[slice]:
    """Places of blocks that stand evenly over the corpus."""
    blocks = blocks_of(count)
    for block in np.unique(np.linspace(0, blocks - 1, min(FITTED, blocks)).astype(np.int64)).tolist():
        yield slice(BLOCK * block, min(BLOCK * block + BLOCK, count))


def means_of(codebooks: Codebooks, codes: Codes) -> Floats:
    """What the codes of each 32 documents say on average, in the space of queries; the last may be fewer."""
    heads = np.arange(0, len(codes), BLOCK)
    summed = np.add.reduceat(in_query_space(codebooks, codes), heads)
    sizes = np.diff(heads, append=len(codes)).astype(np.float32)
    return np.ascontiguousarray(summed / sizes[:, None], dtype=np.float32)


def _coder(dim: int) -> Any:
    faiss: Any = import_module("faiss")
    coder = faiss.ProductQuantizer(dim, books_for(dim), BITS)
    coder.cp.niter, coder.cp.max_points_per_centroid = ROUNDS, FITTED
    return coder
