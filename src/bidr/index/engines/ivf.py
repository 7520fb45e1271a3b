"""Inverted lists: codes stand list by list, and a query visits the lists whose centroids are nearest to it."""

from typing import Any

import numpy as np
import numpy.typing as npt

from bidr.index.builder.coarse_clustering import one_thread
from bidr.index.engines.block_centroids import BlockCentroids
from bidr.index.engines.code_store import CodeEngine, CodeStore
from bidr.index.engines.filtered_ivf import FilteredSearch
from bidr.index.engines.pshufb import BLOCK
from bidr.index.engines.topk import find_kth_largest, keep_above, make_key, sort_keys
from bidr.index.types import as_queries, as_words, each_query
from bidr.utils.array_types import Bitmap, Floats, Rows
from bidr.utils.faiss_loader import load_faiss
from bidr.utils.jit import njit_cached

Offsets = npt.NDArray[np.int64]

# The share of lists that is visited: at a million documents it finds 98.6 % of a scan's 1,000 candidates, 10 % finds
# 96.7 and 40 % 99.6 (docs/engines.md). Of more lists than a million documents have, a smaller one: what must be visited
# for as much grew with the documents to the power .09 to .2 from 192,990 to a million, the lists with their root.
VISITED_SHARE, FULL_SHARE_LISTS, SHARE_DECAY = 0.2, 4_000, 0.7
# Where blocks are chosen by their means, fewer documents hold as much of what is looked for: in 14 % of a million stand
# .984 of the exact top 100, divided by vectors .988; in 20 % of them in whole lists .984, .985 (docs/engines.md).
BLOCKS_SHARE = 0.7
# Comparing with every centroid takes 10 microseconds a thousand; from here on a graph over them is quicker.
MANY_LISTS = 32_768
# Of more blocks (four million documents) those in the nearest lists alone are looked at: so many times as many lists
# as would be visited, which loses 1 of 160 of what is found (tried by hand).
MANY_BLOCKS, LISTS_PER_VISIT = 131_072, 4
# Products with bytes, summed over 8,000 dimensions, fit 32 bits.
QUERY_STEPS = 2_047


def get_default_nprobe(lists: int, times: float = 1) -> int:
    """How many of so many lists a query visits: whole lists, or `IN_BLOCKS` of it in blocks."""
    share: float = VISITED_SHARE * min(1, FULL_SHARE_LISTS / max(lists, 1)) ** SHARE_DECAY
    return max(1, round(times * share * lists))


