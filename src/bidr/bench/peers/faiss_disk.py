"""Faiss with inverted lists on disk: fp16 vectors in a mapped file, centroids in RAM."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np

ROWS_PER_ADD, TRAIN_ROWS_PER_LIST = 16_384, 64


def build(vectors: np.ndarray, folder: Path, settings: dict[str, Any]) -> None:
    faiss.omp_set_num_threads(settings["threads"])
    lists = min(settings["lists"], len(vectors) // 39)
    index: Any = faiss.index_factory(vectors.shape[1], f"IVF{lists},SQfp16", faiss.METRIC_INNER_PRODUCT)
    rows = np.random.default_rng(0).choice(len(vectors), min(TRAIN_ROWS_PER_LIST * lists, len(vectors)), replace=False)
    index.train(np.ascontiguousarray(vectors[np.sort(rows)]))
    for start in range(0, len(vectors), ROWS_PER_ADD):
        index.add(np.ascontiguousarray(vectors[start : start + ROWS_PER_ADD]))
    on_disk = faiss.OnDiskInvertedLists(lists, index.code_size, str(folder / "lists"))
    on_disk.merge_from_1(index.invlists)
    index.replace_invlists(on_disk)
    faiss.write_index(index, str(folder / "index.faiss"))


def open_index(folder: Path, settings: dict[str, Any]) -> Callable[..., np.ndarray]:
    faiss.omp_set_num_threads(1)
    index: Any = faiss.read_index(str(folder / "index.faiss"))

    def search(query: np.ndarray, count: int, setting: dict[str, Any]) -> np.ndarray:
        parameters = faiss.SearchParametersIVF()
        parameters.nprobe = setting["nprobe"]
        rows: np.ndarray = index.search(query[None], count, params=parameters)[1][0]
        return rows[rows >= 0]

    return search
