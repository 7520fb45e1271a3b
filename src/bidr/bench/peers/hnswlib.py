"""hnswlib: a graph over float32 vectors, all in RAM."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import hnswlib
import numpy as np


def build(vectors: np.ndarray, folder: Path, settings: dict[str, Any]) -> None:
    index = hnswlib.Index(space="ip", dim=vectors.shape[1])
    index.init_index(max_elements=len(vectors), M=settings["links"], ef_construction=settings["ef_construction"])
    index.add_items(vectors, num_threads=settings["threads"])
    index.save_index(str(folder / "index.bin"))
    (folder / "dim").write_text(str(vectors.shape[1]))


def open_index(folder: Path, settings: dict[str, Any]) -> Callable[..., np.ndarray]:
    index = hnswlib.Index(space="ip", dim=int((folder / "dim").read_text()))
    index.load_index(str(folder / "index.bin"))
    index.set_num_threads(1)

    def search(query: np.ndarray, count: int, setting: dict[str, Any]) -> np.ndarray:
        index.set_ef(max(setting["ef"], count))
        return np.asarray(index.knn_query(query[None], k=count)[0][0], dtype=np.int64)

    return search
