"""Coarse k-means over a corpus: IVF lists, and the order of documents.

Clusters are computed in query space, over a `VectorInput`.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bidr.index.builder.clustering_vectors import DecodedCodes, VectorInput
from bidr.quantization.codebooks import Codebooks
from bidr.quantization.kmeans import CentroidSearcher, Numbers, add_rows
from bidr.utils.array_types import Codes, Floats
from bidr.utils.faiss_loader import load_faiss

POINTS_PER_LIST, ROUNDS, SEED = 64, 10, 0
SORT_BLOCK_ROWS = 1 << 18
# Beyond this many lists (67 million documents) a graph over the centroids replaces brute-force assignment.
MAX_BRUTE_FORCE_LISTS, GRAPH_LINKS, GRAPH_WIDTH = 32_768, 32, 64
EPSILON = 1 / 1024
# Lists of about 250 documents at a million, 110 at 200,000: centroids take one or two bytes per document.
LISTS_PER_ROOT, MIN_LIST_SIZE = 4, 32
# Smaller corpora are in the page cache after a few queries, so their order makes no difference.
MIN_ORDERED_DOCUMENTS = 20_000


class Clusters(NamedTuple):
    """order: position -> row, cluster by cluster, rows ascending; cluster j has positions offsets[j:j + 2]."""

    centroids: Floats
    offsets: npt.NDArray[np.int64]
    order: npt.NDArray[Any]


class KMeansState(NamedTuple):
    """Progress of k-means: completed rounds, rows processed in the current one, and their sums by cluster."""

    rounds: int
    rows: int
    centroids: Floats
    sums: Floats
    sizes: npt.NDArray[np.int64]


class KMeansCheckpoint:
    """Loads and saves the state of k-means; this base class does neither."""

    def load(self) -> KMeansState | None:
        return None

    def save(self, state: KMeansState, *, force: bool = False) -> None:
        """Save the state if enough time has passed; called after every block, with `force` at the end."""


def choose_list_count(count: int) -> int:
    """Return the number of IVF lists: 4 * sqrt(count), but at least 32 documents in each."""
    return max(1, min(round(LISTS_PER_ROOT * math.sqrt(count)), count // MIN_LIST_SIZE))


def cluster_documents(
    codebooks: Codebooks,
    codes: Codes,
    lists: int | None = None,
    arrange: Callable[[Floats], Floats] | None = None,
    source: VectorInput | None = None,
) -> Clusters:
    """Cluster documents in memory.

    Args:
        codebooks: of the codes.
        codes: of the documents.
        lists: number of clusters; by default `choose_list_count`.
        arrange: reorders the centroids.
        source: what to cluster; by default the decoded codes.
    """
    count, source = len(codes), source or DecodedCodes(codebooks, codes)
    lists = min(lists or choose_list_count(count), count)
    sample = source.array[sample_rows(count, lists)]
    centroids = find_centroids(source.replace_array(sample), lists)
    centroids = centroids if arrange is None else arrange(centroids)
    assignments = np.concatenate(list(assign_clusters(source, centroids)))
    order = np.empty(count, dtype=np.int64)
    offsets = compute_offsets(assignments, lists)
    write_order(assignments, offsets, order)
    return Clusters(centroids, offsets, order)


def get_sample_size(count: int, lists: int) -> int:
    """Return the number of documents that k-means trains on."""
    return min(count, POINTS_PER_LIST * lists)


def sample_rows(count: int, lists: int) -> npt.NDArray[np.int64]:
    """Draw the rows that k-means trains on, one from each of equal stretches: no permutation of all rows in memory."""
    size = get_sample_size(count, lists)
    drawn = (np.arange(size) + np.random.default_rng(SEED).random(size)) * (count / size)
    return np.minimum(drawn.astype(np.int64), count - 1)


def find_centroids(
    sample: VectorInput,
    lists: int,
    checkpoint: KMeansCheckpoint | None = None,
    advance: Callable[[int], None] = lambda rows: None,
) -> Floats:
    """Run k-means over a sample and return the centroids."""
    checkpoint = checkpoint or KMeansCheckpoint()
    state = checkpoint.load()
    if state is not None and state.rounds == ROUNDS:
        return state.centroids
    if state is None:
        rows = np.sort(np.random.default_rng(SEED + 1).permutation(len(sample))[:lists])
        initial = sample.replace_array(sample.array[rows])
        state = start_round(0, np.concatenate([block for _, block in initial.iter_blocks()]))
    while state.rounds < ROUNDS:
        state = run_round(sample, state, checkpoint, advance)
    checkpoint.save(state, force=True)
    return state.centroids


def assign_clusters(source: VectorInput, centroids: Floats, first: int = 0) -> Iterator[npt.NDArray[np.int32]]:
    """Yield the cluster of every document from a row on, block by block."""
    centroid_search = make_centroid_search(centroids)
    for _, block in source.iter_blocks(first):
        yield centroid_search.search(block)[:, 0]


def compute_offsets(assignments: npt.NDArray[Any], lists: int) -> npt.NDArray[np.int64]:
    """Return where each cluster starts when documents are ordered by cluster."""
    offsets = np.zeros(lists + 1, dtype=np.int64)
    for start in range(0, len(assignments), SORT_BLOCK_ROWS):
        offsets[1:] += np.bincount(assignments[start : start + SORT_BLOCK_ROWS], minlength=lists)
    return np.cumsum(offsets)


def write_order(assignments: npt.NDArray[Any], offsets: npt.NDArray[np.int64], order: npt.NDArray[Any]) -> None:
    """Write the row at each position into `order`: a counting sort by cluster, block by block."""
    free = offsets[:-1].copy()
    for start in range(0, len(assignments), SORT_BLOCK_ROWS):
        block = np.asarray(assignments[start : start + SORT_BLOCK_ROWS])
        rows = np.argsort(block, kind="stable")
        runs = block[rows]
        heads = np.flatnonzero(np.diff(runs, prepend=-1))
        sizes = np.diff(heads, append=len(runs))
        within = np.arange(len(runs)) - np.repeat(heads, sizes)
        order[free[runs] + within] = start + rows
        free[runs[heads]] += sizes


def start_round(rounds: int, centroids: Floats) -> KMeansState:
    """Return the state after completed rounds, at the start of the next one."""
    return KMeansState(rounds, 0, centroids, np.zeros_like(centroids), np.zeros(len(centroids), dtype=np.int64))


def run_round(
    sample: VectorInput, state: KMeansState, checkpoint: KMeansCheckpoint, advance: Callable[[int], None]
) -> KMeansState:
    """Move every centroid to the mean of the rows nearest to it."""
    centroid_search, sums, sizes = make_centroid_search(state.centroids), state.sums, state.sizes
    for start, block in sample.iter_blocks(state.rows):
        add_rows(sums[None], sizes[None], block, centroid_search.search(block))
        advance(len(block))
        checkpoint.save(state._replace(rows=start + len(block)))
    sums /= np.maximum(sizes, 1)[:, None]
    _split_large_clusters(sums, sizes)
    return start_round(state.rounds + 1, sums)


def _split_large_clusters(centroids: Floats, sizes: npt.NDArray[np.int64]) -> None:
    """Replace empty clusters by halves of the largest, as Faiss does: copy the centroid and perturb both."""
    factors = np.where(np.arange(centroids.shape[1]) % 2, 1 - EPSILON, 1 + EPSILON).astype(np.float32)
    for empty in np.flatnonzero(sizes == 0):
        large = int(sizes.argmax())
        centroids[empty], centroids[large] = centroids[large] * factors, centroids[large] * (2 - factors)
        sizes[empty] = sizes[large] // 2
        sizes[large] -= sizes[empty]


@contextmanager
def use_one_thread() -> Iterator[None]:
    """Limit Faiss to one thread in the block: a graph built by several is not deterministic."""
    faiss = load_faiss()
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(threads)


class GraphCentroidSearch:
    """Nearest-centroid search by an HNSW graph, with the interface of `Nearest`, for many centroids."""

    def __init__(self, centroids: Floats) -> None:
        faiss = load_faiss()
        self._index = faiss.IndexHNSWFlat(centroids.shape[1], GRAPH_LINKS)
        self._index.hnsw.efConstruction, self._index.hnsw.efSearch = GRAPH_WIDTH, GRAPH_WIDTH
        with use_one_thread():
            self._index.add(centroids)

    def search(self, rows: Floats) -> Numbers:
        numbers: Numbers = self._index.search(rows, 1)[1].astype(np.int32)
        return numbers


def make_centroid_search(centroids: Floats) -> CentroidSearcher | GraphCentroidSearch:
    """Return a nearest-centroid search: by brute force, or by a graph over very many centroids."""
    return (
        CentroidSearcher(centroids[None]) if len(centroids) <= MAX_BRUTE_FORCE_LISTS else GraphCentroidSearch(centroids)
    )
