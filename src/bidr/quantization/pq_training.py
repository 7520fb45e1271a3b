"""PQ and OPQ training: k-means in every subspace, with an optional learned rotation.

Deterministic for a seed, with any number of threads.
"""

import numpy as np
from threadpoolctl import threadpool_limits

from bidr.errors import DataError
from bidr.quantization.codebooks import Codebooks, check_shape
from bidr.quantization.kmeans import CentroidSearcher, Numbers, add_rows
from bidr.utils.array_types import Floats
from bidr.utils.progress import ProgressCallback, ignore_progress
from bidr.utils.reproducible_matmul import ColumnPanels, matmul_transposed, multiply

FIT_ROWS, ITERATIONS = 20_000, 20
# Products over all rows are accumulated in float64 blocks of this many rows.
SUMMED_ROWS = 1_024


def make_too_few_error(count: int, words: int) -> DataError:
    """Create the error for fewer vectors than codewords."""
    hint = ", or take 16 codewords" if words == 256 and count >= 16 else ""
    return DataError(
        f"fitting {words} codewords needs at least {words} vectors: given {count}; give more{hint} (so few can be "
        "compared one by one, without an index)"
    )


def fit_pq(
    vectors: Floats,
    books: int,
    words: int = 256,
    *,
    rotate: bool = True,
    iterations: int = ITERATIONS,
    seed: int = 0,
    advance: ProgressCallback | None = None,
) -> Codebooks:
    """Train codebooks (Euclidean) on a sample of at most FIT_ROWS vectors.

    Args:
        vectors: (n, dim).
        books: Number of codebooks; divides dim.
        words: Codewords per book, 16 or 256.
        rotate: Alternate between codewords and an orthonormal rotation (OPQ); False: PQ.
        iterations: Rounds of k-means, and of rotation.
        seed: Seed of the sample and the first centroids.
        advance: Called after each iteration: `iterations` times, and as often before them to find the rotation.
    """
    advance = advance or ignore_progress
    check_shape(vectors.shape[1], books, words)
    if len(vectors) < words:
        raise make_too_few_error(len(vectors), words)
    random = np.random.default_rng(seed)
    rows = np.sort(random.choice(len(vectors), min(FIT_ROWS, len(vectors)), replace=False))
    sample: Floats = np.ascontiguousarray(vectors[rows], dtype=np.float32)
    rotation: Floats = np.eye(sample.shape[1], dtype=np.float32)
    rotated = sample
    if rotate:
        rotation = _draw_rotation(sample.shape[1], random)
        rotated = matmul_transposed(sample, rotation)
    centroids = draw_centroids(rotated, books, words, random)
    if rotate:
        for _ in range(iterations):
            codes, centroids = run_kmeans_step(rotated, centroids, random)
            rotation = _fit_rotation(sample, centroids[np.arange(books), codes].reshape(sample.shape))
            rotated = matmul_transposed(sample, rotation)
            advance(1)
    for _ in range(iterations):
        _, centroids = run_kmeans_step(rotated, centroids, random)
        advance(1)
    return Codebooks(rotation, centroids)


def draw_centroids(rows: Floats, books: int, count: int, random: np.random.Generator) -> Floats:
    """Draw initial centroids from rows: (books, count, width)."""
    drawn = rows[random.permutation(len(rows))[:count]]
    return np.ascontiguousarray(drawn.reshape(count, books, -1).transpose(1, 0, 2))


def run_kmeans_step(rows: Floats, centroids: Floats, random: np.random.Generator) -> tuple[Numbers, Floats]:
    """Run one k-means step; an unused codeword moves to a vector with a large error.

    Not into the largest cluster: it may consist of duplicates, which no second codeword can separate.
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


def _draw_rotation(dim: int, random: np.random.Generator) -> Floats:
    with threadpool_limits(1, "blas"):  # deterministic summation order
        return np.linalg.qr(random.standard_normal((dim, dim)))[0].astype(np.float32)


def _fit_rotation(sample: Floats, decoded: Floats) -> Floats:
    """Fit the orthonormal R that brings sample @ R.T closest to the decoded vectors (Procrustes)."""
    product = np.zeros((decoded.shape[1], sample.shape[1]))
    for start in range(0, len(sample), SUMMED_ROWS):
        part = slice(start, start + SUMMED_ROWS)
        product += matmul_transposed(decoded[part].T, sample[part].T)
    with threadpool_limits(1, "blas"):
        u, _, v = np.linalg.svd(product.astype(np.float32))
    return multiply(u, ColumnPanels(v.T))
