"""Vectors as most of these scripts take them."""

import numpy as np


def unit(rows: np.ndarray) -> np.ndarray:
    """Rows of any type as float32 of length 1."""
    floats = np.asarray(rows, dtype=np.float32)
    return floats / np.maximum(np.linalg.norm(floats, axis=1, keepdims=True), 1e-12)
