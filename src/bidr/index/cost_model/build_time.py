"""Estimate build time: operations of each build step times calibrated rates."""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from bidr.index.builder.coarse_clustering import MAX_BRUTE_FORCE_LISTS, MIN_ORDERED_DOCUMENTS, ROUNDS, get_sample_size
from bidr.index.builder.reorder import GROUP, MAX_BATCH_ROWS, PIECE
from bidr.index.candidate_source import EF_CONSTRUCTION
from bidr.index.cost_model.sizes import FLOAT, Shape
from bidr.index.engines.block_centroids import has_block_centroids
from bidr.index.engines.fast_scan_kernels import BLOCK
from bidr.index.engines.graph.construction import POOL_FACTOR, ROWS_PER_RANGE
from bidr.index.engines.graph.engine import get_candidate_count
from bidr.index.vectors import WRITE_ROWS
from bidr.quantization.pq_training import FIT_ROWS

# Bytes that the kernel maps around a page fault of a mapped file.
FAULT_AROUND_BYTES = 1 << 16
LINK_CANDIDATES = POOL_FACTOR * get_candidate_count(EF_CONSTRUCTION)
# Share of codebook training that runs in parallel (384 dimensions: .63 with 32 bytes of 4-bit codes, .76 with 16 of
# 8-bit codes); the rest computes rotations.
FIT_PARALLEL_SHARE = 0.7


class Rates(NamedTuple):
    """CPU seconds of one core for one kind of codes, per document unless stated otherwise.

    fitting:   training codebooks on FIT_ROWS vectors or more, in all.
    coding:    reading a vector and encoding it.
    turning:   decoding it and rotating it into query space.
    reading:   reading its vector from the input file and normalizing it.
    sampling:  the same, and copying it to the sample of k-means.
    comparing: per centroid compared.
    summing:   adding it to a mean in a round of k-means.
    ordering:  writing its position.
    grouping, halving: ordering for a graph, and per bisection of its cluster; without turning or reading, like the
               next three.
    blocking, parting: the same for blocks of IVF lists.
    words_of_means: training the quantizer of block centroids, in all.
    averaging: computing and encoding block centroids.
    linking:   choosing links from LINK_CANDIDATES documents.
    piecing:   comparing a range of documents with the mean of a piece, before.
    packing:   writing its links.
    placing:   writing its code.
    writing:   writing its vector.
    finding:   per first access to FAULT_AROUND_BYTES of the file of vectors.
    naming:    writing its id, and its text if any.
    splitting: per term: counting and writing a posting.
    row_bytes: bytes of a vector in the input file.
    """

    fitting: float
    coding: float
    turning: float
    reading: float
    sampling: float
    comparing: float
    summing: float
    ordering: float
    grouping: float
    halving: float
    blocking: float
    parting: float
    words_of_means: float
    averaging: float
    linking: float
    piecing: float
    packing: float
    placing: float
    writing: float
    finding: float
    naming: float
    splitting: float
    row_bytes: float


# Rates of one core of a 2-core AMD EPYC (AVX-512), codes of 16 bytes, float32 vectors, by `bidr plan --measure`.
# ID_SHARE of naming is for ids alone.
DEFAULT_DIM, ID_SHARE = 384, 0.3
# Rates that are proportional to the dimensions.
DIM_RATES = ["comparing", "reading", "sampling", "summing", "halving", "parting", "words_of_means", "averaging"]
DIM_RATES += ["piecing", "writing", "row_bytes"]
DEFAULT_RATES = {
    8: Rates(
        fitting=6.0,
        coding=6.6e-6,
        turning=1.5e-6,
        reading=0.4e-6,
        sampling=1.1e-6,
        comparing=4e-9,
        summing=0.08e-6,
        ordering=0.08e-6,
        grouping=0.6e-6,
        halving=0.06e-6,
        blocking=0.4e-6,
        parting=0.37e-6,
        words_of_means=0.45,
        averaging=0.74e-6,
        linking=260e-6,
        piecing=0.17e-6,
        packing=8.2e-6,
        placing=0.08e-6,
        writing=1.7e-6,
        finding=4.2e-6,
        naming=7.6e-6,
        splitting=1e-6,
        row_bytes=1536.0,
    )
}
DEFAULT_RATES[4] = DEFAULT_RATES[8]._replace(fitting=3.2, coding=3.1e-6)


