"""Proximity graph over codes ("hnsw"): every group of documents has links to near ones, which a query follows."""

import math
from collections.abc import Callable

import numpy as np

from bidr.errors import REBUILD, IndexFolderError
from bidr.index.builder.reorder import GROUP
from bidr.index.candidate_source import (
    EF_CONSTRUCTION,
    BitmaskWords,
    as_queries,
    count_bits,
    search_each,
    to_bitmask_words,
)
from bidr.index.engines.code_store import ALL_ROWS, FEW_ALLOWED_SHARE, CodeEngine, CodeStore
from bidr.index.engines.graph.construction import (
    LINK_WORDS,
    MAX_CANDIDATES,
    LinkCandidates,
    Links,
    choose_links,
    count_groups,
    count_nodes,
    pack_links,
)
from bidr.index.engines.graph.search import walk
from bidr.index.engines.topk import Keys, sort_keys
from bidr.quantization.codebooks import Codebooks
from bidr.utils.array_types import Bitmap, Codes, Floats, Rows

# Entry points, evenly over the corpus (ordered by cluster), and how many of the best are expanded.
ENTRIES, STARTS = 1_024, 64
# ef_search per candidate: a graph over a million found 97.1 and 98.7 % of 200 candidates at 1 and 2, and 99.0 and
# 99.6 % of 1,000.
EF_PER_CANDIDATE, EF_PER_CANDIDATE_WIDE, MIN_EF_SEARCH, LARGE_EF_SEARCH = 2, 1, 200, 1_000
# Expanding for one result takes as long as scanning this many documents.
SCANNED_PER_EF = 800
# A filter may be anticorrelated with the query: the search would pass all nearer documents before it reaches an allowed
# one, which at a million took 100 times as long as scanning the allowed ones. Without correlation the allowed share of
# the nearest entries equals that of all, hardly ever DEVIATIONS fewer. With a threshold of a quarter of that share, the
# half of a million in the clusters furthest from the query was searched and then scanned: median 9.8 ms where scanning
# takes 4.2 (20 queries).
MIN_CHANCE_SHARE, DEVIATIONS = 0.75, 3
# Per unit of ef_search 0.7 to 0.8 groups are expanded, with a filter of share s 1 / s times as many. The limit is twice
# as many, or the time of a full scan: expanding a group takes as long as scanning SCANNED_PER_EXPANSION documents.
EXPANDED_PER_EF, SCANNED_PER_EXPANSION = 1.5, 2_000


class GraphEngine(CodeEngine):
    """Search a flat graph (like HNSW's lowest level): fewer comparisons than a scan, but results may be missed.

    It scans where that is faster, because many candidates of few documents are requested. A sample that represents
    `simulated_count` documents chooses as if it had as many.
    """

    name = "hnsw"
    simulated_count: int | None = None

    def __init__(self, store: CodeStore, links: Links, ef: int | None = None) -> None:
        super().__init__(store)
        self.links, self.ef = links, ef
        entries = np.unique(np.linspace(0, store.count - 1, min(ENTRIES, store.count)).astype(np.int64))
        self._entries: Rows = entries
        self._all_rows = np.zeros(1, dtype=np.int64), np.full(1, store.count, dtype=np.int64)

    @property
    def ram_bytes(self) -> dict[str, int]:
        return {"codes": self.store.nbytes, "links": int(self.links.nbytes)}

    def search(
        self, queries: Floats, k: int, ef: int | None = None, allowed: Bitmap | None = None
    ) -> tuple[Floats, Rows]:
        """Search as `Candidates.search`; `ef` is ef_search."""
        tables, bitmask = self.store.compute_tables(as_queries(queries)), to_bitmask_words(allowed, self.count)
        allowed_count = self.count if allowed is None else count_bits(bitmask)
        ef_search = max(ef or self.ef or get_default_ef_search(k), k)
        # Reaching one allowed document costs 1 / share comparisons.
        share = allowed_count / self.count
        use_scan = (
            allowed_count <= k or share * share * (self.simulated_count or self.count) < SCANNED_PER_EF * ef_search
        )
        scan = self.store.scan_sparse if allowed is not None and share < FEW_ALLOWED_SHARE else self.store.scan

        def search_one(number: int) -> tuple[Floats, Rows]:
            table = tables[number]
            if not use_scan:
                scores, rows = sort_keys(self.walk(table, ef_search, bitmask)[0], k)
                if rows[-1] >= 0:
                    return scores, rows
                # The walk gave up, or fewer than k documents were reachable.
            return scan(table, *self._all_rows, k, bitmask)

        return search_each(len(tables), k, search_one, self.threads)

    def walk(self, table: Floats, ef_search: int, allowed: BitmaskWords = ALL_ROWS) -> tuple[Keys, int, int]:
        """Return keys of the best `ef_search` documents, unsorted; the comparisons made; the groups expanded.

        No keys where the filter is anticorrelated with the query, so that scanning the allowed documents is faster.
        """
        min_allowed, max_expanded = 0, self.count
        if len(allowed):
            share = max(count_bits(allowed), 1) / self.count
            expected = share * (len(self._entries) // 4)
            min_allowed = max(0, int(min(MIN_CHANCE_SHARE * expected, expected - DEVIATIONS * expected**0.5)))
            max_expanded = max(math.ceil(EXPANDED_PER_EF * ef_search / share), self.count // SCANNED_PER_EXPANSION)
        scores, codes = self.store.make_row_table(table), self.store.codes
        keys: Keys
        keys, compared, expanded = walk(
            codes, scores, self.links, self._entries, STARTS, ef_search, allowed, min_allowed, max_expanded
        )
        if expanded < 0:
            raise IndexFolderError(f"the graph of the index links to documents that do not exist; {REBUILD}")
        return keys, compared, expanded


def is_graph_faster(count: int, ef_search: int) -> bool:
    """Tell whether following links is faster than a scan."""
    return count >= SCANNED_PER_EF * ef_search


def estimate_comparisons(count: int, ef_search: int) -> int:
    """Estimate the comparisons of a query.

    Within 15 % of those counted at 193,000 and a million documents with ef_search 100 to 1,000.
    """
    comparisons: float = 17.7 * ef_search**0.5 * count**0.45
    return min(count, round(comparisons))


def get_default_ef_search(k: int) -> int:
    """Return the ef_search to find k candidates."""
    return max(MIN_EF_SEARCH, min(EF_PER_CANDIDATE * k, max(LARGE_EF_SEARCH, EF_PER_CANDIDATE_WIDE * k)))


def build_links(
    codebooks: Codebooks,
    codes: Codes,
    ef_construction: int = EF_CONSTRUCTION,
    advance: Callable[[int], None] = lambda rows: None,
) -> Links:
    """Build the links of every node, (nodes, LINK_WORDS), as `pack_links`. Codes are in index order.

    Args:
        ef_construction: How widely near documents are searched for.
        advance: Called with the number of documents done.
    """
    candidates: LinkCandidates = np.empty((count_groups(len(codes)), MAX_CANDIDATES), dtype=np.int32)
    links: Links = np.empty((count_nodes(len(codes)), LINK_WORDS), dtype=np.uint64)
    size = 0
    for batch in choose_links(codebooks, codes, get_candidate_count(ef_construction)):
        candidates[size : size + len(batch)] = batch
        size += len(batch)
        advance(len(batch) * GROUP)
    size = 0
    for packed in pack_links(candidates):
        links[size : size + len(packed)] = packed
        size += len(packed)
    return links


def get_candidate_count(ef_construction: int) -> int:
    """Return how many near documents links are chosen from: a quarter more than ef_construction."""
    return ef_construction + ef_construction // 4
