"""How long an index takes to build: work counted, step by step as a build does it, times rates that were measured."""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from bidr.index.builder.coarse_clustering import MAX_BRUTE_FORCE_LISTS, MIN_ORDERED_DOCUMENTS, ROUNDS, get_sample_size
from bidr.index.builder.reorder import GROUP, MAX_BATCH_ROWS, PIECE
from bidr.index.cost_model.sizes import FLOAT, Shape
from bidr.index.engines.block_centroids import has_block_centroids
from bidr.index.engines.graph.build import POOL_FACTOR, ROWS_PER_RANGE
from bidr.index.engines.graph.engine import get_candidate_count
from bidr.index.engines.pshufb import BLOCK
from bidr.index.types import EF_CONSTRUCTION
from bidr.index.vectors import WRITE_ROWS
from bidr.quantization.pq_training import FIT_ROWS

# A page that is missing brings its neighbours along: so many bytes of a file that is mapped.
BROUGHT = 1 << 16
LOOKED_THROUGH = POOL_FACTOR * get_candidate_count(EF_CONSTRUCTION)
# Of fitting codebooks, what threads share (384 dimensions: .63 with codes of 32 bytes of 4 bits, .76 with 16 of 8); the
# rest is finding rotations.
FIT_SHARED = 0.7


