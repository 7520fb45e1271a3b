"""Engines built from arrays in memory, for comparisons and small corpora."""

import numpy as np

from bidr.index.builder.block_centroid_builder import compute_block_centroids, quantize_block_centroids
from bidr.index.builder.clustering_vectors import DecodedCodes, choose_cluster_input
from bidr.index.builder.coarse_clustering import cluster_documents
from bidr.index.builder.reorder import order_for_graph, order_in_blocks, sort_centroids
from bidr.index.candidate_source import EF_CONSTRUCTION
from bidr.index.code_packing import check_codes, pack
from bidr.index.engines.block_centroids import BlockCentroids, has_block_centroids
from bidr.index.engines.code_store import CodeStore
from bidr.index.engines.fast_scan_kernels import BLOCK
from bidr.index.engines.flat import FlatEngine
from bidr.index.engines.graph.engine import GraphEngine, build_links
from bidr.index.engines.ivf import IvfEngine
from bidr.quantization.codebooks import Codebooks
from bidr.utils.array_types import Codes, Floats, Rows


def make_scan(codebooks: Codebooks, codes: Codes) -> FlatEngine:
    """Return a flat engine over codes (n, M)."""
    check_codes(codebooks, codes)
    return FlatEngine(CodeStore(codebooks, pack(codes, codebooks.bits)))


def make_lists(
    codebooks: Codebooks,
    codes: Codes,
    lists: int | None = None,
    nprobe: int | None = None,
    vectors: Floats | None = None,
) -> tuple[IvfEngine, Rows]:
    """Return an IVF engine over codes, and the row at each position.

    vectors: cluster these rather than the decoded codes, if the codes encode them, as an index does.
    """
    check_codes(codebooks, codes)
    has_blocks, centroids = has_block_centroids("lists", len(codes)), None
    source = DecodedCodes(codebooks, codes) if vectors is None else choose_cluster_input(codebooks, codes, vectors)
    clusters = cluster_documents(codebooks, codes, lists, sort_centroids if has_blocks else None, source)
    order = clusters.order
    if has_blocks:
        order = np.concatenate(list(order_in_blocks(source, clusters.offsets, order, BLOCK)))
        centroids = BlockCentroids(*quantize_block_centroids(compute_block_centroids(source[order])))
    store = CodeStore(codebooks, pack(codes[order], codebooks.bits))
    return IvfEngine(store, clusters.centroids, clusters.offsets, nprobe, centroids), order


def make_graph(
    codebooks: Codebooks, codes: Codes, ef: int | None = None, ef_construction: int = EF_CONSTRUCTION
) -> tuple[GraphEngine, Rows]:
    """Return a graph engine over codes, and the row at each position."""
    check_codes(codebooks, codes)
    order = np.concatenate(list(order_for_graph(DecodedCodes(codebooks, codes), cluster_documents(codebooks, codes))))
    ordered_codes = codes[order]
    store = CodeStore(codebooks, pack(ordered_codes, codebooks.bits), blocks=False)
    return GraphEngine(store, build_links(codebooks, ordered_codes, ef_construction), ef), order
