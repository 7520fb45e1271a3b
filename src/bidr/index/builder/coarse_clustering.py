"""Coarse clusters of a corpus: the order in which documents stand, and the lists of an index.

Documents are clustered in the space of queries, as a `Source` has them.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bidr.index.builder.cluster_input import Decoded, Source
from bidr.quantization.codebooks import Codebooks
from bidr.quantization.kmeans import Nearest, Numbers, add_rows
from bidr.utils.array_types import Codes, Floats
from bidr.utils.faiss_loader import load_faiss

POINTS_A_LIST, ROUNDS, SEED = 64, 10, 0
SORTED_AT_ONCE = 1 << 18
# From so many lists on (67 million documents) a document's is found by a graph over the centroids, not among all.
MANY_LISTS, GRAPH_LINKS, GRAPH_WIDTH = 32_768, 32, 64
EPSILON = 1 / 1024
# Lists of about 250 documents at a million, 110 at 200,000: centroids cost a byte or two a document.
LISTS_PER_ROOT, LEAST_IN_A_LIST = 4, 32
# Below so many documents everything is in the page cache after a few queries, and order changes nothing.
ORDERED_DOCUMENTS = 20_000


class Clusters(NamedTuple):
    """order: place -> row, cluster after cluster, rows ascending within; cluster j holds places offsets[j:j + 2]."""

    centroids: Floats
    offsets: npt.NDArray[np.int64]
    order: npt.NDArray[Any]


class Moving(NamedTuple):
    """How far k-means is: whole rounds, rows of the sample in the next one, and what they add up to by cluster."""

    rounds: int
    rows: int
    centroids: Floats
    sums: Floats
    sizes: npt.NDArray[np.int64]


class Rounds:
    """Where k-means is kept, so that it can go on: here nowhere."""

    def last(self) -> Moving | None:
        return None

    def keep(self, state: Moving, *, now: bool = False) -> None:
        """Told after every block; `now`: at the end."""


def lists_for(count: int) -> int:
    """How many lists a corpus is divided into: 4 times the root, but not so many that they hold hardly anything."""
    return max(1, min(round(LISTS_PER_ROOT * math.sqrt(count)), count // LEAST_IN_A_LIST))


def clusters(
    codebooks: Codebooks,
    codes: Codes,
    lists: int | None = None,
    arrange: Callable[[Floats], Floats] | None = None,
    source: Source | None = None,
) -> Clusters:
    """Cluster documents, everything in memory.

    arrange: puts the centroids in another order. source: what they are clustered by; by default their codes.
    """
    count, source = len(codes), source or Decoded(codebooks, codes)
    lists = min(lists or lists_for(count), count)
    sample = source.array[sample_rows(count, lists)]
    centroids = find_centroids(source.of(sample), lists)
    centroids = centroids if arrange is None else arrange(centroids)
    of = np.concatenate(list(assigned(source, centroids)))
    order = np.empty(count, dtype=np.int64)
    offsets = offsets_of(of, lists)
    put_in_order(of, offsets, order)
    return Clusters(centroids, offsets, order)


def sample_size(count: int, lists: int) -> int:
    """How many documents k-means looks at."""
    return min(count, POINTS_A_LIST * lists)


def sample_rows(count: int, lists: int) -> npt.NDArray[np.int64]:
    """Which documents: one out of each stretch of the corpus, so that choosing takes no memory for the rest."""
    size = sample_size(count, lists)
    drawn = (np.arange(size) + np.random.default_rng(SEED).random(size)) * (count / size)
    return np.minimum(drawn.astype(np.int64), count - 1)


def find_centroids(
    sample: Source, lists: int, rounds: Rounds | None = None, advance: Callable[[int], None] = lambda rows: None
) -> Floats:
    """Means of so many clusters, by k-means over a sample."""
    kept = rounds or Rounds()
    state = kept.last()
    if state is not None and state.rounds == ROUNDS:
        return state.centroids
    if state is None:
        first = np.sort(np.random.default_rng(SEED + 1).permutation(len(sample))[:lists])
        state = begun(0, np.concatenate([block for _, block in sample.of(sample.array[first]).blocks()]))
    while state.rounds < ROUNDS:
        state = moved(sample, state, kept, advance)
    kept.keep(state, now=True)
    return state.centroids


def assigned(source: Source, centroids: Floats, first: int = 0) -> Iterator[npt.NDArray[np.int32]]:
    """The cluster of every document from a row on, some at a time."""
    nearest = finder(centroids)
    for _, block in source.blocks(first):
        yield nearest.search(block)[:, 0]


def offsets_of(of: npt.NDArray[Any], lists: int) -> npt.NDArray[np.int64]:
    """Where clusters begin, when documents stand cluster after cluster."""
    offsets = np.zeros(lists + 1, dtype=np.int64)
    for start in range(0, len(of), SORTED_AT_ONCE):
        offsets[1:] += np.bincount(of[start : start + SORTED_AT_ONCE], minlength=lists)
    return np.cumsum(offsets)


def put_in_order(of: npt.NDArray[Any], offsets: npt.NDArray[np.int64], order: npt.NDArray[Any]) -> None:
    """Write into `order` which document stands where: a counting sort, some documents at a time."""
    free = offsets[:-1].copy()
    for start in range(0, len(of), SORTED_AT_ONCE):
        block = np.asarray(of[start : start + SORTED_AT_ONCE])
        rows = np.argsort(block, kind="stable")
        runs = block[rows]
        heads = np.flatnonzero(np.diff(runs, prepend=-1))
        sizes = np.diff(heads, append=len(runs))
        within = np.arange(len(runs)) - np.repeat(heads, sizes)
        order[free[runs] + within] = start + rows
        free[runs[heads]] += sizes


def begun(rounds: int, centroids: Floats) -> Moving:
    """K-means after so many rounds, with nothing of the next one done."""
    return Moving(rounds, 0, centroids, np.zeros_like(centroids), np.zeros(len(centroids), dtype=np.int64))


def moved(sample: Source, state: Moving, kept: Rounds, advance: Callable[[int], None]) -> Moving:
    """A round: every centroid at the mean of those nearest to it."""
    nearest, sums, sizes = finder(state.centroids), state.sums, state.sizes
    for start, block in sample.blocks(state.rows):
        add_rows(sums[None], sizes[None], block, nearest.search(block))
        advance(len(block))
        kept.keep(state._replace(rows=start + len(block)))
    sums /= np.maximum(sizes, 1)[:, None]
    _split(sums, sizes)
    return begun(state.rounds + 1, sums)


def _split(centroids: Floats, sizes: npt.NDArray[np.int64]) -> None:
    """Give an empty cluster half of a large one, as Faiss does: a copy, and both moved apart a little."""
    apart = np.where(np.arange(centroids.shape[1]) % 2, 1 - EPSILON, 1 + EPSILON).astype(np.float32)
    for empty in np.flatnonzero(sizes == 0):
        large = int(sizes.argmax())
        centroids[empty], centroids[large] = centroids[large] * apart, centroids[large] * (2 - apart)
        sizes[empty] = sizes[large] // 2
        sizes[large] -= sizes[empty]


@contextmanager
def one_thread() -> Iterator[None]:
    """Faiss adds to a graph with one thread: several make another graph every time."""
    faiss = load_faiss()
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(threads)


class NearestByGraph:
    """As `Nearest` for one book of very many centroids, found by a graph over them."""

    def __init__(self, centroids: Floats) -> None:
        faiss = load_faiss()
        self._index = faiss.IndexHNSWFlat(centroids.shape[1], GRAPH_LINKS)
        self._index.hnsw.efConstruction, self._index.hnsw.efSearch = GRAPH_WIDTH, GRAPH_WIDTH
        with one_thread():
            self._index.add(centroids)

    def search(self, rows: Floats) -> Numbers:
        found: Numbers = self._index.search(rows, 1)[1].astype(np.int32)
        return found


def finder(centroids: Floats) -> Nearest | NearestByGraph:
    """What finds the nearest centroid: by comparing with all, or where they are very many by a graph over them."""
    return Nearest(centroids[None]) if len(centroids) <= MANY_LISTS else NearestByGraph(centroids)