class Rates(NamedTuple):
    """Seconds of one core, for one kind of codes; where nothing else is said for a document.

    fitting:   codebooks, to FIT_ROWS vectors or more.
    coding:    reading a vector and choosing its codewords.
    turning:   putting its codewords together and turning them into the space of queries.
    reading:   its vector from the file that it is read from, of length 1.
    sampling:  the same, and putting it where k-means looks at it.
    comparing: with one centroid.
    summing:   in a round of k-means, adding it to a mean.
    ordering:  putting it where it stands.
    grouping, halving: near ones side by side for a graph, and each time that its cluster is divided in two; without
               turning or reading it, as the next three.
    blocking, parting: the same for blocks of lists.
    words_of_means: fitting codewords for the means of blocks, in all.
    averaging: making and coding the means.
    linking:   choosing links from LOOKED_THROUGH documents.
    piecing:   comparing a range of documents with the mean of a piece, before.
    packing:   writing its links.
    placing:   its code.
    writing:   its vector.
    finding:   a stretch of the file of vectors that is looked at first.
    naming:    its id, and its text where there is one.
    splitting: counting and writing one of its different words.
    row_bytes: of a vector in the file that is read.
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


# One core of a 2-core AMD EPYC (AVX-512), codes of 16 bytes, float32 vectors, as `bidr plan --measure` finds them.
# Of naming, ID_SHARE is for ids alone.
BUILT_DIM, ID_SHARE = 384, 0.3
# What grows with the dimensions.
GROWING = ["comparing", "reading", "sampling", "summing", "halving", "parting", "words_of_means", "averaging"]
GROWING += ["piecing", "writing", "row_bytes"]
BUILT_IN = {
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
BUILT_IN[4] = BUILT_IN[8]._replace(fitting=3.2, coding=3.1e-6)


@dataclass(frozen=True)
class Took:
    """CPU time of a step: what all cores share, and what one does alone.

    parts: how many parts what is shared is in at a time; a core without one waits for the others.
    """

    shared: float
    alone: float
    parts: float = math.inf

    @property
    def cpu(self) -> float:
        return self.shared + self.alone

    def __add__(self, other: "Took") -> "Took":
        return Took(self.shared + other.shared, self.alone + other.alone, min(self.parts, other.parts))

    def __mul__(self, times: float) -> "Took":
        return replace(self, shared=self.shared * times, alone=self.alone * times)

    def clock(self, cores: int) -> float:
        share = 1 / cores if self.parts == math.inf else math.ceil(self.parts / cores) / self.parts
        return self.shared * share + self.alone


def build_times(
    shape: Shape, rates: Rates, *, fits: bool = True, named: bool = True, postings: float = 0
) -> dict[str, Took]:
    """CPU time of every step, as `bidr build` names them.

    fits:     codebooks are fitted to the vectors; else codes are a model's, and making them is not counted.
    named:    documents have ids, and texts where rates were measured with some.
    postings: different words of a document that are indexed.

    Fitting, products of large matrices and dividing clusters are shared by the cores; the rest is done by one.
    """
    count, own, parts = shape.count, _source(shape, rates, fits), dict[str, Took]()
    if fits:
        parts["codebooks"] = Took(FIT_SHARED, 1 - FIT_SHARED) * (rates.fitting * min(1, count / FIT_ROWS))
        read = min(rates.reading, rates.coding)
        parts["coding"] = Took(count * (rates.coding - read), count * read)
    if ordered := shape.engine != "scan" or count >= MIN_ORDERED_DOCUMENTS:
        parts["clusters"] = _clusters(shape, rates, own)
        parts["order"] = _order(shape, rates, own)
    finding = rates.finding * _stretches(shape, rates, WRITE_ROWS)
    parts["vectors"] = Took(0, count * rates.writing + (finding if ordered else 0))
    parts["codes"] = Took(0, count * rates.placing * (2 if shape.engine == "hnsw" else 1))
    if shape.engine == "hnsw":
        parts["links"] = _links(shape, rates)
    if has_block_centroids(shape.engine, count):
        averaging = own.each + Took(0, rates.averaging)
        parts["means"] = averaging * count + Took(0, rates.words_of_means + (finding if own.vectors else 0))
    if named:
        parts["names"] = Took(0, count * rates.naming)
    if postings:
        parts["words"] = Took(0, count * postings * rates.splitting)
    return parts


class _Source(NamedTuple):
    """What documents are divided by: vectors, or what their codes say; and what it takes to have one of them."""

    vectors: bool
    each: Took


def _source(shape: Shape, rates: Rates, fits: bool) -> _Source:
    """Lists are divided by vectors, where the codes are of these vectors and the lists are not learned."""
    if shape.engine == "lists" and fits and not shape.learned:
        return _Source(True, Took(0, rates.reading))
    product = min(rates.turning, shape.dim * rates.comparing)
    return _Source(False, Took(product, rates.turning - product))


def _clusters(shape: Shape, rates: Rates, own: _Source) -> Took:
    """A sample compared with all centroids in every round of k-means, then each document once. Of vectors the sample
    is a file, which is looked at again in every round.

    A graph over very many centroids takes about as long as comparing with MANY_LISTS (33,000 centroids of 384
    dimensions: .32 ms a document, and .43 ms for all of them).
    """
    lists = lists_of(shape)
    sample = 0 if shape.learned else get_sample_size(shape.count, lists)
    compared = Took(min(lists, MAX_BRUTE_FORCE_LISTS) * rates.comparing, 0)
    again, once = own.each, Took(0, 0)
    if own.vectors:
        again, once = Took(0, rates.finding * FLOAT.itemsize * shape.dim / BROUGHT), Took(0, rates.sampling)
    rounds = (compared + again + Took(0, rates.summing)) * (ROUNDS * sample)
    return once * sample + rounds + (compared + own.each) * shape.count


def lists_of(shape: Shape) -> int:
    """How many clusters documents are divided into; an order alone needs no fine ones."""
    return shape.lists if shape.engine != "scan" else max(1, shape.lists // 4)


def _order(shape: Shape, rates: Rates, own: _Source) -> Took:
    """Each list is divided by one core: of large ones few are in memory at a time."""
    size, dividing, finding = shape.count / lists_of(shape), Took(0, 0), 0.0
    at_once = max(1, MAX_BATCH_ROWS // max(1, round(size)))
    if shape.engine == "hnsw":
        dividing = own.each + Took(rates.halving * halvings(size, GROUP), rates.grouping, at_once)
    if has_block_centroids(shape.engine, shape.count):
        dividing = own.each + Took(rates.parting * halvings(size, BLOCK), rates.blocking, at_once)
        finding = rates.finding * _stretches(shape, rates, MAX_BATCH_ROWS) if own.vectors else 0.0
    return (dividing + Took(0, rates.ordering)) * shape.count + Took(0, finding)


def halvings(size: float, part: int) -> float:
    """How often so many documents are divided in two until parts are small enough."""
    return math.log2(size / part + 1)


def _stretches(shape: Shape, rates: Rates, rows: int) -> float:
    """Stretches of the file that the rows of each block lie in, which are all over it, all blocks together."""
    there = shape.count * rates.row_bytes / BROUGHT
    looks = min(rows, shape.count) * (1 + rates.row_bytes / BROUGHT)
    return shape.count / rows * there * -math.expm1(-looks / there)


def _links(shape: Shape, rates: Rates) -> Took:
    """Each document compared with those among which its nearest are looked for; and before that each range of the
    corpus with every piece of it, which is little at 100,000 documents and nearly all of it at a hundred million."""
    count = shape.count
    share = min(count, LOOKED_THROUGH) / LOOKED_THROUGH
    products = min(rates.linking, LOOKED_THROUGH * rates.comparing)
    pieces = rates.piecing * (count / ROWS_PER_RANGE) * (count / PIECE)
    alone = (rates.linking - products) * share + rates.packing
    return Took(count * products * share + pieces, count * alone)


def built_in(bits: int, dim: int, text_bytes: float = 0) -> Rates:
    """Rates where none were measured: those of one machine for vectors of BUILT_DIM dimensions and texts of 1,000
    bytes, by what they grow with."""
    own, times, words = BUILT_IN[bits], dim / BUILT_DIM, 1 << bits
    squared = times * (dim + 128) / (BUILT_DIM + 128)
    by = dict.fromkeys(GROWING, times) | {"turning": squared, "linking": (times + 0.2) / 1.2}
    by |= {
        "fitting": times * (2 * dim + words) / (2 * BUILT_DIM + words),
        "coding": times * (dim + words) / (BUILT_DIM + words),
    }
    by["naming"] = ID_SHARE + (1 - ID_SHARE) * text_bytes / 1_000
    return Rates(*(rate * by.get(name, 1.0) for name, rate in own._asdict().items()))
