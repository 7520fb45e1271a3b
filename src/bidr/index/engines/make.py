"""Engines from arrays, without a folder: to compare them, or for a corpus that lives in memory."""

from bidr.codes.codebooks import Codebooks, Codes
from bidr.index.engines.base import Rows
from bidr.index.engines.clusters import clusters
from bidr.index.engines.graph import Graph, build_links
from bidr.index.engines.lists import Lists
from bidr.index.engines.scan import Scan
from bidr.index.engines.store import CodeStore
from bidr.index.faissfile import EF_CONSTRUCTION, check_codes, pack


def make_scan(codebooks: Codebooks, codes: Codes) -> Scan:
    """A scan of codes (n, M)."""
    check_codes(codebooks, codes)
    return Scan(CodeStore(codebooks, pack(codes, codebooks.bits)))


def make_lists(
    codebooks: Codebooks, codes: Codes, lists: int | None = None, visits: int | None = None
) -> tuple[Lists, Rows]:
    """Lists over codes, and the order in which documents stand there: place -> row."""
    check_codes(codebooks, codes)
    found = clusters(codebooks, codes, lists)
    store = CodeStore(codebooks, pack(codes[found.order], codebooks.bits))
    return Lists(store, found.centroids, found.offsets, visits), found.order


def make_graph(
    codebooks: Codebooks, codes: Codes, ef: int | None = None, ef_construction: int = EF_CONSTRUCTION
) -> Graph:
    """A graph over codes, in their own order."""
    check_codes(codebooks, codes)
    store = CodeStore(codebooks, pack(codes, codebooks.bits), blocks=False)
    return Graph(store, build_links(codebooks, codes, ef_construction), ef)