@dataclass(frozen=True)
class StepCost:
    """CPU seconds of a step: parallel and serial.

    tasks: number of parallel tasks in flight; cores beyond it are idle.
    """

    parallel: float
    serial: float
    tasks: float = math.inf

    @property
    def cpu(self) -> float:
        return self.parallel + self.serial

    def __add__(self, other: "StepCost") -> "StepCost":
        return StepCost(self.parallel + other.parallel, self.serial + other.serial, min(self.tasks, other.tasks))

    def __mul__(self, factor: float) -> "StepCost":
        return replace(self, parallel=self.parallel * factor, serial=self.serial * factor)

    def get_wall_time(self, cores: int) -> float:
        share = 1 / cores if self.tasks == math.inf else math.ceil(self.tasks / cores) / self.tasks
        return self.parallel * share + self.serial


def estimate_build_times(
    shape: Shape, rates: Rates, *, fits_codebooks: bool = True, has_ids: bool = True, postings: float = 0
) -> dict[str, StepCost]:
    """Return the cost of every step, by its name in `bidr build`.

    Args:
        shape: of the index.
        rates: of this machine.
        fits_codebooks: codebooks are trained on the vectors; otherwise codes come from a model and are not included.
        has_ids: documents have ids, and texts if the rates were measured with some.
        postings: different indexed terms of a document.

    Training, matrix products and bisection of clusters run in parallel; everything else on one core.
    """
    count, source, steps = shape.count, _choose_source(shape, rates, fits_codebooks), dict[str, StepCost]()
    if fits_codebooks:
        fitting = StepCost(FIT_PARALLEL_SHARE, 1 - FIT_PARALLEL_SHARE)
        steps["codebooks"] = fitting * (rates.fitting * min(1, count / FIT_ROWS))
        reading = min(rates.reading, rates.coding)
        steps["coding"] = StepCost(count * (rates.coding - reading), count * reading)
    if is_ordered := shape.engine != "scan" or count >= MIN_ORDERED_DOCUMENTS:
        steps["clusters"] = _estimate_clustering(shape, rates, source)
        steps["order"] = _estimate_ordering(shape, rates, source)
    finding = rates.finding * _count_page_faults(shape, rates, WRITE_ROWS)
    steps["vectors"] = StepCost(0, count * rates.writing + (finding if is_ordered else 0))
    steps["codes"] = StepCost(0, count * rates.placing * (2 if shape.engine == "hnsw" else 1))
    if shape.engine == "hnsw":
        steps["links"] = _estimate_linking(shape, rates)
    if has_block_centroids(shape.engine, count):
        averaging = source.row_cost + StepCost(0, rates.averaging)
        finding = finding if source.has_vectors else 0
        steps["means"] = averaging * count + StepCost(0, rates.words_of_means + finding)
    if has_ids:
        steps["names"] = StepCost(0, count * rates.naming)
    if postings:
        steps["words"] = StepCost(0, count * postings * rates.splitting)
    return steps


class _ClusterSource(NamedTuple):
    """What is clustered, vectors or decoded codes, and the cost of reading one document."""

    has_vectors: bool
    row_cost: StepCost


def _choose_source(shape: Shape, rates: Rates, fits_codebooks: bool) -> _ClusterSource:
    """Lists are clustered by vectors if the codes encode these and the lists are not learned."""
    if shape.engine == "lists" and fits_codebooks and not shape.learned:
        return _ClusterSource(True, StepCost(0, rates.reading))
    product = min(rates.turning, shape.dim * rates.comparing)
    return _ClusterSource(False, StepCost(product, rates.turning - product))


