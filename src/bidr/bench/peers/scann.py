"""ScaNN: anisotropic 4-bit codes, in a tree or scanned; the harness reranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scann


def build(vectors: np.ndarray, folder: Path, settings: dict[str, Any]) -> None:
    turned = _load_rotation(settings)
    rows = np.ascontiguousarray(vectors if turned is None else vectors @ turned.T)
    builder = scann.scann_ops_pybind.builder(rows, 100, "dot_product").set_n_training_threads(settings["threads"])
    if settings.get("lists"):
        lists = min(settings["lists"], len(rows) // 39)
        builder = builder.tree(lists, max(1, lists // 10), training_sample_size=min(len(rows), 100_000))
    searcher = builder.score_ah(settings["width"], anisotropic_quantization_threshold=0.2).build()
    searcher.serialize(str(folder))


def _load_rotation(settings: dict[str, Any]) -> np.ndarray | None:
    """Load the OPQ rotation of bidr's codes: ScaNN trains none, and on some vectors the rotation matters more."""
    if not settings["fitted"]:
        return None
    with np.load(settings["fitted"]) as fitted:
        return np.ascontiguousarray(fitted["rotation"], dtype=np.float32)


def open_index(folder: Path, settings: dict[str, Any]) -> Callable[..., np.ndarray]:
    searcher = scann.scann_ops_pybind.load_searcher(str(folder))
    searcher.set_num_threads(1)
    turned = _load_rotation(settings)

    def search(query: np.ndarray, count: int, setting: dict[str, Any]) -> np.ndarray:
        more = {"leaves_to_search": setting["leaves"]} if "leaves" in setting else {}
        vector = query if turned is None else turned @ query
        rows, _ = searcher.search(vector, final_num_neighbors=count, **more)
        return np.asarray(rows, dtype=np.int64)

    return search
