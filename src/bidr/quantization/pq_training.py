"""Codebooks from vectors alone: k-means in every subspace (PQ), with a learned rotation (OPQ).

The same vectors and seed give the same codebooks with any number of threads.
"""

import numpy as np
from threadpoolctl import threadpool_limits

from bidr.errors import DataError
from bidr.quantization.codebooks import Codebooks, check_shape
from bidr.quantization.kmeans import CentroidSearcher, Numbers, add_rows
from bidr.utils.array_types import Floats
from bidr.utils.matmul import ColumnPanels, matmul_transposed, multiply

FIT_ROWS = 20_000
# Products over all rows are added up in parts of so many, in 64 bits.
SUMMED_ROWS = 1_024


def make_too_few_error(given: int, words: int) -> DataError:
    """The error of whoever has fewer vectors than codewords."""
    fewer = ", or take 16 codewords" if words == 256 and given >= 16 else ""
    return DataError(
        f"fitting {words} codewords needs at least {words} vectors: given {given}; give more{fewer} (so few can be "
        "compared one by one, without an index)"
    )


def fit_pq(
    vectors: Floats, books: int, words: int = 256, *, rotate: bool = True, iterations: int = 20, seed: int = 0
) -> Codebooks:
    """Codebooks that reconstruct the vectors well (Euclidean).

    rotate=True alternates codewords and an orthonormal rotation (OPQ); False leaves the axes as they are (PQ).
    At most FIT_ROWS vectors, drawn with the seed, are looked at.
    """
    check_shape(vectors.shape[1], books, words)
    if len(vectors) < words:
        raise make_too_few_error(len(vectors), words)
    random = np.random.default_rng(seed)
    rows = np.sort(random.choice(len(vectors), min(FIT_ROWS, len(vectors)), replace=False))
    sample: Floats = np.ascontiguousarray(vectors[rows], dtype=np.float32)
    rotation: Floats = np.eye(sample.shape[1], dtype=np.float32)
    rotated = sample
    if rotate:
        rotation = _random_rotation(sample.shape[1], random)
        rotated = matmul_transposed(sample, rotation)
    centroids = draw_centroids(rotated, books, words, random)
    if rotate:
        for _ in range(iterations):
            codes, centroids = run_kmeans_step(rotated, centroids, random)
            rotation = _best_rotation(sample, centroids[np.arange(books), codes].reshape(sample.shape))
            rotated = matmul_transposed(sample, rotation)
    for _ in range(iterations):
        _, centroids = run_kmeans_step(rotated, centroids, random)
    return Codebooks(rotation, centroids)


def draw_centroids(rows: Floats, books: int, count: int, random: np.random.Generator) -> Floats:
    """Slices of rows that are drawn, (books, count, width)."""
    drawn = rows[random.permutation(len(rows))[:count]]
    return np.ascontiguousarray(drawn.reshape(count, books, -1).transpose(1, 0, 2))


def run_kmeans_step(rows: Floats, centroids: Floats, random: np.random.Generator) -> tuple[Numbers, Floats]:
    """Assign, then move every codeword to the mean of its vectors, an unused one to a vector that is far from its own.

    Not to where most vectors are: those may be copies of one text, which no second codeword tells apart.
    """
    books, count, _ = centroids.shape
    codes = CentroidSearcher(centroids).search(rows)
    moved, sizes = np.zeros_like(centroids), np.zeros((books, count), dtype=np.int64)
    add_rows(moved, sizes, rows, codes)
    moved /= np.maximum(sizes, 1)[:, :, None]
    for book in np.flatnonzero((sizes == 0).any(axis=1)):
        idle, part = np.flatnonzero(sizes[book] == 0), rows.reshape(len(rows), books, -1)[:, book]
        errors = np.square(part - moved[book, codes[:, book]], dtype=np.float64).sum(axis=1)
        far = min(len(idle), int((errors > 0).sum()))
        if far:
            drawn = random.choice(len(rows), far, replace=False, p=errors / errors.sum())
            moved[book, idle[:far]] = part[drawn]
    return codes, moved


def _random_rotation(dim: int, random: np.random.Generator) -> Floats:
    with threadpool_limits(1, "blas"):  # several threads would sum in another order
        return np.linalg.qr(random.standard_normal((dim, dim)))[0].astype(np.float32)


def _best_rotation(sample: Floats, decoded: Floats) -> Floats:
    """The orthonormal R that brings sample @ R.T closest to what the codes say (Procrustes)."""
    product = np.zeros((decoded.shape[1], sample.shape[1]))
    for start in range(0, len(sample), SUMMED_ROWS):
        part = slice(start, start + SUMMED_ROWS)
        product += matmul_transposed(decoded[part].T, sample[part].T)
    with threadpool_limits(1, "blas"):
        left, _, right = np.linalg.svd(product.astype(np.float32))
    return multiply(left, ColumnPanels(right.T))
