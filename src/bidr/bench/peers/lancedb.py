"""LanceDB: IVF_PQ on disk, reranked by its stored vectors (refine)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pyarrow


def build(vectors: np.ndarray, folder: Path, settings: dict[str, Any]) -> None:
    dim = vectors.shape[1]
    flat = pyarrow.array(np.ascontiguousarray(vectors, dtype=np.float32).ravel())
    columns = {"row": np.arange(len(vectors)), "vector": pyarrow.FixedSizeListArray.from_arrays(flat, dim)}
    table = lancedb.connect(folder).create_table("rows", pyarrow.table(columns))
    lists = min(settings["lists"], len(vectors) // 39)
    table.create_index(
        metric="dot", num_partitions=lists, num_sub_vectors=settings["books"], vector_column_name="vector"
    )


def open_index(folder: Path, settings: dict[str, Any]) -> Callable[..., np.ndarray]:
    table = lancedb.connect(folder).open_table("rows")

    def search(query: np.ndarray, count: int, setting: dict[str, Any]) -> np.ndarray:
        builder = table.search(query).distance_type("dot").nprobes(setting["nprobe"]).limit(count).select(["row"])
        rows = builder.refine_factor(setting["candidates"] // count).to_arrow()["row"]
        return np.asarray(rows.to_numpy(), dtype=np.int64)

    return search