def _estimate_clustering(shape: Shape, rates: Rates, source: _ClusterSource) -> StepCost:
    """Cost of k-means on a sample and of assigning each document.

    A sample of vectors is a file that is read in every round. Searching a graph of very many centroids takes about as
    long as comparing with MAX_BRUTE_FORCE_LISTS (33,000 centroids of 384 dimensions: .32 ms and .43 ms a document).
    """
    lists = count_clusters(shape)
    sample = 0 if shape.learned else get_sample_size(shape.count, lists)
    comparing = StepCost(min(lists, MAX_BRUTE_FORCE_LISTS) * rates.comparing, 0)
    round_reading, sampling = source.row_cost, StepCost(0, 0)
    if source.has_vectors:
        round_reading = StepCost(0, rates.finding * FLOAT.itemsize * shape.dim / FAULT_AROUND_BYTES)
        sampling = StepCost(0, rates.sampling)
    rounds = (comparing + round_reading + StepCost(0, rates.summing)) * (ROUNDS * sample)
    return sampling * sample + rounds + (comparing + source.row_cost) * shape.count


def count_clusters(shape: Shape) -> int:
    """Return the number of clusters; an order alone needs fewer."""
    return shape.lists if shape.engine != "scan" else max(1, shape.lists // 4)


def _estimate_ordering(shape: Shape, rates: Rates, source: _ClusterSource) -> StepCost:
    """Cost of bisecting lists, one core each; few large lists are in memory at a time."""
    size, bisecting, finding = shape.count / count_clusters(shape), StepCost(0, 0), 0.0
    tasks = max(1, MAX_BATCH_ROWS // max(1, round(size)))
    if shape.engine == "hnsw":
        bisecting = source.row_cost + StepCost(rates.halving * count_bisections(size, GROUP), rates.grouping, tasks)
    if has_block_centroids(shape.engine, shape.count):
        bisecting = source.row_cost + StepCost(rates.parting * count_bisections(size, BLOCK), rates.blocking, tasks)
        finding = rates.finding * _count_page_faults(shape, rates, MAX_BATCH_ROWS) if source.has_vectors else 0.0
    return (bisecting + StepCost(0, rates.ordering)) * shape.count + StepCost(0, finding)


def count_bisections(size: float, part: int) -> float:
    """Return how often documents are divided in two until parts have the given size."""
    return math.log2(size / part + 1)


def _count_page_faults(shape: Shape, rates: Rates, rows: int) -> float:
    """Expected page faults of reading the vectors in index order, in blocks of rows scattered over the input file."""
    pages = shape.count * rates.row_bytes / FAULT_AROUND_BYTES
    accesses = min(rows, shape.count) * (1 + rates.row_bytes / FAULT_AROUND_BYTES)
    return shape.count / rows * pages * -math.expm1(-accesses / pages)


def _estimate_linking(shape: Shape, rates: Rates) -> StepCost:
    """Cost of comparing each document with its candidates, and each range of documents with every piece.

    The second part is small at 100,000 documents and nearly everything at a hundred million.
    """
    count = shape.count
    share = min(count, LINK_CANDIDATES) / LINK_CANDIDATES
    products = min(rates.linking, LINK_CANDIDATES * rates.comparing)
    pieces = rates.piecing * (count / ROWS_PER_RANGE) * (count / PIECE)
    serial = (rates.linking - products) * share + rates.packing
    return StepCost(count * products * share + pieces, count * serial)


def scale_default_rates(bits: int, dim: int, text_bytes: float = 0) -> Rates:
    """Return the default rates, which are of DEFAULT_DIM dimensions and texts of 1,000 bytes, scaled to a corpus."""
    defaults, ratio, codewords = DEFAULT_RATES[bits], dim / DEFAULT_DIM, 1 << bits
    squared = ratio * (dim + 128) / (DEFAULT_DIM + 128)
    factors = dict.fromkeys(DIM_RATES, ratio) | {"turning": squared, "linking": (ratio + 0.2) / 1.2}
    factors |= {
        "fitting": ratio * (2 * dim + codewords) / (2 * DEFAULT_DIM + codewords),
        "coding": ratio * (dim + codewords) / (DEFAULT_DIM + codewords),
    }
    factors["naming"] = ID_SHARE + (1 - ID_SHARE) * text_bytes / 1_000
    return Rates(*(rate * factors.get(name, 1.0) for name, rate in defaults._asdict().items()))
