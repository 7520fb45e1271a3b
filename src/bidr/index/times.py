"""How long an index takes to build: work counted, over rates that were measured."""

import math

from bidr.index.engines.clusters import ORDERED_DOCUMENTS, POINTS_A_LIST, ROUNDS
from bidr.index.sizes import Shape

# CPU time of one core of a shared 2-core AMD EPYC (AVX2), 100,000 made vectors of 384 dimensions, codes of 16 bytes:
# `OMP_NUM_THREADS=1 python bench/build_rates.py`. Links: seconds for a document and each doubling of the corpus.
FIT_SECONDS = {8: 21.0, 4: 8.0}
CODING = {8: 39e9, 4: 45e9}
CLUSTERING = 75e9
LINKING = {8: 34e-6, 4: 75e-6}
WRITING = 86e6
NAMING = 37_000


def coding_flops(count: int, dim: int, bits: int) -> float:
    """Choosing codewords: a rotation, and a comparison with every codeword."""
    return 2.0 * count * dim * (dim + (1 << bits))


def clustering_flops(count: int, dim: int, lists: int) -> float:
    """Documents compared with centroids: a sample in every round of k-means, then each once; and turned back before."""
    sample = min(count, POINTS_A_LIST * lists)
    return 2.0 * dim * (lists * (ROUNDS * sample + count) + dim * (sample + count))


def build_seconds(shape: Shape, text: bool, cores: int) -> dict[str, float]:
    """Seconds by part. Coding, clustering and links use all cores; names and vectors are written by one."""
    count, dim = shape.count, shape.dim
    parts = {
        "codebooks": FIT_SECONDS[shape.bits],
        "coding": coding_flops(count, dim, shape.bits) / CODING[shape.bits] / cores,
    }
    if shape.engine == "lists" or count >= ORDERED_DOCUMENTS:
        lists = shape.lists if shape.engine == "lists" else max(1, shape.lists // 4)
        parts["clustering"] = clustering_flops(count, dim, lists) / CLUSTERING / cores
    if shape.engine == "hnsw":
        parts["links"] = count * max(1.0, math.log2(count)) * LINKING[shape.bits] / cores
    parts["vectors"] = 2.0 * count * dim / WRITING
    if text:
        parts["ids and text"] = count / NAMING
    return parts
