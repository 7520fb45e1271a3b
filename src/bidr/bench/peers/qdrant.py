"""Qdrant's engine in the process (qdrant-edge): codes and graph in RAM, fp16 vectors on disk, which rescore."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from qdrant_edge import (
    Distance,
    EdgeConfig,
    EdgeOptimizersConfig,
    EdgeShard,
    EdgeVectorParams,
    HnswIndexConfig,
    Memory,
    Point,
    QuantizationSearchParams,
    Query,
    SearchParams,
    SearchRequest,
    TurboQuantBitSize,
    TurboQuantQuantizationConfig,
    UpdateOperation,
    VectorStorageDatatype,
)

POINTS_PER_UPDATE = 10_000
KIB = 1 << 10


def build(vectors: np.ndarray, folder: Path, settings: dict[str, Any]) -> None:
    bits = {1: TurboQuantBitSize.Bits1, 2: TurboQuantBitSize.Bits2, 4: TurboQuantBitSize.Bits4}
    graph = HnswIndexConfig(
        m=settings["links"],
        ef_construct=settings["ef_construction"],
        full_scan_threshold=1,
        max_indexing_threads=settings["threads"],
        memory=Memory.Pinned,
    )
    parameters = EdgeVectorParams(
        size=vectors.shape[1],
        distance=Distance.Cosine,
        datatype=VectorStorageDatatype.Float16,
        memory=Memory.Cold,
        quantization_config=TurboQuantQuantizationConfig(bits=bits[settings["bits"]], memory=Memory.Pinned),
        hnsw_config=graph,
    )
    # One segment: a query walks the graph of each.
    segment_kib = 4 * vectors.nbytes // KIB + KIB
    optimizers = EdgeOptimizersConfig(default_segment_number=1, max_segment_size=segment_kib, indexing_threshold=1)
    shard = EdgeShard.create(str(folder), EdgeConfig(vectors={"": parameters}, optimizers=optimizers))
    for start in range(0, len(vectors), POINTS_PER_UPDATE):
        rows = vectors[start : start + POINTS_PER_UPDATE].tolist()
        points = [Point(id=start + number, vector=row) for number, row in enumerate(rows)]
        shard.update(UpdateOperation.upsert_points(points))
    shard.optimize()
    shard.flush()
    shard.close()


def open_index(folder: Path, settings: dict[str, Any]) -> Callable[..., np.ndarray]:
    shard = EdgeShard.load(str(folder))

    def search(query: np.ndarray, count: int, setting: dict[str, Any]) -> np.ndarray:
        codes = QuantizationSearchParams(rescore=True, oversampling=setting["oversampling"])
        parameters = SearchParams(hnsw_ef=setting["ef"], quantization=codes)
        request = SearchRequest(query=Query.Nearest(query.tolist()), limit=count, params=parameters)
        return np.array([point.id for point in shard.search(request)], dtype=np.int64)

    return search
