"""Inverted lists (IVF): codes are stored list by list; a query scans the lists with the nearest centroids."""

from typing import Any

import numpy as np
import numpy.typing as npt

from bidr.index.builder.coarse_clustering import use_one_thread
from bidr.index.candidate_source import BitmaskWords, as_queries, search_each, to_bitmask_words
from bidr.index.engines.block_centroids import BlockBudget, BlockCentroids, BlockCounts
from bidr.index.engines.code_store import FEW_ALLOWED_SHARE, CodeEngine, CodeStore
from bidr.index.engines.fast_scan_kernels import BLOCK
from bidr.index.engines.topk import find_kth_largest, keep_above, make_key, sort_keys
from bidr.utils.array_types import Bitmap, Floats, Rows
from bidr.utils.faiss_loader import load_faiss
from bidr.utils.jit import njit_cached

Offsets = npt.NDArray[np.int64]

# Share of lists visited: at a million documents 20 % find 98.6 % of a scan's 1,000 candidates, 10 % find 96.7 and 40 %
# 99.6 (docs/reports/query-cost.md). The share falls above 4,000 lists: from 192,990 to a million documents the lists
# needed for equal recall grew with the documents to the power .09 to .2, the number of lists with their square root.
VISITED_SHARE, FULL_SHARE_LISTS, SHARE_DECAY = 0.2, 4_000, 0.7
# With block centroids fewer documents are scanned for the same recall: 14 % of a million contain .984 of the exact top
# 100, and .988 if partitioned by vectors; 20 % in complete lists .984 and .985 (docs/reports/blocks.md).
BLOCKS_SHARE = 0.7
# Comparing all centroids takes 10 microseconds per thousand; from here on a graph over them is faster.
MANY_LISTS = 32_768
# Above this many blocks (four million documents) only blocks in the nearest lists are considered, LISTS_PER_VISIT times
# nprobe lists, which loses 1 of 160 results.
MANY_BLOCKS, LISTS_PER_VISIT = 131_072, 4
# Products of int8 and 12-bit numbers, summed over 8,000 dimensions, fit 32 bits.
QUERY_STEPS = 2_047

# A filter that allows at most half of the documents increases nprobe by these factors: twice as many blocks find .992
# of a scan's top 100 at 50 and 10 % allowed (random or correlated with the query), as many only .977
# (docs/reports/filters.md).
FILTERED_BLOCKS_FACTOR, FILTERED_LISTS_FACTOR = 2.0, 1.5
# A filter is anticorrelated with the query if the nearest blocks or lists contain less than this share of the allowed
# documents expected by chance. The allowed documents are then spread over so many blocks that scanning all of them is
# hardly slower. With .5 lists found .989 of the exact top 100 where the half of the topics furthest from the query were
# allowed, with .65 to .85 .995 (30,000 documents, 60 queries).
MIN_CHANCE_SHARE = 0.75
# Selecting lists takes as long as scanning this many documents; lists of 4-bit codes end within blocks.
MIN_SAVED_ROWS, MIN_SAVED_ROWS_8_BIT, PARTIAL_BLOCKS = 120_000, 20_000, 1.3


def get_default_nprobe(lists: int, factor: float = 1) -> int:
    """Return how many lists a query visits by default; `factor` is BLOCKS_SHARE with block centroids."""
    share: float = VISITED_SHARE * min(1, FULL_SHARE_LISTS / max(lists, 1)) ** SHARE_DECAY
    return max(1, round(factor * share * lists))


