"""A flat graph over codes: every document has links to near ones, and a query walks along them."""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from bidr.codes.codebooks import Codebooks, Codes, Floats
from bidr.index.engines.base import Bitmap, Rows, as_queries, as_words, count_bits, each_query
from bidr.index.engines.keep import ranked
from bidr.index.engines.store import CodeStore, OverCodes
from bidr.index.engines.walk import walk
from bidr.index.faissfile import EF_CONSTRUCTION, Kept, faiss_graph

Links = npt.NDArray[np.uint8]

# 24 links of 3 bytes: with a code of 16 bytes 88 bytes a document.
HALF_LINKS = 12
LINK_BYTES, WIDE_LINK_BYTES = 3, 4
AT_ONCE = 65_536
# Documents that are compared first, evenly over the corpus, which stands in the order of clusters; the best are walked
# from.
ENTRIES, STARTS = 1_024, 8
# Visited documents for one candidate: a graph found 91, 96 and 99 % of 200 candidates at 1, 2 and 5. Its time grows
# faster than the number visited, so beyond WIDE it is only 2 (98 % of 1,000 candidates).
EF_PER_CANDIDATE, EF_PER_CANDIDATE_WIDE, NARROW, WIDE = 5, 2, 200, 1_000
# Visiting one document in a graph takes as long as scanning this many.
SCANNED_PER_VISIT = 130


class Graph(OverCodes):
    """Walks a graph (HNSW's lowest level) over the codes: fewer comparisons than a scan, and may miss a few.

    Where a scan is the faster of the two, because many candidates of few documents are wanted, it scans.
    """

    name = "hnsw"

    def __init__(self, store: CodeStore, links: Links, ef: int | None = None) -> None:
        super().__init__(store)
        self.links, self.ef = links, ef
        entries = np.unique(np.linspace(0, store.count - 1, min(ENTRIES, store.count)).astype(np.int64))
        self._entries: Rows = entries
        self._all = np.zeros(1, dtype=np.int64), np.full(1, store.count, dtype=np.int64)

    @property
    def ram_bytes(self) -> dict[str, int]:
        return {"codes": self.store.nbytes, "links": int(self.links.nbytes)}

    def search(
        self, queries: Floats, k: int, ef: int | None = None, allowed: Bitmap | None = None
    ) -> tuple[Floats, Rows]:
        """As `Candidates.search`; a walk keeps the best `ef` documents that it met."""
        tables, words = self.store.tables(as_queries(queries)), as_words(allowed, self.count)
        there = self.count if allowed is None else count_bits(words)
        width = max(ef or self.ef or default_width(k), k)
        # To meet one allowed document a walk visits as many as stand for it.
        scans = there <= k or there * there < SCANNED_PER_VISIT * width * self.count

        def one(number: int) -> tuple[Floats, Rows]:
            table = tables[number]
            if not scans:
                entries = self.store.row_table(table)
                met = walk(self.store.codes, entries, self.links, self._entries, STARTS, width, words)
                scores, rows = ranked(met, k)
                if rows[-1] >= 0:
                    return scores, rows
                # The part of the graph that the walk could reach was smaller than k.
            if allowed is None:
                return self.store.scan(table, *self._all, k)
            return self.store.scan_few(table, *self._all, k, words)

        return each_query(len(tables), k, one, self.threads)


def default_width(k: int) -> int:
    """How many documents a graph keeps in view (efSearch) to find k of them."""
    return max(NARROW, min(EF_PER_CANDIDATE * k, max(WIDE, EF_PER_CANDIDATE_WIDE * k)))


def build_links(
    codebooks: Codebooks,
    codes: Codes,
    ef_construction: int = EF_CONSTRUCTION,
    advance: Callable[[int], None] = lambda rows: None,
    kept: Kept | None = None,
) -> Links:
    """Links of every document as little-endian numbers of 3 bytes (4 from 16.7 million on): (n, links, bytes).

    Where a document has fewer links it has itself for the rest. With `kept` a build that was killed goes on.
    """
    faiss: Any = import_module("faiss")
    graph = faiss_graph(codebooks, codes, HALF_LINKS, ef_construction, advance, kept)
    levels = graph.hnsw
    size = LINK_BYTES if len(codes) < 1 << 24 else WIDE_LINK_BYTES
    neighbours = faiss.rev_swig_ptr(levels.neighbors.data(), levels.neighbors.size())
    firsts = faiss.rev_swig_ptr(levels.offsets.data(), len(codes) + 1)
    links = np.empty((len(codes), 2 * HALF_LINKS, size), dtype=np.uint8)
    for start in range(0, len(codes), AT_ONCE):
        places = firsts[start : min(start + AT_ONCE, len(codes)), None].astype(np.int64) + np.arange(2 * HALF_LINKS)
        found = neighbours[places]
        own = np.arange(start, start + len(found))[:, None]
        links[start : start + len(found)] = _as_bytes(np.where(found < 0, own, found), size)
    return links


def reordered(links: Links, order: Rows) -> Iterator[Links]:
    """Links between rows as links between places, some places at a time."""
    places = np.empty(len(order), dtype=np.int32)
    places[order] = np.arange(len(order), dtype=np.int32)
    for start in range(0, len(order), AT_ONCE):
        yield _as_bytes(places[_as_rows(links[order[start : start + AT_ONCE]])], links.shape[2])


def _as_bytes(rows: npt.NDArray[Any], size: int) -> Links:
    whole = np.ascontiguousarray(rows, dtype="<u4")
    return whole.view(np.uint8).reshape(*whole.shape, 4)[:, :, :size]


def _as_rows(links: Links) -> npt.NDArray[Any]:
    whole = np.zeros((*links.shape[:2], 4), dtype=np.uint8)
    whole[:, :, : links.shape[2]] = links
    return whole.view("<u4")[:, :, 0]
