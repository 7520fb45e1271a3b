"""Synthetic vectors and documents for calibration."""

import numpy as np

from bidr.data.types import Document
from bidr.utils.array_types import Floats

CENTERS, VOCABULARY = 500, 50_000
# Exponent by which the variance of dimensions decays, so that documents choose as many graph links as with MiniLM (42
# of 250 with codes of 16 bytes) and choosing takes as long. With equal variances they choose 54.
DECAY = 0.3


def make_vectors(count: int, dim: int) -> Floats:
    """Draw vectors around some hundred centers."""
    random = np.random.default_rng(0)
    scale = np.arange(1, dim + 1, dtype=np.float32) ** -DECAY
    centers = random.standard_normal((CENTERS, dim), dtype=np.float32)
    noise = random.standard_normal((count, dim), dtype=np.float32)
    vectors: Floats = (centers[random.integers(0, CENTERS, count)] + noise) * scale
    return vectors


def make_documents(count: int, size: int, id_width: int) -> list[Document]:
    """Draw texts of `size` bytes with log-uniform term frequencies, and ids of `id_width` digits."""
    random = np.random.default_rng(0)
    words = [np.base_repr(7_919 * (number + 100), 36).lower() for number in range(VOCABULARY)]
    term_numbers = (VOCABULARY ** random.random((count, size // 6 + 1))).astype(np.int64) - 1
    return [
        Document(f"{row:0{id_width}}", "", " ".join([words[word] for word in numbers])[:size])
        for row, numbers in enumerate(term_numbers.tolist())
    ]
