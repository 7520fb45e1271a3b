"""Engines from arrays, without a folder: to compare them, or for a corpus that lives in memory."""

import numpy as np

from bidr.index.builder.block_centroids import coded_means, means_of
from bidr.index.builder.cluster_input import Decoded, source_of
from bidr.index.builder.coarse_clustering import clusters
from bidr.index.builder.reorder import arranged, in_a_row, in_blocks
from bidr.index.code_packing import check_codes, pack
from bidr.index.engines.block_centroids import BlockCentroids, has_block_centroids
from bidr.index.engines.code_store import CodeStore
from bidr.index.engines.flat import FlatEngine
from bidr.index.engines.graph.engine import GraphEngine, build_links
from bidr.index.engines.ivf import IvfEngine
from bidr.index.engines.pshufb import BLOCK
from bidr.index.types import EF_CONSTRUCTION
from bidr.quantization.codebooks import Codebooks
from bidr.utils.array_types import Codes, Floats, Rows


def make_scan(codebooks: Codebooks, codes: Codes) -> FlatEngine:
    """A scan of codes (n, M)."""
    check_codes(codebooks, codes)
    return FlatEngine(CodeStore(codebooks, pack(codes, codebooks.bits)))


def make_lists(
    codebooks: Codebooks,
    codes: Codes,
    lists: int | None = None,
    visits: int | None = None,
    vectors: Floats | None = None,
) -> tuple[IvfEngine, Rows]:
    """Lists over codes, and the order in which documents stand there: place -> row.

    vectors: what the documents are divided by, if the codes are of them, as in an index.
    """
    check_codes(codebooks, codes)
    blocks, means = has_block_centroids("lists", len(codes)), None
    source = Decoded(codebooks, codes) if vectors is None else source_of(codebooks, codes, vectors)
    found = clusters(codebooks, codes, lists, in_a_row if blocks else None, source)
    order = found.order
    if blocks:
        order = np.concatenate(list(in_blocks(source, found.offsets, order, BLOCK)))
        means = BlockCentroids(*coded_means(means_of(source[order])))
    store = CodeStore(codebooks, pack(codes[order], codebooks.bits))
    return IvfEngine(store, found.centroids, found.offsets, visits, means), order


def make_graph(
    codebooks: Codebooks, codes: Codes, ef: int | None = None, ef_construction: int = EF_CONSTRUCTION
) -> tuple[GraphEngine, Rows]:
    """A graph over codes, and the order in which documents stand there: place -> row."""
    check_codes(codebooks, codes)
    order = np.concatenate(list(arranged(Decoded(codebooks, codes), clusters(codebooks, codes))))
    placed = codes[order]
    store = CodeStore(codebooks, pack(placed, codebooks.bits), blocks=False)
    return GraphEngine(store, build_links(codebooks, placed, ef_construction), ef), order
