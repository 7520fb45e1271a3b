"""usearch: a graph over vectors of reduced precision, in RAM."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from usearch.index import Index


def build(vectors: np.ndarray, folder: Path, settings: dict[str, Any]) -> None:
    index = Index(
        ndim=vectors.shape[1],
        metric="cos",
        dtype=settings["dtype"],
        connectivity=settings["links"],
        expansion_add=settings["ef_construction"],
    )
    index.add(np.arange(len(vectors)), np.ascontiguousarray(vectors), threads=settings["threads"])
    index.save(str(folder / "index.usearch"))


def open_index(folder: Path, settings: dict[str, Any]) -> Callable[..., np.ndarray]:
    index = Index.restore(str(folder / "index.usearch"))

    def search(query: np.ndarray, count: int, setting: dict[str, Any]) -> np.ndarray:
        index.expansion_search = max(setting["ef"], count)
        return np.asarray(index.search(query, count, threads=1).keys).astype(np.int64)

    return search