class IvfEngine(CodeEngine):
    """Scans the documents of the lists nearest to the query. No id is stored: a list is a range of rows."""

    name = "lists"

    def __init__(
        self,
        store: CodeStore,
        centroids: Floats,
        offsets: Offsets,
        visits: int | None = None,
        means: BlockCentroids | None = None,
    ) -> None:
        super().__init__(store)
        self.means = means
        self.offsets, self.visits, self._sizes = offsets, visits, np.diff(offsets)
        self._centroids = CentroidGraph(centroids) if len(centroids) > MANY_LISTS else CoarseCentroids(centroids)

    @property
    def lists(self) -> int:
        return len(self.offsets) - 1

    @property
    def ram_bytes(self) -> dict[str, int]:
        lists = self._centroids.nbytes + self.offsets.nbytes + self._sizes.nbytes
        return {"codes": self.store.nbytes, "lists": lists + (self.means.nbytes if self.means else 0)}

    def search(
        self, queries: Floats, k: int, ef: int | None = None, allowed: Bitmap | None = None
    ) -> tuple[Floats, Rows]:
        """As `Candidates.search`; `ef` lists are visited, and more where these hold fewer than k documents."""
        queries = as_queries(queries)
        tables = self.store.tables(queries)
        visits = min(ef or self.visits or get_default_nprobe(self.lists, BLOCKS_SHARE if self.means else 1), self.lists)
        if allowed is not None:
            passing = FilteredSearch(self, as_words(allowed, self.count), k, visits)
            return each_query(len(queries), k, lambda at: passing.search(queries[at], tables[at]), self.threads)

        def one(number: int) -> tuple[Floats, Rows]:
            if self.means is not None:
                return self.store.scan(tables[number], *self._blocks(self.means, queries[number], visits, k), k)
            near = self.near(queries[number], visits, self._sizes, k)
            return self.store.scan(tables[number], self.offsets[near], self.offsets[near + 1], k)

        return each_query(len(queries), k, one, self.threads)

    def _blocks(self, means: BlockCentroids, query: Floats, visits: int, k: int) -> tuple[Rows, Rows]:
        """Where the blocks begin and end that hold as many documents as so many lists, and k at least."""
        wanted = max(round(visits / self.lists * means.count), k // BLOCK + 2)
        starts = BLOCK * means.nearest(query, wanted, self.within(query, visits, wanted))
        return starts, np.minimum(starts + BLOCK, self.count)

    def within(self, query: Floats, visits: int, wanted: int) -> tuple[Rows, Rows] | None:
        """Where blocks are looked for: of very many in the nearest lists alone; None: everywhere."""
        looked = LISTS_PER_VISIT * visits
        if -(-self.count // BLOCK) <= MANY_BLOCKS or looked >= self.lists:
            return None
        near = np.sort(self._centroids.nearest(query, looked))
        starts, stops = (-(-self.offsets[at] // BLOCK) for at in (near, near + 1))
        filled = stops > starts
        return (starts[filled], stops[filled]) if (stops - starts).sum() >= wanted else None

    def near(self, query: Floats, visits: int, sizes: Offsets, goal: int, least: float = 0) -> Rows:
        """The nearest lists: so many, and on until they hold `goal` documents that count.

        All of them where of the documents in the nearest a smaller share than `least` counts.
        """
        near = self._centroids.nearest(query, visits)
        held = sizes[near]
        there = held.sum()
        if least and there < least * self._sizes[near].sum():
            near, held = np.arange(self.lists), sizes
        elif there < goal:
            every = self._centroids.nearest(query, self.lists)
            filled = int(np.searchsorted(np.cumsum(sizes[every]), min(goal, sizes.sum())))
            near = every[: max(visits, filled + 1)]
            held = sizes[near]
        return near[held > 0]


class CoarseCentroids:
    """Centroids of lists in a byte a dimension, all compared with a query."""

    def __init__(self, centroids: Floats) -> None:
        self._steps = (np.maximum(np.abs(centroids).max(axis=1), 1e-30) / 127).astype(np.float32)
        self._bytes = np.rint(centroids / self._steps[:, None]).astype(np.int8)

    @property
    def nbytes(self) -> int:
        return int(self._bytes.nbytes + self._steps.nbytes)

    def nearest(self, query: Floats, count: int) -> Rows:
        """Lists by the inner product of the query with their centroids, best first."""
        keys = rank_centroids(self._bytes, self._steps, query, count)
        near: Rows = sort_keys(keys, len(keys))[1]
        return near


class CentroidGraph:
    """The same for very many lists, found by a graph."""

    def __init__(self, centroids: Floats) -> None:
        faiss = load_faiss()
        self._count, self._dim = centroids.shape
        kind = faiss.ScalarQuantizer.QT_8bit
        self._index = faiss.IndexHNSWSQ(self._dim, kind, 16, faiss.METRIC_INNER_PRODUCT)
        self._index.train(centroids)
        with one_thread():
            self._index.add(centroids)

    @property
    def nbytes(self) -> int:
        return int(self._count * (self._dim + 160))

    def nearest(self, query: Floats, count: int) -> Rows:
        """As `Centroids.nearest`; lists that the graph does not reach follow in their own order."""
        faiss = load_faiss()
        width = faiss.SearchParametersHNSW(efSearch=max(64, 2 * count))
        found: Rows = self._index.search(query[None], count, params=width)[1][0]
        found = found[found >= 0]
        missing = count - len(found)
        return np.concatenate((found, np.setdiff1d(np.arange(self._count), found)[:missing])) if missing else found


@njit_cached()
def rank_centroids(rows: Any, steps: Any, query: Any, count: int) -> Any:
    """Keys of the `count` rows in bytes with the largest inner products with a query, unsorted."""
    scale = np.float32(1e-30)
    for place in range(len(query)):
        scale = max(scale, abs(query[place]))
    shorts = np.empty(len(query), dtype=np.int16)
    for place in range(len(query)):
        shorts[place] = np.int16(np.rint(query[place] / scale * np.float32(QUERY_STEPS)))
    found = np.empty(len(rows), dtype=np.float32)
    for row in range(len(rows)):
        total = np.int32(0)
        for place in range(len(shorts)):
            # Kept to 32 bits at every step, so that it is compiled to multiplications of 16 bits, eight times as fast.
            total = np.int32(total + np.int32(np.int32(rows[row, place]) * np.int32(shorts[place])))
        found[row] = np.float32(total) * steps[row]
    bits, keys = found.view(np.uint32), np.empty(len(rows), dtype=np.uint64)
    for row in range(len(rows)):
        keys[row] = make_key(bits[row], row)
    if count >= len(rows):
        return keys
    return keys[: keep_above(keys, len(keys), find_kth_largest(keys, len(keys), count))]
