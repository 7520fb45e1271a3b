"""How long an index takes to build: work counted, over rates that were measured."""

from bidr.index.engines.arrange import PIECE
from bidr.index.engines.clusters import MANY_LISTS, ORDERED_DOCUMENTS, ROUNDS, sample_size
from bidr.index.engines.graph import chosen_from
from bidr.index.engines.linking import AMONG
from bidr.index.faissfile import EF_CONSTRUCTION
from bidr.index.sizes import Shape

# CPU time of one core of a 2-core AMD EPYC (AVX2) that others used too: the middle of two runs of
# `OMP_NUM_THREADS=1 python bench/build_rates.py` (100,000 vectors of 384 dimensions) and one with `--documents 40000
# --dim 768`, and the range. One of the former was cut off before its last figure.
FIT_SECONDS = {8: 24.0, 4: 8.0}  # 21 to 38, 8 to 21
CODING = {8: 39e9, 4: 45e9}  # operations a second: 27 to 63, 37 to 62
CLUSTERING = 74e9  # 69 to 78
LINKING = 35e9  # operations a second of choosing links: 27,000 MiniLM vectors, 8-bit codes of 16 bytes, busy machine
WRITING = 225e6  # bytes of fp16 a second: 225 to 366 (two runs)
NAMING = 63_000  # documents with 1,000 bytes of text a second: 37,000 to 94,000


def coding_flops(count: int, dim: int, bits: int) -> float:
    """Choosing codewords: a rotation, and a comparison with every codeword."""
    return 2.0 * count * dim * (dim + (1 << bits))


def clustering_flops(count: int, dim: int, lists: int) -> float:
    """Documents compared with centroids: a sample in every round of k-means, then each once; and turned back before.

    A graph over very many centroids takes about as long as comparing with MANY_LISTS (33,000 centroids of 384
    dimensions: .32 ms a document, and .43 ms for all of them).
    """
    sample = sample_size(count, lists)
    return 2.0 * dim * (min(lists, MANY_LISTS) + dim) * (ROUNDS * sample + count)


def linking_flops(count: int, dim: int) -> float:
    """Each document compared with those among which its nearest are looked for; and before that each piece of the
    corpus with every other, which is little up to some million documents and most of it from a hundred million on."""
    return 2.0 * count * dim * (min(count, AMONG * chosen_from(EF_CONSTRUCTION)) + count / PIECE**2)


def build_seconds(shape: Shape, text: bool, cores: int) -> dict[str, float]:
    """Seconds by part. Coding, clustering and links use all cores; names and vectors are written by one."""
    count, dim = shape.count, shape.dim
    parts = {
        "codebooks": FIT_SECONDS[shape.bits],
        "coding": coding_flops(count, dim, shape.bits) / CODING[shape.bits] / cores,
    }
    if shape.engine != "scan" or count >= ORDERED_DOCUMENTS:
        lists = shape.lists if shape.engine != "scan" else max(1, shape.lists // 4)
        parts["clustering"] = clustering_flops(count, dim, lists) / CLUSTERING / cores
    if shape.engine == "hnsw":
        parts["links"] = linking_flops(count, dim) / LINKING / cores
    parts["vectors"] = 2.0 * count * (shape.dims or dim) / WRITING
    if text:
        parts["ids and text"] = count / NAMING
    return parts
