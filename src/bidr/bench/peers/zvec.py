"""zvec's DiskANN: product codes in RAM, graph and vectors on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zvec

DOCUMENTS_PER_INSERT = 1_024
FIELD = "vector"


def build(vectors: np.ndarray, folder: Path, settings: dict[str, Any]) -> None:
    index = zvec.DiskAnnIndexParam(
        metric_type=zvec.MetricType.IP,
        max_degree=settings["links"],
        list_size=settings["ef_construction"],
        pq_chunk_num=settings["bytes"],
    )
    field = zvec.VectorSchema(FIELD, zvec.DataType.VECTOR_FP32, dimension=vectors.shape[1], index_param=index)
    schema = zvec.CollectionSchema(name="rows", vectors=[field])
    collection = zvec.create_and_open(str(folder / "rows"), schema)
    for start in range(0, len(vectors), DOCUMENTS_PER_INSERT):
        rows = vectors[start : start + DOCUMENTS_PER_INSERT]
        documents = [zvec.Doc(id=str(start + number), vectors={FIELD: row}) for number, row in enumerate(rows)]
        refused = [status for status in collection.insert(documents) if not status.ok()]
        if refused:
            raise RuntimeError(f"{len(refused)} documents were refused: {refused[0].message()}")
    collection.optimize(zvec.OptimizeOption(concurrency=settings["threads"]))
    collection.flush()
    collection.close()


def open_index(folder: Path, settings: dict[str, Any]) -> Callable[..., np.ndarray]:
    collection = zvec.open(str(folder / "rows"), zvec.CollectionOption(read_only=True))

    def search(query: np.ndarray, count: int, setting: dict[str, Any]) -> np.ndarray:
        parameters = zvec.DiskAnnQueryParam(list_size=max(setting["ef"], count))
        request = zvec.Query(FIELD, vector=query, param=parameters)
        internal = collection.query_internal_ids(request, topk=count)
        names = collection.resolve_internal_ids(internal)
        return np.array([int(name) for name in names if name is not None], dtype=np.int64)

    return search
