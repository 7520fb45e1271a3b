"""RaBitQ-Library: inverted lists of RaBitQ codes, or SymphonyQG, a graph with its vectors; all in RAM."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import rabitqlib


def build(vectors: np.ndarray, folder: Path, settings: dict[str, Any]) -> None:
    rows = np.ascontiguousarray(vectors)
    if settings["kind"] == "graph":
        graph = rabitqlib.SymqgIndex(rows.shape[1], settings["links"], "ip")
        graph.build(rows, settings["ef_construction"], settings["threads"])
        graph.save(str(folder / "index"))
        return
    lists = min(settings["lists"], len(rows) // 39)
    clusters = rabitqlib.RaBitQKMeans(rows.shape[1], lists, num_threads=settings["threads"])
    clusters.train(rows)
    index = rabitqlib.IvfIndex(rows.shape[1], len(rows), lists, settings["bits"], "ip")
    index.build(rows, clusters.centroids, clusters.assignments, settings["threads"])
    index.save(str(folder / "index"))


def open_index(folder: Path, settings: dict[str, Any]) -> Callable[..., np.ndarray]:
    path = str(folder / "index")
    if settings["kind"] == "graph":
        graph = rabitqlib.SymqgIndex.load(path)

        def walk(query: np.ndarray, count: int, setting: dict[str, Any]) -> np.ndarray:
            return np.asarray(graph.search(query[None], count, max(setting["ef"], count))[0][0]).astype(np.int64)

        return walk
    index = rabitqlib.IvfIndex.load(path)

    def search(query: np.ndarray, count: int, setting: dict[str, Any]) -> np.ndarray:
        rows = np.asarray(index.search(query[None], count, setting["nprobe"])[0][0]).astype(np.int64)
        # Lists with fewer rows than asked for are filled with a number that is no row.
        return np.asarray(rows[rows < index.num_points])

    return search
