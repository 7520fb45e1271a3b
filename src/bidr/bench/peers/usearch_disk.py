"""usearch opened by `view`: graph and fp16 vectors stay in a mapped file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from usearch.index import Index


def build(vectors: np.ndarray, folder: Path, settings: dict[str, Any]) -> None:
    index = Index(
        ndim=vectors.shape[1],
        metric="ip",
        dtype="f16",
        connectivity=settings["links"],
        expansion_add=settings["ef_construction"],
    )
    index.add(np.arange(len(vectors)), np.ascontiguousarray(vectors), threads=settings["threads"])
    index.save(str(folder / "index.usearch"))


def open_index(folder: Path, settings: dict[str, Any]) -> Callable[..., np.ndarray]:
    # usearch keeps a search context for each of `threads` callers.
    indexes: dict[int, Index] = {}

    def search(query: np.ndarray, count: int, setting: dict[str, Any]) -> np.ndarray:
        width = max(setting["ef"], count)
        if width not in indexes:
            indexes[width] = Index.restore(str(folder / "index.usearch"), view=True)
            indexes[width].expansion_search = width
        return np.asarray(indexes[width].search(query, count, threads=1).keys).astype(np.int64)

    return search
