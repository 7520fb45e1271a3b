"""Batches for an epoch. Every sampler visits every query exactly once and never gives a positive as a negative.

An epoch's plan is a function of the seed and the epoch's number alone, so that every process draws the same batches
and a resumed run continues where it stopped.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from bidr.negatives.graph import ProximityGraph
from bidr.negatives.pairs import Pairs, Rows

HOP_ATTEMPTS = 8
SNOWBALL_FANOUT = 64
NOBODY = -1


class Batch(NamedTuple):
    """Rows of queries, one positive each, and extra negatives of their own: (n,) or (n, each), (0,) for none."""

    queries: Rows
    positives: Rows
    negatives: Rows


class Plan(NamedTuple):
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

    def plan(self, epoch: int) -> Plan: ...


class RandomBatches:
    """Queries in random order; others' positives are the negatives, and some drawn from a pool of mined ones if given.

    pool: (queries, k) document rows, -1 where there are fewer, without the queries' positives.
    each: how many are drawn for a query.
    """

    def __init__(
        self, pairs: Pairs, documents: int, size: int, seed: int, pool: Rows | None = None, each: int = 1
    ) -> None:
        self.pairs, self.documents, self.size, self.seed = pairs, documents, size, seed
        self.pool, self.each = pool, each

    def plan(self, epoch: int) -> Plan:
        random = np.random.default_rng((self.seed, epoch))
        queries = random.permutation(len(self.pairs))
        positives = self.pairs.draw(queries, random)
        negatives = np.empty(0, dtype=np.int64)
        if self.pool is not None:
            drawn = [draw_negatives(queries, self.pool, self.pairs, self.documents, random) for _ in range(self.each)]
            negatives = drawn[0] if self.each == 1 else np.stack(drawn, axis=1)
        return Plan(queries, positives, negatives, self.size)


class Refreshed:
    """Random batches whose pool is mined again every so many epochs, by the encoder as it is then (ANCE).

    mine: the pool of a round of epochs. What it mined it must keep: a resumed run asks again, with an encoder that has
    learned on.
    """

    def __init__(self, batches: Callable[[Rows], RandomBatches], mine: Callable[[int], Rows], every: int = 1) -> None:
        self.batches, self.mine, self.every = batches, mine, every

    def plan(self, epoch: int) -> Plan:
        return self.batches(self.mine(epoch // self.every)).plan(epoch)


class LocalBatches:
    """Locality-centric sampling: each batch is collected on a local patch of the proximity graph.

    strategy "random-walk" hops from query to candidate to another of that candidate's queries; "snowball" visits all
    (at most SNOWBALL_FANOUT, sampled, so that hubs do not fill batches alone) queries of a candidate before going on.
    hops: hop only through a query's best so many candidates. The negative is drawn from all of them.
    """

    def __init__(
        self, graph: ProximityGraph, pairs: Pairs, size: int, seed: int, strategy: str, hops: int | None = None
    ) -> None:
        self.graph, self.pairs, self.size, self.seed = graph, pairs, size, seed
        self.hops = hops or graph.forward.shape[1]
        self.fill: Callable[[_Walk, int], list[tuple[int, int]]] = {"random-walk": _walk, "snowball": _snowball}[
            strategy
        ]

    def plan(self, epoch: int) -> Plan:
        random = np.random.default_rng((self.seed, epoch))
        walk = _Walk(self.graph, random, self.hops)
        visits: list[tuple[int, int]] = []
        while len(visits) < len(self.pairs):
            visits += self.fill(walk, self.size)
        order = np.array(visits, dtype=np.int64)
        queries, negatives = order[:, 0], order[:, 1]
        documents = len(self.graph.backward_starts) - 1
        lonely = np.flatnonzero(negatives == NOBODY)
        negatives[lonely] = _random_negatives(queries[lonely], self.pairs, documents, random)
        return Plan(queries, self.pairs.draw(queries, random), negatives, self.size, walk.restarts)


class _Walk:
    """What is still unvisited in an epoch, and constant-time draws from it."""

    def __init__(self, graph: ProximityGraph, random: np.random.Generator, hops: int) -> None:
        self.graph, self.hops = graph, hops
        self.visited = np.zeros(len(graph.forward), dtype=bool)
        self.restarts = 0
        self._entries = iter(random.permutation(len(graph.forward)).tolist())
        self._uniform = _uniform_numbers(random)
        # A visited query leaves a document's list when a draw meets it: each edge goes once, hubs are never scanned.
        self._queries = graph.backward.copy()
        self._live = np.diff(graph.backward_starts)

    def below(self, limit: int) -> int:
        return int(next(self._uniform) * limit)

    def entry(self) -> int | None:
        """A random unvisited query; None when all are visited."""
        return next((query for query in self._entries if not self.visited[query]), None)

    def candidate(self, query: int, most: int | None = None) -> int:
        """A random candidate of the query, or of its best so many."""
        degree = min(int(self.graph.degrees[query]), most or len(self.graph.forward[query]))
        return int(self.graph.forward[query, self.below(degree)]) if degree else NOBODY

    def bridge(self, query: int, negative: int) -> int:
        """The candidate to hop through: the negative itself, unless hops are kept to the best ones."""
        return negative if self.hops >= self.graph.forward.shape[1] else self.candidate(query, self.hops)

    def unvisited(self, document: int, most: int) -> list[int]:
        """Up to `most` distinct unvisited queries of a document, drawn uniformly."""
        start, drawn = int(self.graph.backward_starts[document]), 0
        live, queries, found = int(self._live[document]), self._queries, []
        while drawn < min(most, live):
            place, last = start + drawn + self.below(live - drawn), start + live - 1
            query = queries[place]
            if self.visited[query]:
                queries[place], queries[last] = queries[last], query
                live -= 1
                continue
            queries[place], queries[start + drawn] = queries[start + drawn], query
            found.append(int(query))
            drawn += 1
        self._live[document] = live
        return found


def _walk(walk: _Walk, size: int) -> list[tuple[int, int]]:
    """One batch by random walk."""
    visits: list[tuple[int, int]] = []
    query = walk.entry()
    while query is not None and len(visits) < size:
        walk.visited[query] = True
        negative = walk.candidate(query)
        visits.append((query, negative))
        if len(visits) == size:
            break
        following = _hop(walk, query, negative)
        if following is None:
            walk.restarts += 1
            following = walk.entry()
        query = following
    return visits


def _hop(walk: _Walk, query: int, negative: int) -> int | None:
    """An unvisited query behind a candidate, or behind another one when that has none left."""
    document = walk.bridge(query, negative)
    for _ in range(HOP_ATTEMPTS):
        if document == NOBODY:
            return None
        following = walk.unvisited(document, 1)
        if following:
            return following[0]
        document = walk.candidate(query, walk.hops)
    return None


def _snowball(walk: _Walk, size: int) -> list[tuple[int, int]]:
    """One batch by snowball: breadth first from the entry."""
    visits: list[tuple[int, int]] = []
    queue: deque[int] = deque()
    while len(visits) < size:
        anew = not queue
        query = walk.entry() if anew else queue.popleft()
        if query is None:
            break
        if walk.visited[query]:
            continue
        walk.restarts += bool(anew and visits)
        walk.visited[query] = True
        negative = walk.candidate(query)
        visits.append((query, negative))
        if negative != NOBODY and len(queue) < size:
            queue.extend(walk.unvisited(walk.bridge(query, negative), SNOWBALL_FANOUT))
    return visits


def draw_negatives(queries: Rows, pool: Rows, pairs: Pairs, documents: int, random: np.random.Generator) -> Rows:
    """One negative from each query's pool; a query whose pool is empty gets a random document."""
    depths = (pool[queries] >= 0).sum(axis=1)
    chosen: Rows = pool[queries, (random.random(len(queries)) * depths).astype(np.int64)]
    lonely = np.flatnonzero(depths == 0)
    chosen[lonely] = _random_negatives(queries[lonely], pairs, documents, random)
    return chosen


def _random_negatives(queries: Rows, pairs: Pairs, documents: int, random: np.random.Generator) -> Rows:
    """A random document for each query that is none of its positives."""
    drawn: Rows = random.integers(documents, size=len(queries))
    for place, query in enumerate(queries.tolist()):
        own = set(pairs.of(query).tolist())
        while int(drawn[place]) in own and len(own) < documents:
            drawn[place] = random.integers(documents)
    return drawn


def locality(plan: Plan, graph: ProximityGraph) -> npt.NDArray[np.float64]:
    """For every batch, the mean share of its documents that are candidates of a query in it."""
    shares = np.empty(plan.steps)
    for step in range(plan.steps):
        batch = plan.batch(step)
        documents = np.unique(np.concatenate([batch.positives, batch.negatives]))
        hits = np.isin(graph.forward[batch.queries], documents).sum()
        shares[step] = hits / (len(batch.queries) * len(documents))
    return shares


def _uniform_numbers(random: np.random.Generator) -> Iterator[float]:
    while True:
        yield from random.random(65_536).tolist()
