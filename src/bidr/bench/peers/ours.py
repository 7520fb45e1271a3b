"""bidr itself: OPQ or learned codes in RAM, candidates by an engine, vectors read from disk and ranked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def build(vectors: np.ndarray, folder: Path, settings: dict[str, Any]) -> None:
    import torch

    from bidr.index.builder.build import build_index
    from bidr.quantization.codebooks import Codebooks

    torch.set_num_threads(settings["threads"])
    if "model" in settings:
        codes = np.load(settings["codes"])[: len(vectors)]
        books = _load_model(settings).codebooks
        build_index(folder, codebooks=books, codes=codes, vectors=vectors, engine=settings["engine"])
        return
    with np.load(settings["fitted"]) as fitted:
        codebooks = Codebooks(fitted["rotation"], fitted["centroids"])
    codes = np.concatenate([codebooks.encode(vectors[at : at + 8_192]) for at in range(0, len(vectors), 8_192)])
    build_index(folder, codebooks=codebooks, codes=codes, vectors=vectors, engine=settings["engine"])


def open_index(folder: Path, settings: dict[str, Any]) -> Callable[..., np.ndarray]:
    from bidr.index.reader import IndexReader
    from bidr.search.searcher import Searcher
    from bidr.search.types import QueryVectors

    searcher = Searcher(IndexReader.open(folder))
    engine: Any = searcher.reader.candidates
    adapt = _load_model(settings).adapt if "model" in settings else np.asarray

    def search(query: np.ndarray, count: int, setting: dict[str, Any]) -> np.ndarray:
        if "visited" in setting:
            engine.nprobe = max(1, round(setting["visited"] * engine.list_count))
        vectors = query[None]
        queries = QueryVectors(adapt(vectors), vectors)
        searcher.fuse = setting.get("fuse", 0.0)
        rows: np.ndarray = searcher.search_vectors(queries, count, setting["candidates"]).rows[0]
        return rows

    return search


def _load_model(settings: dict[str, Any]) -> Any:
    """Load the model of `bidr train --vectors`."""
    from bidr.models.codes_only_model import CodesOnlyModel

    return CodesOnlyModel(settings["model"])
