"""Coarse clusters of a corpus, from its codes alone: the order in which documents stand, and the lists of an index.

Codes are clustered in the space of queries: a document is what a query's inner product with it is its score.
"""

import math
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bidr.codes.codebooks import Codebooks, Codes, Floats

POINTS_A_LIST, ROUNDS, SEED = 64, 10, 0
AT_ONCE = 8_192
# Lists of about 250 documents at a million, 110 at 200,000: centroids cost a byte or two a document.
LISTS_PER_ROOT, LEAST_IN_A_LIST = 4, 32
# Below so many documents everything is in the page cache after a few queries, and order changes nothing.
ORDERED_DOCUMENTS = 20_000


class Clusters(NamedTuple):
    """order: place -> row, cluster after cluster, rows ascending within; cluster j holds places offsets[j:j + 2]."""

    centroids: Floats
    offsets: npt.NDArray[np.int64]
    order: npt.NDArray[np.int64]


def lists_for(count: int) -> int:
    """How many lists a corpus is divided into: 4 times the root, but not so many that they hold hardly anything."""
    return max(1, min(round(LISTS_PER_ROOT * math.sqrt(count)), count // LEAST_IN_A_LIST))


def clusters(
    codebooks: Codebooks, codes: Codes, lists: int | None = None, advance: Callable[[int], None] = lambda rows: None
) -> Clusters:
    """Cluster documents by k-means over a sample; memory for a sample and a block, whatever the corpus."""
    faiss: Any = import_module("faiss")
    count = len(codes)
    lists = min(lists or lists_for(count), count)
    centroids = _centroids(codebooks, codes, lists)
    index = faiss.IndexFlatL2(codebooks.dim)
    index.add(centroids)
    of = np.empty(count, dtype=np.int32)
    for start, block in _blocks(codebooks, codes):
        of[start : start + len(block)] = index.search(block, 1)[1][:, 0]
        advance(len(block))
    offsets = np.zeros(lists + 1, dtype=np.int64)
    np.cumsum(np.bincount(of, minlength=lists), out=offsets[1:])
    return Clusters(centroids, offsets, np.argsort(of, kind="stable"))


def in_query_space(codebooks: Codebooks, codes: Codes) -> Floats:
    """What codes say of documents, in the space of queries: (n, dim)."""
    books, _, width = codebooks.centroids.shape
    if len(codebooks.rotation) <= codebooks.dim:
        return codebooks.decode(codes) @ codebooks.rotation
    # Additive codes: a copy of the space for every book, so side by side they would take as many times the memory.
    words = np.matmul(codebooks.centroids, codebooks.rotation.reshape(books, width, -1))
    total = words[0][codes[:, 0]]
    for book in range(1, books):
        total += words[book][codes[:, book]]
    summed: Floats = total
    return summed


def _centroids(codebooks: Codebooks, codes: Codes, lists: int) -> Floats:
    faiss: Any = import_module("faiss")
    size = min(len(codes), POINTS_A_LIST * lists)
    rows = np.sort(np.random.default_rng(SEED).choice(len(codes), size, replace=False))
    sample = np.empty((size, codebooks.dim), dtype=np.float32)
    for start, block in _blocks(codebooks, codes, rows):
        sample[start : start + len(block)] = block
    means = faiss.Clustering(codebooks.dim, lists)
    means.niter, means.seed = ROUNDS, SEED + 1
    means.min_points_per_centroid, means.max_points_per_centroid = 1, POINTS_A_LIST
    means.train(sample, faiss.IndexFlatL2(codebooks.dim))
    found: Floats = faiss.vector_to_array(means.centroids).reshape(lists, codebooks.dim)
    return found


def _blocks(codebooks: Codebooks, codes: Codes, rows: Any = None) -> Iterator[tuple[int, Floats]]:
    count = len(codes) if rows is None else len(rows)
    for start in range(0, count, AT_ONCE):
        part = slice(start, start + AT_ONCE)
        block = np.asarray(codes[part] if rows is None else codes[rows[part]])
        yield start, np.ascontiguousarray(in_query_space(codebooks, block), dtype=np.float32)
