"""Walks over the proximity graph that collect an epoch's batches, compiled: they must be quicker than the device.

Where numba is missing the same functions run as plain Python, some fifty times slower.
"""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from bidr.training.negatives.proximity_graph import ProximityGraph
from bidr.utils.jit import njit_cached

HOP_ATTEMPTS = 8
SNOWBALL_FANOUT = 64
NO_NODE = -1

Function = TypeVar("Function", bound=Callable[..., Any])


def _njit_if_available(function: Function) -> Function:
    return njit_cached()(function) if find_spec("numba") else function


class Walk(NamedTuple):
    """The graph, and what is still unvisited of it. Arrays are changed as the walk goes on.

    queries, live: the first live[j] of queries[starts[j]:starts[j + 1]] may still be unvisited. A visited one leaves
                   when a draw meets it: each edge goes once, and hubs are never scanned.
    entries:       all queries in random order, where walks begin.
    """

    forward: npt.NDArray[np.int32]
    degrees: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    queries: npt.NDArray[np.int32]
    live: npt.NDArray[np.int64]
    entries: npt.NDArray[np.int64]
    visited: npt.NDArray[np.bool_]
    hops: int


def start_walk(graph: ProximityGraph, hops: int, random: np.random.Generator) -> Walk:
    """A walk over all of a graph's queries."""
    count = len(graph.forward)
    return Walk(
        np.ascontiguousarray(graph.forward),
        np.ascontiguousarray(graph.degrees),
        np.ascontiguousarray(graph.backward_starts),
        graph.backward.copy(),
        np.diff(graph.backward_starts),
        random.permutation(count),
        np.zeros(count, dtype=np.bool_),
        hops,
    )


@_njit_if_available
def _draw_candidate(walk: Walk, query: int, most: int, random: np.random.Generator) -> int:
    """A random one of the query's best so many candidates."""
    degree = min(walk.degrees[query], most)
    return walk.forward[query, int(random.random() * degree)] if degree else NO_NODE


@_njit_if_available
def _draw_unvisited(
    walk: Walk, document: int, most: int, found: npt.NDArray[np.int64], at: int, random: np.random.Generator
) -> int:
    """Put up to `most` distinct unvisited queries of a document, drawn uniformly, into found[at:]; how many."""
    start, live, drawn = walk.starts[document], walk.live[document], 0
    queries = walk.queries
    while drawn < min(most, live):
        place, last = start + drawn + int(random.random() * (live - drawn)), start + live - 1
        query = queries[place]
        if walk.visited[query]:
            queries[place], queries[last] = queries[last], query
            live -= 1
        else:
            queries[place], queries[start + drawn] = queries[start + drawn], query
            found[at + drawn] = query
            drawn += 1
    walk.live[document] = live
    return drawn


@_njit_if_available
def _choose_bridge(walk: Walk, query: int, negative: int, random: np.random.Generator) -> int:
    """The candidate to hop through: the negative itself, unless hops are kept to the best ones."""
    return negative if walk.hops >= walk.forward.shape[1] else _draw_candidate(walk, query, walk.hops, random)


@_njit_if_available
def sample_random_walk(walk: Walk, size: int, random: np.random.Generator) -> tuple[Any, Any, int]:
    """Queries, a candidate of each as its negative, restarts: each batch hops from query to candidate to query."""
    count, entry, restarts = len(walk.visited), 0, 0
    order, negatives = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    found = np.empty(1, dtype=np.int64)
    query = NO_NODE
    for done in range(count):
        if query == NO_NODE:
            while walk.visited[walk.entries[entry]]:
                entry += 1
            query = walk.entries[entry]
            restarts += done % size > 0
        walk.visited[query] = True
        negative = _draw_candidate(walk, query, walk.forward.shape[1], random)
        order[done], negatives[done] = query, negative
        following = NO_NODE
        if (done + 1) % size > 0:
            document = _choose_bridge(walk, query, negative, random)
            for _ in range(HOP_ATTEMPTS):
                if document == NO_NODE:
                    break
                if _draw_unvisited(walk, document, 1, found, 0, random):
                    following = found[0]
                    break
                document = _draw_candidate(walk, query, walk.hops, random)
        query = following
    return order, negatives, restarts


@_njit_if_available
def sample_snowball(walk: Walk, size: int, random: np.random.Generator) -> tuple[Any, Any, int]:
    """The same, breadth first: all queries of a candidate (at most SNOWBALL_FANOUT, drawn) before going on."""
    count, entry, restarts, done = len(walk.visited), 0, 0, 0
    order, negatives = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    queue = np.empty(size + SNOWBALL_FANOUT, dtype=np.int64)
    found = np.empty(SNOWBALL_FANOUT, dtype=np.int64)
    head = tail = 0
    while done < count:
        if done % size == 0:
            head = tail = 0
        anew = head == tail
        if anew:
            while walk.visited[walk.entries[entry]]:
                entry += 1
            query = walk.entries[entry]
        else:
            query = queue[head % len(queue)]
            head += 1
        if walk.visited[query]:
            continue
        restarts += anew and done % size > 0
        walk.visited[query] = True
        negative = _draw_candidate(walk, query, walk.forward.shape[1], random)
        order[done], negatives[done] = query, negative
        done += 1
        document = _choose_bridge(walk, query, negative, random)
        if document != NO_NODE and tail - head < size:
            for place in range(_draw_unvisited(walk, document, SNOWBALL_FANOUT, found, 0, random)):
                queue[tail % len(queue)] = found[place]
                tail += 1
    return order, negatives, restarts
