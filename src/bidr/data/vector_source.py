"""Vectors that a user brings: an array or an .npy file, of any model, looked at some rows at a time."""

import mmap
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import xxhash

from bidr.errors import ConfigError, DataError
from bidr.utils.array_types import Floats

Metric = Literal["cosine", "ip"]
KINDS = ("float16", "float32", "float64", "int8")
STAMP_ROWS = 1_024
TINY = np.float32(np.finfo(np.float32).tiny)
# Beneath it squares lose digits in 32 bits, down to none; above the largest they are infinite.
SMALLEST_SQUARE = np.float32(1e-30)


class VectorRows:
    """Rows as float32, read when they are asked for; of length 1 where scores are cosines.

    Looks like an array to what takes slices: `len`, `shape`, `dtype`, `ndim`, indexing by a slice or by row numbers.
    """

    ndim = 2
    dtype = np.dtype(np.float32)

    def __init__(self, array: npt.NDArray[Any], name: str, metric: Metric) -> None:
        if array.ndim != 2 or 0 in array.shape:
            one = "; a single vector is an array of one row, vector[None]" if array.ndim == 1 else ""
            raise DataError(f"{name}: given shape {array.shape}, expected (rows, dimensions), one row or more{one}")
        if array.dtype.name not in KINDS:
            raise DataError(f"{name}: given numbers of type {array.dtype}, expected one of {', '.join(KINDS)}")
        self.array, self.name, self.metric = array, name, metric

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.array), int(self.array.shape[1])

    @property
    def dim(self) -> int:
        return self.shape[1]

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, rows: slice | npt.NDArray[np.int64]) -> Floats:
        with np.errstate(over="ignore"):
            block = np.array(self.array[rows], dtype=np.float32, order="C")
        bad = ~np.isfinite(block).all(axis=1)
        if bad.any():
            at = int(bad.argmax())
            row = range(len(self))[rows][at] if isinstance(rows, slice) else int(rows[at])
            raise DataError(f"{self.name}: row {row:,} holds NaN or infinity, expected finite numbers; encode it again")
        if self.metric == "cosine":
            block = of_length_one(block)
        return block

    def gather(self, rows: npt.NDArray[np.int64]) -> Floats:
        """Many rows from all over, read some at a time: of a file no more pages than that are held at once."""
        found = np.empty((len(rows), self.dim), dtype=np.float32)
        for start in range(0, len(rows), STAMP_ROWS):
            found[start : start + STAMP_ROWS] = self[rows[start : start + STAMP_ROWS]]
            let_go(self.array)
        return found

    def stamp(self) -> str:
        """Tells contents apart by shape, type and some rows: costs little whatever the size."""
        rows = np.unique(np.linspace(0, len(self) - 1, STAMP_ROWS).astype(np.int64))
        digest = xxhash.xxh3_128(f"{self.array.shape} {self.array.dtype} {self.metric}".encode())
        digest.update(np.ascontiguousarray(self.array[rows]).tobytes())
        return digest.hexdigest()


def of_length_one(rows: Floats) -> Floats:
    """Rows, which must be finite, divided by their lengths; rows of zeros stay what they are."""
    with np.errstate(over="ignore", under="ignore"):
        squares: Floats = np.add.reduce(rows * rows, axis=1, keepdims=True)
    if len(rows) and not (squares.min() > SMALLEST_SQUARE and squares.max() < np.inf):
        largest = np.maximum(np.abs(rows).max(axis=1, keepdims=True), TINY)
        odd = (squares <= SMALLEST_SQUARE) | (squares == np.inf)
        rows = np.where(odd, rows / largest, rows).astype(np.float32)
        squares = np.add.reduce(rows * rows, axis=1, keepdims=True)
    found: Floats = np.divide(rows, np.maximum(np.sqrt(squares), TINY), dtype=np.float32)
    return found


def check_dims(dims: int | None, dim: int) -> int | None:
    """How many of a vector's first numbers are kept; None: all of them."""
    if dims is None:
        return None
    if isinstance(dims, bool) or not isinstance(dims, int | np.integer) or not 0 < dims <= dim:
        raise ConfigError(f"dims: given {dims!r}, expected a whole number from 1 to {dim}, the vectors' dimensions")
    return int(dims) if dims < dim else None


def cut_off(vectors: npt.NDArray[Any], dims: int, *, unit: bool) -> Floats:
    """The first numbers of each vector. unit: brought to length 1 again."""
    first: Floats = np.ascontiguousarray(vectors[:, :dims], dtype=np.float32)
    if not unit:
        return first
    # What is left of a vector may be so small that the squares vanish in 32 bits.
    lengths = np.sqrt(np.add.reduce(np.square(first, dtype=np.float64), axis=1))
    found: Floats = np.divide(first, np.maximum(lengths, TINY)[:, None]).astype(np.float32)
    return found


def let_go(array: npt.NDArray[Any]) -> None:
    """Drop the pages of a mapped file that this process has looked at; they stay in the page cache."""
    # What numpy computes from a mapped array is called one too, without a file behind it.
    mapped = getattr(array, "_mmap", None)
    if mapped is not None and getattr(array, "mode", "c") != "c":
        mapped.madvise(mmap.MADV_DONTNEED)


def as_array(given: npt.ArrayLike, name: str) -> npt.NDArray[Any]:
    """An array of numbers, from one or from lists of them."""
    try:
        array = np.asarray(given)
    except (ValueError, TypeError) as error:
        raise DataError(f"{name}: given no array ({error}), expected numbers in rows of equal length") from error
    if array.dtype.kind not in "fiu":
        raise DataError(f"{name}: given values of type {array.dtype}, expected numbers; convert them")
    return array if isinstance(given, np.ndarray) or array.dtype.kind == "f" else array.astype(np.float32)


def open_vectors(source: Path | npt.ArrayLike, name: str, metric: Metric) -> VectorRows:
    """A user's vectors from an array or lists, or from an .npy file that stays on disk. `name` is for errors."""
    if isinstance(source, np.ndarray):
        return VectorRows(source, name, metric)
    if not isinstance(source, Path | str):
        return VectorRows(as_array(source, name), name, metric)
    path = Path(source)
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; give an .npy file with one vector a row") from error
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} cannot be read as .npy; save the vectors with numpy.save") from error
    if not isinstance(array, np.ndarray):
        raise DataError(f"{path} holds several arrays, expected one; save the vectors alone with numpy.save")
    return VectorRows(array, str(path), metric)


def check_same_dim(documents: VectorRows, queries: VectorRows) -> None:
    """Refuse questions that cannot have come from the documents' model."""
    if documents.dim != queries.dim:
        raise DataError(
            f"{queries.name} has {queries.dim} dimensions, {documents.name} has {documents.dim}: expected as many; "
            "give vectors of the same model"
        )
