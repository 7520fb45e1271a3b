"""Batches for an epoch. Every sampler visits every query exactly once and never gives a positive as a negative.

An epoch's plan is a function of the seed and the epoch's number alone, so that every process draws the same batches
and a resumed run continues where it stopped.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from bidr.data.positives import Positives
from bidr.training.negatives import graph_sampling_kernels as walks
from bidr.training.negatives.proximity_graph import ProximityGraph
from bidr.utils.array_types import Rows


class Batch(NamedTuple):
    """Rows of queries, one positive each, and extra negatives of their own: (n,) or (n, each), (0,) for none."""

    queries: Rows
    positives: Rows
    negatives: Rows


class EpochPlan(NamedTuple):
    """An epoch's training instances in order. Locality is made batch by batch, so the size belongs to the plan."""

    queries: Rows
    positives: Rows
    negatives: Rows
    size: int
    restarts: int = 0
    """How often a walk met a dead end and began anew within a batch."""

    @property
    def steps(self) -> int:
        return -(-len(self.queries) // self.size)

    def batch(self, step: int) -> Batch:
        part = slice(step * self.size, (step + 1) * self.size)
        return Batch(self.queries[part], self.positives[part], self.negatives[part])


class Sampler(Protocol):
    """Makes the plan of an epoch."""

    def plan(self, epoch: int) -> EpochPlan: ...


class RandomSampler:
    """Queries in random order; others' positives are the negatives, and some drawn from a pool of mined ones if given.

    pool: (queries, k) document rows, -1 where there are fewer, without the queries' positives.
    each: how many are drawn for a query.
    """

    def __init__(
        self, pairs: Positives, documents: int, size: int, seed: int, pool: Rows | None = None, each: int = 1
    ) -> None:
        self.pairs, self.documents, self.size, self.seed = pairs, documents, size, seed
        self.pool, self.each = pool, each

    def plan(self, epoch: int) -> EpochPlan:
        random = np.random.default_rng((self.seed, epoch))
        queries = random.permutation(len(self.pairs))
        positives = self.pairs.draw(queries, random)
        negatives = np.empty(0, dtype=np.int64)
        if self.pool is not None:
            drawn = [draw_negatives(queries, self.pool, self.pairs, self.documents, random) for _ in range(self.each)]
            negatives = drawn[0] if self.each == 1 else np.stack(drawn, axis=1)
        return EpochPlan(queries, positives, negatives, self.size)


class RefreshedSampler:
    """Random batches whose pool is mined again every so many epochs, by the encoder as it is then (ANCE).

    mine: the pool of a round of epochs. What it mined it must keep: a resumed run asks again, with an encoder that has
    learned on.
    """

    def __init__(self, batches: Callable[[Rows], RandomSampler], mine: Callable[[int], Rows], every: int = 1) -> None:
        self.batches, self.mine, self.every = batches, mine, every

    def plan(self, epoch: int) -> EpochPlan:
        return self.batches(self.mine(epoch // self.every)).plan(epoch)


class LocalitySampler:
    """Locality-centric sampling: each batch is collected on a local patch of the proximity graph.

    strategy "random-walk" hops from query to candidate to another of that candidate's queries; "snowball" visits all
    (at most so many, drawn, that hubs do not fill batches alone) queries of a candidate before going on.
    hops: hop only through a query's best so many candidates. The negative is drawn from all of them.
    """

    def __init__(
        self, graph: ProximityGraph, pairs: Positives, size: int, seed: int, strategy: str, hops: int | None = None
    ) -> None:
        self.graph, self.pairs, self.size, self.seed = graph, pairs, size, seed
        self.hops = hops or graph.forward.shape[1]
        self.collect = {"random-walk": walks.sample_random_walk, "snowball": walks.sample_snowball}[strategy]

    def plan(self, epoch: int) -> EpochPlan:
        random = np.random.default_rng((self.seed, epoch))
        walk = walks.start_walk(self.graph, self.hops, random)
        queries, negatives, restarts = self.collect(walk, self.size, random)
        lonely = np.flatnonzero(negatives == walks.NO_NODE)
        documents = len(self.graph.backward_starts) - 1
        negatives[lonely] = _random_negatives(queries[lonely], self.pairs, documents, random)
        return EpochPlan(queries, self.pairs.draw(queries, random), negatives, self.size, int(restarts))


def draw_negatives(queries: Rows, pool: Rows, pairs: Positives, documents: int, random: np.random.Generator) -> Rows:
    """One negative from each query's pool; a query whose pool is empty gets a random document."""
    depths = (pool[queries] >= 0).sum(axis=1)
    chosen: Rows = pool[queries, (random.random(len(queries)) * depths).astype(np.int64)]
    lonely = np.flatnonzero(depths == 0)
    chosen[lonely] = _random_negatives(queries[lonely], pairs, documents, random)
    return chosen


def _random_negatives(queries: Rows, pairs: Positives, documents: int, random: np.random.Generator) -> Rows:
    """A random document for each query that is none of its positives."""
    drawn: Rows = random.integers(documents, size=len(queries))
    for place, query in enumerate(queries.tolist()):
        own = set(pairs.get_rows(query).tolist())
        while int(drawn[place]) in own and len(own) < documents:
            drawn[place] = random.integers(documents)
    return drawn


def measure_locality(plan: EpochPlan, graph: ProximityGraph) -> npt.NDArray[np.float64]:
    """For every batch, the mean share of its documents that are candidates of a query in it."""
    shares = np.empty(plan.steps)
    inside = np.zeros(len(graph.backward_starts), dtype=bool)  # its last place is that of -1, which is no document
    for step in range(plan.steps):
        batch = plan.batch(step)
        documents = np.unique(np.concatenate([batch.positives, batch.negatives]))
        inside[documents] = True
        shares[step] = inside[graph.forward[batch.queries]].sum() / (len(batch.queries) * len(documents))
        inside[documents] = False
    return shares
