"""DiskANN: graph and full vectors on disk, codes in RAM. Unit vectors: Euclidean and inner-product order agree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import diskannpy
import numpy as np


def build(vectors: np.ndarray, folder: Path, settings: dict[str, Any]) -> None:
    diskannpy.build_disk_index(
        data=np.ascontiguousarray(vectors, dtype=np.float32),
        distance_metric="l2",
        index_directory=str(folder),
        complexity=settings["ef_construction"],
        graph_degree=settings["links"],
        search_memory_maximum=settings["bytes"] * len(vectors) / 2**30,
        build_memory_maximum=8,
        num_threads=settings["threads"],
        pq_disk_bytes=0,
    )


def open_index(folder: Path, settings: dict[str, Any]) -> Callable[..., np.ndarray]:
    # With one thread diskannpy 0.7.0 hangs on opening; a single query uses one thread in any case.
    # No nodes are cached; choosing them would search a sample of the documents at every opening.
    options = {"num_threads": 2, "num_nodes_to_cache": 0, "cache_mechanism": 0}
    index = diskannpy.StaticDiskIndex(index_directory=str(folder), **options)

    def search(query: np.ndarray, count: int, setting: dict[str, Any]) -> np.ndarray:
        result = index.search(query, k_neighbors=count, complexity=max(setting["ef"], count), beam_width=4)
        return np.asarray(result.identifiers).astype(np.int64)

    return search
