"""The order of documents for a graph: near ones next to each other, so that links to them are short numbers."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from bidr.codes.codebooks import Codebooks, Codes, Floats
from bidr.index.engines.base import Rows
from bidr.index.engines.clusters import Clusters, in_query_space

# Documents that a link reaches at once. Their codes of 16 bytes are one line of a processor's cache.
GROUP = 4
# Documents that are compared by their mean first, when the nearest are looked for.
PIECE = 32


def arranged(codebooks: Codebooks, codes: Codes, found: Clusters) -> Iterator[Rows]:
    """Rows in the order in which they should stand, cluster after cluster: near clusters follow each other, and within
    one the documents of a group are near."""
    for cluster in halved(found.centroids, np.arange(len(found.centroids)), 1):
        rows = np.sort(np.asarray(found.order[found.offsets[cluster] : found.offsets[cluster + 1]], dtype=np.int64))
        if len(rows):
            vectors = in_query_space(codebooks, np.asarray(codes[rows]))
            yield rows[halved(vectors, np.arange(len(rows)), GROUP)]


def halved(vectors: Floats, rows: Rows, size: int) -> Rows:
    """Rows divided in two again and again, across the longest way through them, down to `size`."""
    order, left = rows.copy(), [(0, len(rows))]
    while left:
        start, stop = left.pop()
        if stop - start <= size:
            continue
        part = order[start:stop]
        there = vectors[part]
        one = there[_furthest(there, there[0])]
        other = there[_furthest(there, one)]
        order[start:stop] = part[np.argsort(there @ (other - one), kind="stable")]
        half = max(size, ((stop - start) // 2 + size // 2) // size * size)
        middle = min(start + half, stop - 1)
        left += [(start, middle), (middle, stop)]
    return order


def _furthest(vectors: Floats, point: Any) -> int:
    return int(np.square(vectors - point).sum(axis=1).argmax())
