"""Vectors and documents that are made, for measuring."""

import numpy as np

from bidr.data.types import Document
from bidr.utils.array_types import Floats

CENTRES, VOCABULARY = 500, 50_000
# Dimensions that matter less and less: so that documents choose as many links of a graph as MiniLM's do, 42 of 250 with
# codes of 16 bytes, and choosing takes as long. With all dimensions alike they choose 54.
FALLING = 0.3


def made_vectors(count: int, dim: int) -> Floats:
    """Around some hundred centres."""
    random = np.random.default_rng(0)
    scale = np.arange(1, dim + 1, dtype=np.float32) ** -FALLING
    centres = random.standard_normal((CENTRES, dim), dtype=np.float32)
    apart = random.standard_normal((count, dim), dtype=np.float32)
    made: Floats = (centres[random.integers(0, CENTRES, count)] + apart) * scale
    return made


def made_documents(count: int, size: int, width: int) -> list[Document]:
    """Texts of `size` bytes, of words of which some are common and most rare; ids of `width`."""
    random = np.random.default_rng(0)
    words = [np.base_repr(7_919 * (number + 100), 36).lower() for number in range(VOCABULARY)]
    drawn = (VOCABULARY ** random.random((count, size // 6 + 1))).astype(np.int64) - 1
    return [
        Document(f"{row:0{width}}", "", " ".join([words[word] for word in own])[:size])
        for row, own in enumerate(drawn.tolist())
    ]
