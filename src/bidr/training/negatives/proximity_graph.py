"""The bipartite proximity graph: each query and the candidates that the codes bring up for it, as arrays."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bidr.data.positives import Positives, remove_positives
from bidr.utils.array_types import Rows

DEPTH = 200


class ProximityGraph(NamedTuple):
    """Forward edges lead from a query to its candidates, backward edges from a document to queries.

    forward:        (queries, depth) document rows, the query's positives left out, -1 where there are fewer.
    degrees:        (queries,) how many forward edges are real; they stand to the left.
    backward_starts, backward: the queries of document j are ``backward[starts[j]:starts[j + 1]]``.
    """

    forward: npt.NDArray[np.int32]
    degrees: Rows
    backward_starts: Rows
    backward: npt.NDArray[np.int32]


def build_graph(
    found: npt.NDArray[np.integer],
    pairs: Positives,
    documents: int,
    *,
    forward: tuple[int, int] = (0, DEPTH),
    backward: tuple[int, int] = (0, DEPTH),
) -> ProximityGraph:
    """The graph of search results (queries, k), best first.

    forward and backward say which ranks become edges. The paper uses the top 200 for both; its public code uses
    ranks 0-200 forward and 200-400 backward.
    """
    candidates = remove_positives(found, pairs)
    ahead = candidates[:, slice(*forward)].astype(np.int32)
    behind = candidates[:, slice(*backward)]
    queries, _ = np.nonzero(behind >= 0)
    targets = behind[behind >= 0]
    starts = np.zeros(documents + 1, dtype=np.int64)
    np.cumsum(np.bincount(targets, minlength=documents), out=starts[1:])
    order = np.argsort(targets, kind="stable")
    return ProximityGraph(ahead, (ahead >= 0).sum(axis=1), starts, queries[order].astype(np.int32))
