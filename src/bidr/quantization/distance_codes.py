"""Codebooks of squared Euclidean distances, as codebooks of inner products.

||q - x||^2 = ||q||^2 - 2 (q.x - ||x||^2 / 2), and ||x||^2 of a decoded document is the sum over its codewords. Every
codeword gets one more number, minus half of its squared norm, and every query one more component, which each book sees
as 1. Inner products of such queries and codewords rank documents by distance, so engines, lists and block centroids
work unchanged. Documents are encoded without the added number: their last component counts as 0.
"""

import math

import numpy as np

from bidr.quantization.codebooks import Codebooks
from bidr.utils.array_types import Floats


def make_distance_codebooks(codebooks: Codebooks) -> Codebooks:
    """Return codebooks whose inner products rank by distance.

    The last component of queries is a power of two near the norm of documents, so that decoded documents, which are
    clustered, have a last component of their size.
    """
    books, _, width = codebooks.centroids.shape
    half_norms = np.add.reduce(np.square(codebooks.centroids, dtype=np.float64), axis=2) / 2
    mean_norm = math.sqrt(2 * float(half_norms.mean(axis=1).sum()))
    scale = 2.0 ** round(math.log2(max(mean_norm, 1e-15)))
    # A number added to all codewords of a book changes no ranking; small numbers are quantized better.
    added = (half_norms.mean(axis=1, keepdims=True) - half_norms)[:, :, None]
    centroids = np.concatenate([codebooks.centroids, added], axis=2).astype(np.float32)
    choosing = np.concatenate([codebooks.centroids, np.zeros_like(added)], axis=2).astype(np.float32)
    rotation = np.zeros((books, width + 1, codebooks.dim + 1), dtype=np.float32)
    rotation[:, :width, :-1] = codebooks.rotation.reshape(books, width, -1)
    rotation[:, width, -1] = 1 / scale
    return Codebooks(rotation.reshape(books * (width + 1), -1), centroids, choosing)


def make_inner_product_codebooks(codebooks: Codebooks) -> Codebooks:
    """Return the codebooks that `make_distance_codebooks` was given."""
    books, _, width = codebooks.centroids.shape
    rotation = codebooks.rotation.reshape(books, width, -1)[:, :-1, :-1]
    return Codebooks(
        np.ascontiguousarray(rotation.reshape(books * (width - 1), -1)),
        np.ascontiguousarray(codebooks.centroids[:, :, :-1]),
    )


def add_query_component(codebooks: Codebooks, queries: Floats) -> Floats:
    """Return queries with the last component that distance codebooks expect."""
    width = codebooks.centroids.shape[2]
    scale = 1 / codebooks.rotation[width - 1, -1]
    added = np.full((len(queries), 1), scale, dtype=np.float32)
    return np.ascontiguousarray(np.concatenate([queries, added], axis=1, dtype=np.float32))
