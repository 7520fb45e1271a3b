"""Bipartite proximity graph of queries and their candidates by the codes, as arrays."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bidr.data.positives import Positives, remove_positives
from bidr.utils.array_types import Rows

DEPTH = 200


class ProximityGraph(NamedTuple):
    """Forward edges from a query to its candidates, backward edges from a document to queries.

    forward:        (queries, depth) document rows without the query's positives, padded with -1.
    degrees:        (queries,) number of forward edges, which come first in a row.
    backward_starts, backward: the queries of document j are ``backward[starts[j]:starts[j + 1]]``.
    """

    forward: npt.NDArray[np.int32]
    degrees: Rows
    backward_starts: Rows
    backward: npt.NDArray[np.int32]


def build_graph(
    hits: npt.NDArray[np.integer],
    pairs: Positives,
    documents: int,
    *,
    forward: tuple[int, int] = (0, DEPTH),
    backward: tuple[int, int] = (0, DEPTH),
) -> ProximityGraph:
    """Build the graph of search results (queries, k), best first.

    Args:
        forward: Range of ranks that become forward edges.
        backward: Range of ranks that become backward edges.

    The paper uses the top 200 for both; its public code uses
    ranks 0-200 forward and 200-400 backward.
    """
    candidates = remove_positives(hits, pairs)
    forward_edges = candidates[:, slice(*forward)].astype(np.int32)
    backward_edges = candidates[:, slice(*backward)]
    queries, _ = np.nonzero(backward_edges >= 0)
    targets = backward_edges[backward_edges >= 0]
    starts = np.zeros(documents + 1, dtype=np.int64)
    np.cumsum(np.bincount(targets, minlength=documents), out=starts[1:])
    order = np.argsort(targets, kind="stable")
    return ProximityGraph(forward_edges, (forward_edges >= 0).sum(axis=1), starts, queries[order].astype(np.int32))
