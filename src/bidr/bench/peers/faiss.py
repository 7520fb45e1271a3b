"""Faiss indexes from its index factory, by inner product."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np

TRAIN_ROWS = 20_000


def build(vectors: np.ndarray, folder: Path, settings: dict[str, Any]) -> None:
    faiss.omp_set_num_threads(settings["threads"])
    lists = min(settings.get("lists", 1), len(vectors) // 39)
    index: Any = faiss.index_factory(
        vectors.shape[1], settings["factory"].format(lists=lists), faiss.METRIC_INNER_PRODUCT
    )
    if settings["fitted"]:
        index = faiss.IndexPreTransform(_load_rotation(settings["fitted"]), index)
    if "ef_construction" in settings:
        index.hnsw.efConstruction = settings["ef_construction"]
    rows = np.random.default_rng(0).choice(len(vectors), min(max(TRAIN_ROWS, 39 * lists), len(vectors)), replace=False)
    index.train(np.ascontiguousarray(vectors[np.sort(rows)]))
    for start in range(0, len(vectors), 16_384):
        index.add(np.ascontiguousarray(vectors[start : start + 16_384]))
    faiss.write_index(index, str(folder / "index.faiss"))


def _load_rotation(path: str) -> Any:
    """Load the OPQ rotation of bidr's codes: Faiss takes minutes to train an equal one."""
    with np.load(path) as fitted:
        turned = fitted["rotation"].astype(np.float32)
    transform = faiss.LinearTransform(turned.shape[1], turned.shape[0], False)
    faiss.copy_array_to_vector(turned.ravel(), transform.A)
    transform.is_trained = transform.is_orthonormal = True
    return transform


def open_index(folder: Path, settings: dict[str, Any]) -> Callable[..., np.ndarray]:
    faiss.omp_set_num_threads(1)
    index: Any = faiss.read_index(str(folder / "index.faiss"))
    space = faiss.ParameterSpace()
    inner: Any = faiss.downcast_index(index.index) if hasattr(index, "index") else index
    if "query_bits" in settings:
        inner.qb = settings["query_bits"]
    last: dict[str, Any] = {}

    def search(query: np.ndarray, count: int, setting: dict[str, Any]) -> np.ndarray:
        if setting is not last.get("setting"):
            for name in {"nprobe", "efSearch"} & set(setting):
                space.set_index_parameter(index, name, setting[name])
            last["setting"] = setting
        rows: np.ndarray = index.search(query[None], count)[1][0]
        return rows

    return search
