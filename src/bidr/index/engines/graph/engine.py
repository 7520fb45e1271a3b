"""A flat graph over codes: every group of documents has links to near ones, and a query walks along them."""

import math
from collections.abc import Callable

import numpy as np

from bidr.errors import REBUILD, IndexFolderError
from bidr.index.builder.reorder import GROUP
from bidr.index.engines.code_store import ALL_ROWS, FEW_ALLOWED_SHARE, CodeEngine, CodeStore
from bidr.index.engines.graph.build import (
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
from bidr.index.types import EF_CONSTRUCTION, Words, as_queries, as_words, count_bits, each_query
from bidr.quantization.codebooks import Codebooks
from bidr.utils.array_types import Bitmap, Codes, Floats, Rows

# Documents that are compared first, evenly over the corpus, which stands in the order of clusters; the best are walked
# from.
ENTRIES, STARTS = 1_024, 64
# Documents kept in view for one candidate: a graph over a million found 97.1 and 98.7 % of 200 candidates at 1 and 2,
# and of 1,000 99.0 and 99.6 %.
EF_PER_CANDIDATE, EF_PER_CANDIDATE_WIDE, NARROW, WIDE = 2, 1, 200, 1_000
# Visiting one document in a graph takes as long as scanning this many.
SCANNED_PER_VISIT = 800
# A filter may go against the query: a walk would go through all that is nearer before it meets what is allowed, which
# at a million took 100 times as long as scanning that. Where the two have nothing to do with each other, of the entries
# nearest to the query as large a share is allowed as of all, hardly ever so many deviations fewer. With a quarter of
# that share instead, the half of a million in the clusters furthest from the query was walked and then scanned: 9.8 ms
# in the median where scanning takes 4.2 (20 questions).
MIN_CHANCE_SHARE, DEVIATIONS = 0.75, 3
# To keep a document in view a walk goes on from 0.7 to 0.8 groups, by a filter of share s from 1 / s times as many. It
# may go on from twice as many, or for as long as scanning everything takes: going on takes as long as scanning so many.
PASSED_PER_VIEW, SCANNED_PER_PASS = 1.5, 2_000


class GraphEngine(CodeEngine):
    """Walks a graph (one level, as HNSW's lowest) over the codes: fewer comparisons than a scan, and may miss a few.

    Where a scan is the faster of the two, because many candidates of few documents are wanted, it scans.
    A sample that stands for more documents (`stands_for`) is walked where these would be.
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
        """As `Candidates.search`; a walk keeps the best `ef` documents that it met."""
        tables, bitmask = self.store.compute_tables(as_queries(queries)), as_words(allowed, self.count)
        allowed_count = self.count if allowed is None else count_bits(bitmask)
        ef_search = max(ef or self.ef or get_default_ef_search(k), k)
        # To meet one allowed document a walk visits as many as stand for it.
        share = allowed_count / self.count
        use_scan = (
            allowed_count <= k or share * share * (self.simulated_count or self.count) < SCANNED_PER_VISIT * ef_search
        )
        scan = self.store.scan_sparse if allowed is not None and share < FEW_ALLOWED_SHARE else self.store.scan

        def search_one(number: int) -> tuple[Floats, Rows]:
            table = tables[number]
            if not use_scan:
                scores, rows = sort_keys(self.walk(table, ef_search, bitmask)[0], k)
                if rows[-1] >= 0:
                    return scores, rows
                # The walk gave up, or the part of the graph that it could reach was smaller than k.
            return scan(table, *self._all_rows, k, bitmask)

        return each_query(len(tables), k, search_one, self.threads)

    def walk(self, table: Floats, ef_search: int, allowed: Words = ALL_ROWS) -> tuple[Keys, int, int]:
        """Keys of the best `width` documents that a walk meets, unsorted; how many it compared; groups gone on from.

        No keys where the filter goes against the query, and scanning what is allowed is quicker.
        """
        min_allowed, max_expanded = 0, self.count
        if len(allowed):
            share = max(count_bits(allowed), 1) / self.count
            expected = share * (len(self._entries) // 4)
            min_allowed = max(0, int(min(MIN_CHANCE_SHARE * expected, expected - DEVIATIONS * expected**0.5)))
            max_expanded = max(math.ceil(PASSED_PER_VIEW * ef_search / share), self.count // SCANNED_PER_PASS)
        scores, codes = self.store.make_row_table(table), self.store.codes
        keys: Keys
        keys, compared, expanded = walk(
            codes, scores, self.links, self._entries, STARTS, ef_search, allowed, min_allowed, max_expanded
        )
        if expanded < 0:
            raise IndexFolderError(f"an index's graph links to documents that are not there; {REBUILD}")
        return keys, compared, expanded


def is_graph_faster(count: int, ef_search: int) -> bool:
    """Whether so many documents are walked, and not scanned, with so many in view."""
    return count >= SCANNED_PER_VISIT * ef_search


def estimate_comparisons(count: int, ef_search: int) -> int:
    """Documents that a walk compares, about: within 15 % of what was counted at 193,000 and a million documents, of
    which 100 to 1,000 were kept in view."""
    comparisons: float = 17.7 * ef_search**0.5 * count**0.45
    return min(count, round(comparisons))


def get_default_ef_search(k: int) -> int:
    """How many documents a graph keeps in view (efSearch) to find k of them."""
    return max(NARROW, min(EF_PER_CANDIDATE * k, max(WIDE, EF_PER_CANDIDATE_WIDE * k)))


def build_links(
    codebooks: Codebooks,
    codes: Codes,
    ef_construction: int = EF_CONSTRUCTION,
    advance: Callable[[int], None] = lambda rows: None,
) -> Links:
    """Links of every node, (nodes, LINK_WORDS), as `pack_links` writes them. Codes stand by place (`arranged`).

    ef_construction: how widely is looked for near documents.
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
    """How many near documents links are chosen from: a quarter more than a walk would have in view."""
    return ef_construction + ef_construction // 4