class IvfEngine(CodeEngine):
    """Scan the documents of the lists nearest to the query. A list is a range of rows, so no ids are stored."""

    name = "lists"

    def __init__(
        self,
        store: CodeStore,
        centroids: Floats,
        offsets: Offsets,
        nprobe: int | None = None,
        block_centroids: BlockCentroids | None = None,
    ) -> None:
        super().__init__(store)
        self.block_centroids = block_centroids
        self.offsets, self.nprobe, self._sizes = offsets, nprobe, np.diff(offsets)
        self._centroids = CentroidGraph(centroids) if len(centroids) > MANY_LISTS else CoarseCentroids(centroids)

    @property
    def list_count(self) -> int:
        return len(self.offsets) - 1

    @property
    def ram_bytes(self) -> dict[str, int]:
        lists = self._centroids.nbytes + self.offsets.nbytes + self._sizes.nbytes
        return {
            "codes": self.store.nbytes,
            "lists": lists + (self.block_centroids.nbytes if self.block_centroids else 0),
        }

    def search(
        self, queries: Floats, k: int, ef: int | None = None, allowed: Bitmap | None = None
    ) -> tuple[Floats, Rows]:
        """Search as `Candidates.search`; `ef` is nprobe, raised where the lists contain fewer than k documents."""
        queries = as_queries(queries)
        tables = self.store.compute_tables(queries)
        default = get_default_nprobe(self.list_count, BLOCKS_SHARE if self.block_centroids else 1)
        nprobe = min(ef or self.nprobe or default, self.list_count)
        if allowed is not None:
            filtered = FilteredSearch(self, to_bitmask_words(allowed, self.count), k, nprobe)
            return search_each(len(queries), k, lambda at: filtered.search(queries[at], tables[at]), self.threads)

        def search_one(number: int) -> tuple[Floats, Rows]:
            if self.block_centroids is not None:
                starts, stops = self._select_blocks(self.block_centroids, queries[number], nprobe, k)
            else:
                lists = self.select_lists(queries[number], nprobe, self._sizes, k)
                starts, stops = self.offsets[lists], self.offsets[lists + 1]
            return self.store.scan(tables[number], starts, stops, k)

        return search_each(len(queries), k, search_one, self.threads)

    def _select_blocks(self, centroids: BlockCentroids, query: Floats, nprobe: int, k: int) -> tuple[Rows, Rows]:
        """Return row ranges of blocks that contain as many documents as `nprobe` lists, and at least k."""
        count = max(round(nprobe / self.list_count * centroids.count), k // BLOCK + 2)
        starts = BLOCK * centroids.find_nearest(query, count, self.restrict_blocks(query, nprobe, count))
        return starts, np.minimum(starts + BLOCK, self.count)

    def restrict_blocks(self, query: Floats, nprobe: int, count: int) -> tuple[Rows, Rows] | None:
        """Return block ranges in the nearest lists if there are MANY_BLOCKS; None to consider all blocks."""
        lists = LISTS_PER_VISIT * nprobe
        if -(-self.count // BLOCK) <= MANY_BLOCKS or lists >= self.list_count:
            return None
        nearest = np.sort(self._centroids.find_nearest(query, lists))
        starts, stops = (-(-self.offsets[at] // BLOCK) for at in (nearest, nearest + 1))
        filled = stops > starts
        return (starts[filled], stops[filled]) if (stops - starts).sum() >= count else None

    def select_lists(self, query: Floats, nprobe: int, sizes: Offsets, goal: int, min_share: float = 0) -> Rows:
        """Select the nearest `nprobe` lists, and further ones until they contain `goal` documents.

        Args:
            sizes: Documents that count in each list (all, or the allowed ones).
            min_share: Select all lists where a smaller share of the documents in the nearest lists counts.
        """
        lists = self._centroids.find_nearest(query, nprobe)
        counts = sizes[lists]
        total = counts.sum()
        if min_share and total < min_share * self._sizes[lists].sum():
            lists, counts = np.arange(self.list_count), sizes
        elif total < goal:
            ranking = self._centroids.find_nearest(query, self.list_count)
            filled = int(np.searchsorted(np.cumsum(sizes[ranking]), min(goal, sizes.sum())))
            lists = ranking[: max(nprobe, filled + 1)]
            counts = sizes[lists]
        return lists[counts > 0]


class FilteredSearch:
    """IVF search under one filter, for any number of queries.

    With block centroids the nearest blocks that contain an allowed document are scanned, otherwise lists. Both are more
    than without a filter, as the allowed documents are further from the query.

    Args:
        bitmask: A bit per row, as 32-bit words.
        nprobe: Lists that a search without filter would visit.
    """

    def __init__(self, engine: IvfEngine, bitmask: BitmaskWords, k: int, nprobe: int) -> None:
        self.engine, self.bitmask, self.k, self.nprobe = engine, bitmask, k, nprobe
        self.block_counts = np.bitwise_count(bitmask)
        self.allowed_count = int(self.block_counts.sum(dtype=np.int64))
        self.share = self.allowed_count / engine.count
        self._all_rows = np.zeros(1, dtype=np.int64), np.full(1, engine.count, dtype=np.int64)

    def search(self, query: Floats, table: Floats) -> tuple[Floats, Rows]:
        """Search for one query, as `IvfEngine.search`."""
        if self.engine.block_centroids is not None:
            return self._search_blocks(self.engine.block_centroids, query, table)
        lists = self._select_lists(query)
        if lists is None:
            return self._scan(table, self._all_rows, self.share)
        return self._scan(table, (self.engine.offsets[lists], self.engine.offsets[lists + 1]), self.share)

    def _search_blocks(self, centroids: BlockCentroids, query: Floats, table: Floats) -> tuple[Floats, Rows]:
        filled = int(np.count_nonzero(self.block_counts))
        budget = self._make_budget(centroids.count, filled)
        if filled <= budget.min_blocks:
            return self._scan(table, self._all_rows, self.share)
        within = self.engine.restrict_blocks(query, round(self.nprobe * FILTERED_BLOCKS_FACTOR), budget.min_blocks)
        blocks = centroids.find_filtered(query, self.block_counts, budget, within)
        if within is not None and (
            len(blocks) < budget.min_blocks or self.block_counts[blocks].sum(dtype=np.int64) < budget.documents
        ):
            blocks = centroids.find_filtered(query, self.block_counts, budget)
        if not len(blocks):
            return self._scan(table, self._all_rows, self.share)
        starts = BLOCK * blocks
        ranges = starts, np.minimum(starts + BLOCK, self.engine.count)
        return self._scan(table, ranges, self.block_counts[blocks].mean() / BLOCK)

    def _make_budget(self, blocks: int, filled: int) -> BlockBudget:
        """Choose how many blocks to scan: fewer where each contains hardly more than one allowed document."""
        usual = max(self.nprobe / self.engine.list_count * blocks, self.k / BLOCK + 2)
        factor = min(FILTERED_BLOCKS_FACTOR, 3 - 2 * self.share)
        growth = 1 + (factor - 1) * min(1, self.allowed_count / max(filled, 1) - 1)
        min_share, documents = MIN_CHANCE_SHARE * self.share, min(self.k, self.allowed_count)
        return BlockBudget(round(usual), round(growth * usual), documents, min_share)

    def _select_lists(self, query: Floats) -> Rows | None:
        """Select lists; None where scanning all is as fast, or the filter is anticorrelated with the query."""
        engine, nprobe = self.engine, min(FILTERED_LISTS_FACTOR, 3 - 2 * self.share) * self.nprobe
        visited = nprobe / engine.list_count / max(self.share, 1e-9) ** 0.5
        blocked = engine.store.blocked
        saved = (1 - PARTIAL_BLOCKS * visited if blocked else self.share * (1 - visited)) * engine.count
        if saved < (MIN_SAVED_ROWS if blocked else MIN_SAVED_ROWS_8_BIT):
            return None
        sizes = count_bits_in_ranges(self.bitmask, self.block_counts, engine.offsets)
        goal = max(self.k, round(visited * self.allowed_count))
        nprobe = min(round(nprobe), engine.list_count)
        lists = engine.select_lists(query, nprobe, sizes, goal, MIN_CHANCE_SHARE * self.share)
        return None if sizes[lists].sum() == self.allowed_count else lists

    def _scan(self, table: Floats, ranges: tuple[Rows, Rows], share: float) -> tuple[Floats, Rows]:
        """Scan ranges of rows. share: how many of the rows (or of the rows of their blocks) are allowed."""
        scan = self.engine.store.scan_sparse if share < FEW_ALLOWED_SHARE else self.engine.store.scan
        return scan(table, *ranges, self.k, self.bitmask)


def count_bits_in_ranges(bitmask: BitmaskWords, word_counts: BlockCounts, offsets: Rows) -> Rows:
    """Count the set bits in each range of rows; word_counts: set bits of each word."""
    totals = np.zeros(len(bitmask) + 1, dtype=np.int64)
    np.cumsum(word_counts, out=totals[1:])
    word = offsets >> 5
    mask = (np.uint32(1) << (offsets & 31).astype(np.uint32)) - np.uint32(1)
    partial = bitmask[np.minimum(word, len(bitmask) - 1)] & mask  # the last offset may be one word too far: no bits
    counts: Rows = np.diff(totals[word] + np.bitwise_count(partial))
    return counts


class CoarseCentroids:
    """Centroids of lists as int8, all compared with a query."""

    def __init__(self, centroids: Floats) -> None:
        self._steps = (np.maximum(np.abs(centroids).max(axis=1), 1e-30) / 127).astype(np.float32)
        self._bytes = np.rint(centroids / self._steps[:, None]).astype(np.int8)

    @property
    def nbytes(self) -> int:
        return int(self._bytes.nbytes + self._steps.nbytes)

    def find_nearest(self, query: Floats, count: int) -> Rows:
        """Find the lists whose centroids have the largest inner products with the query, best first."""
        keys = rank_centroids(self._bytes, self._steps, query, count)
        lists: Rows = sort_keys(keys, len(keys))[1]
        return lists


class CentroidGraph:
    """An HNSW graph over very many centroids (Faiss)."""

    def __init__(self, centroids: Floats) -> None:
        faiss = load_faiss()
        self._count, self._dim = centroids.shape
        kind = faiss.ScalarQuantizer.QT_8bit
        self._index = faiss.IndexHNSWSQ(self._dim, kind, 16, faiss.METRIC_INNER_PRODUCT)
        self._index.train(centroids)
        with use_one_thread():
            self._index.add(centroids)

    @property
    def nbytes(self) -> int:
        return int(self._count * (self._dim + 160))

    def find_nearest(self, query: Floats, count: int) -> Rows:
        """Find lists as `CoarseCentroids.find_nearest`; lists that the graph does not reach follow in index order."""
        faiss = load_faiss()
        parameters = faiss.SearchParametersHNSW(efSearch=max(64, 2 * count))
        lists: Rows = self._index.search(query[None], count, params=parameters)[1][0]
        lists = lists[lists >= 0]
        missing = count - len(lists)
        return np.concatenate((lists, np.setdiff1d(np.arange(self._count), lists)[:missing])) if missing else lists


@njit_cached()
def rank_centroids(rows: Any, steps: Any, query: Any, count: int) -> Any:
    """Return keys of the `count` int8 rows with the largest inner products with a query, unsorted."""
    scale = np.float32(1e-30)
    for place in range(len(query)):
        scale = max(scale, abs(query[place]))
    shorts = np.empty(len(query), dtype=np.int16)
    for place in range(len(query)):
        shorts[place] = np.int16(np.rint(query[place] / scale * np.float32(QUERY_STEPS)))
    scores = np.empty(len(rows), dtype=np.float32)
    for row in range(len(rows)):
        total = np.int32(0)
        for place in range(len(shorts)):
            # int32 at every step compiles to 16-bit multiplications, eight times as fast.
            total = np.int32(total + np.int32(np.int32(rows[row, place]) * np.int32(shorts[place])))
        scores[row] = np.float32(total) * steps[row]
    bits, keys = scores.view(np.uint32), np.empty(len(rows), dtype=np.uint64)
    for row in range(len(rows)):
        keys[row] = make_key(bits[row], row)
    if count >= len(rows):
        return keys
    return keys[: keep_above(keys, len(keys), find_kth_largest(keys, len(keys), count))]
