"""Random-walk and snowball sampling of batches on the proximity graph, compiled by numba.

Without numba the same functions run as plain Python, about fifty times slower.
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
    """The graph and its unvisited queries. The walk modifies the arrays.

    queries, live: the first live[j] of queries[starts[j]:starts[j + 1]] may still be unvisited. A visited one is
                   removed when it is drawn: each edge is removed once, and hubs are never scanned.
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
    attempts: int
    fanout: int


def start_walk(
    graph: ProximityGraph,
    hops: int,
    random: np.random.Generator,
    attempts: int = HOP_ATTEMPTS,
    fanout: int = SNOWBALL_FANOUT,
) -> Walk:
    """Start a walk over all queries of a graph.

    attempts: candidates of a query to hop through before a restart; fanout: queries of a candidate that a snowball
    visits at most.
    """
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
        attempts,
        fanout,
    )


@_njit_if_available
def _draw_candidate(walk: Walk, query: int, depth: int, random: np.random.Generator) -> int:
    """Draw one of the query's best `depth` candidates."""
    degree = min(walk.degrees[query], depth)
    return walk.forward[query, int(random.random() * degree)] if degree else NO_NODE


@_njit_if_available
def _draw_unvisited(
    walk: Walk, document: int, count: int, out: npt.NDArray[np.int64], at: int, random: np.random.Generator
) -> int:
    """Draw up to `count` distinct unvisited queries of a document into out; returns how many."""
    start, live, drawn = walk.starts[document], walk.live[document], 0
    queries = walk.queries
    while drawn < min(count, live):
        position, last = start + drawn + int(random.random() * (live - drawn)), start + live - 1
        query = queries[position]
        if walk.visited[query]:
            queries[position], queries[last] = queries[last], query
            live -= 1
        else:
            queries[position], queries[start + drawn] = queries[start + drawn], query
            out[at + drawn] = query
            drawn += 1
    walk.live[document] = live
    return drawn


@_njit_if_available
def _choose_bridge(walk: Walk, query: int, negative: int, random: np.random.Generator) -> int:
    """Choose the candidate to hop through: the negative, unless hops are limited to the best ones."""
    return negative if walk.hops >= walk.forward.shape[1] else _draw_candidate(walk, query, walk.hops, random)


@_njit_if_available
def sample_random_walk(walk: Walk, size: int, random: np.random.Generator) -> tuple[Any, Any, int]:
    """Order queries by hops from query to candidate to query; returns order, negatives, restarts."""
    count, entry, restarts = len(walk.visited), 0, 0
    order, negatives = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    drawn = np.empty(1, dtype=np.int64)
    query = NO_NODE
    for position in range(count):
        if query == NO_NODE:
            while walk.visited[walk.entries[entry]]:
                entry += 1
            query = walk.entries[entry]
            restarts += position % size > 0
        walk.visited[query] = True
        negative = _draw_candidate(walk, query, walk.forward.shape[1], random)
        order[position], negatives[position] = query, negative
        next_query = NO_NODE
        if (position + 1) % size > 0:
            document = _choose_bridge(walk, query, negative, random)
            for _ in range(walk.attempts):
                if document == NO_NODE:
                    break
                if _draw_unvisited(walk, document, 1, drawn, 0, random):
                    next_query = drawn[0]
                    break
                document = _draw_candidate(walk, query, walk.hops, random)
        query = next_query
    return order, negatives, restarts


@_njit_if_available
def sample_snowball(walk: Walk, size: int, random: np.random.Generator) -> tuple[Any, Any, int]:
    """Order queries breadth first: all queries of a candidate (at most walk.fanout) at a time."""
    count, entry, restarts, position = len(walk.visited), 0, 0, 0
    order, negatives = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    queue = np.empty(size + walk.fanout, dtype=np.int64)
    drawn = np.empty(walk.fanout, dtype=np.int64)
    head = tail = 0
    while position < count:
        if position % size == 0:
            head = tail = 0
        is_restart = head == tail
        if is_restart:
            while walk.visited[walk.entries[entry]]:
                entry += 1
            query = walk.entries[entry]
        else:
            query = queue[head % len(queue)]
            head += 1
        if walk.visited[query]:
            continue
        restarts += is_restart and position % size > 0
        walk.visited[query] = True
        negative = _draw_candidate(walk, query, walk.forward.shape[1], random)
        order[position], negatives[position] = query, negative
        position += 1
        document = _choose_bridge(walk, query, negative, random)
        if document != NO_NODE and tail - head < size:
            for place in range(_draw_unvisited(walk, document, walk.fanout, drawn, 0, random)):
                queue[tail % len(queue)] = drawn[place]
                tail += 1
    return order, negatives, restarts
