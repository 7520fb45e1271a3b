"""Vectors and codebooks for tests."""

import numpy as np

from bidr.quantization.codebooks import Codebooks


def correlated(count: int, dim: int, seed: int = 0) -> np.ndarray:
    """Vectors whose variance lies in few directions that no axis follows: a rotation pays."""
    mixed = np.random.default_rng(99).standard_normal((dim, dim))
    spectrum = np.arange(1, dim + 1) ** -1.0
    random = np.random.default_rng(seed)
    return ((random.standard_normal((count, dim)) * spectrum) @ np.linalg.qr(mixed)[0]).astype(np.float32)


def clustered(count: int, dim: int, centres: int, seed: int = 0, spread: float = 0.05) -> np.ndarray:
    random = np.random.default_rng(seed)
    middles = random.standard_normal((centres, dim))
    noise = spread * random.standard_normal((count, dim))
    return (middles[random.integers(centres, size=count)] + noise).astype(np.float32)


def random_codebooks(dim: int, books: int, words: int, seed: int = 0) -> Codebooks:
    random = np.random.default_rng(seed)
    rotation = np.linalg.qr(random.standard_normal((dim, dim)))[0].astype(np.float32)
    return Codebooks(rotation, random.standard_normal((books, words, dim // books)).astype(np.float32))


def error(codebooks: Codebooks, vectors: np.ndarray) -> float:
    """Mean squared distance between the vectors and what their codes say."""
    decoded = codebooks.decode(codebooks.encode(vectors))
    return float(np.square(codebooks.rotate(vectors) - decoded).sum(axis=1).mean())
