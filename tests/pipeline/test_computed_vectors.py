"""Vectors may be computed where they are read: the index is the same as of an array."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bidr
from bidr.data.vector_source import VectorSource, open_vectors
from bidr.errors import ConfigError

COUNT, DIM = 2_000, 16


class ComputedRows:
    """An array-like object that holds no rows."""

    ndim, dtype, shape = 2, np.dtype(np.float32), (COUNT, DIM)
    stamp = "computed rows"

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, rows: Any) -> np.ndarray:
        numbers = np.arange(COUNT)[rows]
        return np.sin(np.outer(numbers + 1, np.arange(1, DIM + 1) ** 1.5)).astype(np.float32)


@pytest.mark.parametrize("engine", ["flat", "ivf"])
def test_computed_vectors_give_the_same_index(tmp_path: Path, engine: str) -> None:
    source = VectorSource(ComputedRows(), "computed", "cosine")
    options: dict[str, Any] = {"plain": bidr.PlainCodes(4), "engine": engine}
    bidr.build_vectors(source, None, tmp_path / "computed", **options)
    bidr.build_vectors(ComputedRows()[:], None, tmp_path / "array", **options)
    for name in ("codes.npy", "vectors.npy"):
        built = [next((tmp_path / folder).rglob(name)).read_bytes() for folder in ("computed", "array")]
        assert built[0] == built[1]


def test_a_source_of_another_metric_is_refused() -> None:
    source = VectorSource(ComputedRows(), "computed", "cosine")
    assert open_vectors(source, "vectors", "cosine") is source
    with pytest.raises(ConfigError, match="computed: given with metric ip, opened with cosine"):
        open_vectors(source, "vectors", "ip")
