"""Batch samplers. Each visits every query once an epoch and never uses a positive as a negative.

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
    """Query rows, a positive of each, and hard negatives: (n,) or (n, per_query), (0,) for none."""

    queries: Rows
    positives: Rows
    negatives: Rows


class EpochPlan(NamedTuple):
    """An epoch's training instances in order. Locality is built per batch, so the batch size is part of it."""

    queries: Rows
    positives: Rows
    negatives: Rows
    size: int
    restarts: int = 0
    """Number of restarts of the walk within a batch, after dead ends."""

    @property
    def steps(self) -> int:
        return -(-len(self.queries) // self.size)

    def get_batch(self, step: int) -> Batch:
        part = slice(step * self.size, (step + 1) * self.size)
        return Batch(self.queries[part], self.positives[part], self.negatives[part])


class Sampler(Protocol):
    """Plans the batches of an epoch."""

    def plan(self, epoch: int) -> EpochPlan: ...


class RandomSampler:
    """Queries in random order, with in-batch negatives and negatives drawn from an optional pool.

    pool: (queries, k) document rows without the queries' positives, padded with -1.
    per_query: negatives drawn per query.
    """

    def __init__(
        self, pairs: Positives, documents: int, size: int, seed: int, pool: Rows | None = None, per_query: int = 1
    ) -> None:
        self.pairs, self.documents, self.size, self.seed = pairs, documents, size, seed
        self.pool, self.per_query = pool, per_query

    def plan(self, epoch: int) -> EpochPlan:
        random = np.random.default_rng((self.seed, epoch))
        queries = random.permutation(len(self.pairs))
        positives = self.pairs.draw(queries, random)
        negatives = np.empty(0, dtype=np.int64)
        if self.pool is not None:
            drawn = [
                draw_negatives(queries, self.pool, self.pairs, self.documents, random) for _ in range(self.per_query)
            ]
            negatives = drawn[0] if self.per_query == 1 else np.stack(drawn, axis=1)
        return EpochPlan(queries, positives, negatives, self.size)


class RefreshedSampler:
    """Random batches whose pool is mined again every `every` epochs by the current encoder (ANCE).

    mine: mines the pool of a round of epochs. It must cache the result: a resumed run calls it again, with an encoder
          that has been trained further.
    """

    def __init__(self, batches: Callable[[Rows], RandomSampler], mine: Callable[[int], Rows], every: int = 1) -> None:
        self.batches, self.mine, self.every = batches, mine, every

    def plan(self, epoch: int) -> EpochPlan:
        return self.batches(self.mine(epoch // self.every)).plan(epoch)


class LocalitySampler:
    """Locality-centric sampling: each batch covers a local patch of the proximity graph.

    strategy "random-walk" hops from query to candidate to another of that candidate's queries; "snowball" visits all
    (at most so many, drawn, that hubs do not fill batches alone) queries of a candidate before going on.
    hops: hop only through a query's best so many candidates. The negative is drawn from all of them.
    is_paper_walk: hop through the drawn negative alone, and restart at a dead end; hops must then be all candidates.
    """

    def __init__(
        self,
        graph: ProximityGraph,
        pairs: Positives,
        size: int,
        seed: int,
        strategy: str,
        hops: int | None = None,
        *,
        is_paper_walk: bool = False,
    ) -> None:
        self.graph, self.pairs, self.size, self.seed = graph, pairs, size, seed
        self.hops = hops or graph.forward.shape[1]
        self.attempts, self.fanout = (1, size) if is_paper_walk else (walks.HOP_ATTEMPTS, walks.SNOWBALL_FANOUT)
        self.collect = {"random-walk": walks.sample_random_walk, "snowball": walks.sample_snowball}[strategy]

    def plan(self, epoch: int) -> EpochPlan:
        random = np.random.default_rng((self.seed, epoch))
        walk = walks.start_walk(self.graph, self.hops, random, self.attempts, self.fanout)
        queries, negatives, restarts = self.collect(walk, self.size, random)
        lonely = np.flatnonzero(negatives == walks.NO_NODE)
        documents = len(self.graph.backward_starts) - 1
        negatives[lonely] = _draw_random_negatives(queries[lonely], self.pairs, documents, random)
        return EpochPlan(queries, self.pairs.draw(queries, random), negatives, self.size, int(restarts))


def draw_negatives(queries: Rows, pool: Rows, pairs: Positives, documents: int, random: np.random.Generator) -> Rows:
    """Draw one negative from each query's pool, or a random document if the pool is empty."""
    depths = (pool[queries] >= 0).sum(axis=1)
    chosen: Rows = pool[queries, (random.random(len(queries)) * depths).astype(np.int64)]
    lonely = np.flatnonzero(depths == 0)
    chosen[lonely] = _draw_random_negatives(queries[lonely], pairs, documents, random)
    return chosen


def _draw_random_negatives(queries: Rows, pairs: Positives, documents: int, random: np.random.Generator) -> Rows:
    """Draw a random document for each query that is not one of its positives."""
    drawn: Rows = random.integers(documents, size=len(queries))
    for position, query in enumerate(queries.tolist()):
        positives = set(pairs.get_rows(query).tolist())
        while int(drawn[position]) in positives and len(positives) < documents:
            drawn[position] = random.integers(documents)
    return drawn


def measure_locality(plan: EpochPlan, graph: ProximityGraph) -> npt.NDArray[np.float64]:
    """Measure for each batch the mean share of its documents that are candidates of a query in it."""
    shares = np.empty(plan.steps)
    inside = np.zeros(len(graph.backward_starts), dtype=bool)  # the last element stands for -1, the padding
    for step in range(plan.steps):
        batch = plan.get_batch(step)
        documents = np.unique(np.concatenate([batch.positives, batch.negatives]))
        inside[documents] = True
        shares[step] = inside[graph.forward[batch.queries]].sum() / (len(batch.queries) * len(documents))
        inside[documents] = False
    return shares
