"""How long an index takes to build: work counted, over rates that were measured."""

import math
from typing import NamedTuple

from bidr.index.engines.clusters import ORDERED_DOCUMENTS, POINTS_A_LIST, ROUNDS
from bidr.index.sizes import Shape

# Provisional, being measured. Of one core of a shared 2-core AMD EPYC: `OMP_NUM_THREADS=1 python bench/build_rates.py`.
FIT_SECONDS = 20.0
CODING = {8: 39e9, 4: 39e9}
CLUSTERING = 40e9
LINKING = {8: 50e-6, 4: 50e-6}
WRITING = 80e6
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
    parts = {"codebooks": FIT_SECONDS, "coding": coding_flops(count, dim, shape.bits) / CODING[shape.bits] / cores}
    if shape.engine == "lists" or count >= ORDERED_DOCUMENTS:
        lists = shape.lists if shape.engine == "lists" else max(1, shape.lists // 4)
        parts["clustering"] = clustering_flops(count, dim, lists) / CLUSTERING / cores
    if shape.engine == "hnsw":
        parts["links"] = count * max(1.0, math.log2(count)) * LINKING[shape.bits] / cores
    parts["vectors"] = count * dim / WRITING
    if text:
        parts["ids and text"] = count / NAMING
    return parts
