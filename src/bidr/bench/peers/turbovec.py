"""turbovec: TurboQuant codes of 2 or 4 bits a dimension, scanned in RAM; the harness reranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import turbovec

CALIBRATION_ROWS, ROWS_PER_ADD = 1_024, 65_536


def build(vectors: np.ndarray, folder: Path, settings: dict[str, Any]) -> None:
    index = turbovec.TurboQuantIndex(vectors.shape[1], settings["bits"])
    sampled = np.random.default_rng(0).choice(len(vectors), min(CALIBRATION_ROWS, len(vectors)), replace=False)
    index.calibrate(np.ascontiguousarray(vectors[np.sort(sampled)]))
    for start in range(0, len(vectors), ROWS_PER_ADD):
        index.add(np.ascontiguousarray(vectors[start : start + ROWS_PER_ADD]))
    index.write(str(folder / "index.tv"))


def open_index(folder: Path, settings: dict[str, Any]) -> Callable[..., np.ndarray]:
    index = turbovec.TurboQuantIndex.load(str(folder / "index.tv"))
    index.prepare()

    def search(query: np.ndarray, count: int, setting: dict[str, Any]) -> np.ndarray:
        return np.asarray(index.search(query[None], count)[1][0]).astype(np.int64)

    return search
