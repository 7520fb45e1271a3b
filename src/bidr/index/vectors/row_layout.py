"""Layout of vector files: fp16 rows, or int8 rows each followed by its scale. numpy opens both."""

import re
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bidr.errors import REBUILD, ConfigError, IndexFolderError
from bidr.index.vectors.npy_header import BLOCK, NPY_HEADER, read_npy_header
from bidr.utils.array_types import Floats
from bidr.utils.files import open_to_read

StorageKind = Literal["fp16", "int8"]
STORAGE_KINDS: tuple[StorageKind, ...] = ("fp16", "int8")
MAX_VALUES = {"fp16": 65_504.0, "int8": 1e38}
DIM_PATTERN = re.compile(r"\((\d{1,7}),\)")
CHECKSUM_SUFFIX = ".checks.npy"
CHECKSUM_DTYPE = np.dtype("<u4")
SEED = 0x62696472  # "bidr"


def get_row_dtype(kind: str, dim: int) -> np.dtype[Any]:
    """Return the dtype that np.load gives: '<f2' for a matrix, or a record of `vector` and `scale` (vector * scale)."""
    if kind not in STORAGE_KINDS:
        raise ConfigError(f"vectors: given {kind!r}, expected one of {', '.join(STORAGE_KINDS)}")
    return np.dtype("<f2") if kind == "fp16" else np.dtype([("vector", "i1", (dim,)), ("scale", "<f4")])


def encode_rows(kind: str, values: Floats) -> np.ndarray[Any, Any]:
    """Convert float32 rows to their stored form; int8 rows are scaled by their largest absolute value."""
    if kind == "fp16":
        return np.ascontiguousarray(values, dtype="<f2")
    rows = np.zeros(len(values), dtype=get_row_dtype(kind, values.shape[1]))
    rows["scale"] = np.abs(values).max(axis=1) / np.float32(127)
    inverse = np.divide(1, rows["scale"], out=np.zeros(len(rows), dtype=np.float32), where=rows["scale"] > 0)
    rows["vector"] = np.rint(np.clip(values * inverse[:, None], -127, 127))
    return rows


def read_layout(path: Path) -> tuple[StorageKind, int, int, int]:
    """Read kind, row count, dimensions and data offset of a vector file; verify its header."""
    try:
        with open_to_read(path) as opened:
            match = NPY_HEADER.match(opened.read(BLOCK))
    except OSError as error:
        raise IndexFolderError(f"{path}: cannot be read ({error.strerror}); {REBUILD}") from error
    descr = match["descr"].decode("latin-1") if match else ""
    if not descr.startswith("["):
        shape, start = read_npy_header(path, get_row_dtype("fp16", 0), dimensions=2)
        return "fp16", shape[0], shape[1], start
    size = DIM_PATTERN.search(descr)
    dim = int(size[1]) if size else 1
    shape, start = read_npy_header(path, get_row_dtype("int8", dim), dimensions=1)
    return "int8", shape[0], dim, start


def get_checksum_path(path: Path) -> Path:
    """Return the path of the checksums of a vector file."""
    return path.with_name(path.name.removesuffix(".npy") + CHECKSUM_SUFFIX)


@cache
def make_checksum_keys() -> np.ndarray[Any, Any]:
    """Generate the 512 checksum keys: splitmix64 from a fixed seed."""
    state = SEED + (np.arange(1, BLOCK // 8 + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state = (state ^ (state >> np.uint64(shift))) * np.uint64(factor)
    return state ^ (state >> np.uint64(31))
