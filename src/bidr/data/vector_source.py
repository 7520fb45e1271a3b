"""User vectors: an array or a memory-mapped .npy file, converted to float32 block by block."""

import mmap
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import xxhash

from bidr.errors import ConfigError, DataError
from bidr.utils.array_types import Floats

Metric = Literal["cosine", "ip"]
SUPPORTED_DTYPES = ("float16", "float32", "float64", "int8")
ROWS_PER_READ = 1_024
TINY = np.float32(np.finfo(np.float32).tiny)
# Below it float32 squares lose digits, down to 0; above the largest float32 they are infinite.
MIN_SAFE_SQUARE = np.float32(1e-30)


class VectorSource:
    """Vectors read as float32 on access, L2-normalized if the metric is cosine.

    Array-like: `len`, `shape`, `dtype`, `ndim`, indexing by a slice or by row numbers.
    """

    ndim = 2
    dtype = np.dtype(np.float32)

    def __init__(self, array: npt.NDArray[Any], name: str, metric: Metric) -> None:
        if array.ndim != 2 or 0 in array.shape:
            hint = "; a single vector is an array of one row, vector[None]" if array.ndim == 1 else ""
            raise DataError(f"{name}: given shape {array.shape}, expected (rows, dimensions), one row or more{hint}")
        if array.dtype.name not in SUPPORTED_DTYPES:
            expected = ", ".join(SUPPORTED_DTYPES)
            raise DataError(f"{name}: given numbers of type {array.dtype}, expected one of {expected}")
        self.array, self.name, self.metric = array, name, metric
        # One flag per row, so that rows read twice count once. The pages of untouched flags take no memory.
        self._zero_rows: npt.NDArray[np.bool_] = np.zeros(len(array), dtype=bool)

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
        invalid = ~np.isfinite(block).all(axis=1)
        if invalid.any():
            index = int(invalid.argmax())
            row = range(len(self))[rows][index] if isinstance(rows, slice) else int(rows[index])
            raise DataError(f"{self.name}: row {row:,} holds NaN or infinity, expected finite numbers; encode it again")
        if self.metric == "cosine":
            block = normalize_l2(block)
            is_zero = ~block.any(axis=1)
            if is_zero.any():
                self._zero_rows[np.arange(len(self))[rows][is_zero]] = True
        return block

    def count_zero_rows(self) -> int:
        """Return how many of the rows read so far have no direction: cosine scores them 0."""
        return int(np.count_nonzero(self._zero_rows))

    def refuse_all_zeros(self) -> None:
        """Raise DataError if no vector has a direction; reads up to the first one that does."""
        if not any(self[start : start + ROWS_PER_READ].any() for start in range(0, len(self), ROWS_PER_READ)):
            raise DataError(f"{self.name}: all {len(self):,} vectors are zeros, expected vectors of a model")

    def gather(self, rows: npt.NDArray[np.int64]) -> Floats:
        """Read scattered rows, releasing the mapped pages after every ROWS_PER_READ rows."""
        vectors = np.empty((len(rows), self.dim), dtype=np.float32)
        for start in range(0, len(rows), ROWS_PER_READ):
            vectors[start : start + ROWS_PER_READ] = self[rows[start : start + ROWS_PER_READ]]
            advise_dontneed(self.array)
        return vectors

    def fingerprint(self) -> str:
        """Hash shape, dtype, metric and ROWS_PER_READ evenly spaced rows."""
        rows = np.unique(np.linspace(0, len(self) - 1, ROWS_PER_READ).astype(np.int64))
        digest = xxhash.xxh3_128(f"{self.array.shape} {self.array.dtype} {self.metric}".encode())
        digest.update(np.ascontiguousarray(self.array[rows]).tobytes())
        return digest.hexdigest()


def normalize_l2(rows: Floats) -> Floats:
    """Divide finite rows by their L2 norms; rows of zeros stay zero."""
    with np.errstate(over="ignore", under="ignore"):
        squares: Floats = np.add.reduce(rows * rows, axis=1, keepdims=True)
    if len(rows) and not (squares.min() > MIN_SAFE_SQUARE and squares.max() < np.inf):
        largest = np.maximum(np.abs(rows).max(axis=1, keepdims=True), TINY)
        unsafe = (squares <= MIN_SAFE_SQUARE) | (squares == np.inf)
        rows = np.where(unsafe, rows / largest, rows).astype(np.float32)
        squares = np.add.reduce(rows * rows, axis=1, keepdims=True)
    normalized: Floats = np.divide(rows, np.maximum(np.sqrt(squares), TINY), dtype=np.float32)
    return normalized


def check_dims(dims: int | None, dim: int) -> int | None:
    """Validate the number of leading dimensions to keep; None for all of `dim`."""
    if dims is None:
        return None
    if isinstance(dims, bool) or not isinstance(dims, int | np.integer) or not 0 < dims <= dim:
        raise ConfigError(f"dims: given {dims!r}, expected a whole number from 1 to {dim}, the vectors' dimensions")
    return int(dims) if dims < dim else None


def truncate(vectors: npt.NDArray[Any], dims: int, *, unit: bool) -> Floats:
    """Keep the first `dims` dimensions (Matryoshka truncation); `unit`: L2-normalize the result."""
    leading: Floats = np.ascontiguousarray(vectors[:, :dims], dtype=np.float32)
    if not unit:
        return leading
    # float64: the leading dimensions may be so small that their float32 squares underflow.
    lengths = np.sqrt(np.add.reduce(np.square(leading, dtype=np.float64), axis=1))
    normalized: Floats = np.divide(leading, np.maximum(lengths, TINY)[:, None]).astype(np.float32)
    return normalized


def advise_dontneed(array: npt.NDArray[Any]) -> None:
    """Release the resident pages of a memory-mapped array; they stay in the page cache."""
    # Arrays computed from a memmap are memmaps as well, without a file behind them.
    mapped = getattr(array, "_mmap", None)
    if mapped is not None and getattr(array, "mode", "c") != "c":
        mapped.madvise(mmap.MADV_DONTNEED)


def as_array(values: npt.ArrayLike, name: str) -> npt.NDArray[Any]:
    """Convert an array or nested lists of numbers to an array; lists become float32 or float64."""
    try:
        array = np.asarray(values)
    except (ValueError, TypeError) as error:
        raise DataError(f"{name}: given no array ({error}), expected numbers in rows of equal length") from error
    if array.dtype.kind not in "fiu":
        raise DataError(f"{name}: given values of type {array.dtype}, expected numbers; convert them")
    return array if isinstance(values, np.ndarray) or array.dtype.kind == "f" else array.astype(np.float32)


def open_vectors(source: Path | npt.ArrayLike | VectorSource, name: str, metric: Metric) -> VectorSource:
    """Open an array, nested lists, or an .npy file, which is memory-mapped. `name` is for error messages.

    A VectorSource is returned as it is: its `array` may compute the rows that are read from it.
    """
    if isinstance(source, VectorSource):
        if source.metric != metric:
            raise ConfigError(
                f"{source.name}: given with metric {metric}, opened with {source.metric}; give one of them"
            )
        return source
    if isinstance(source, np.ndarray):
        return VectorSource(source, name, metric)
    if not isinstance(source, Path | str):
        return VectorSource(as_array(source, name), name, metric)
    path = Path(source)
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; give an .npy file with one vector a row") from error
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} cannot be read as .npy; save the vectors with numpy.save") from error
    if not isinstance(array, np.ndarray):
        raise DataError(f"{path} holds several arrays, expected one; save the vectors alone with numpy.save")
    return VectorSource(array, str(path), metric)


def check_same_dim(documents: VectorSource, queries: VectorSource) -> None:
    """Refuse query vectors whose dimension differs from the documents'."""
    if documents.dim != queries.dim:
        raise DataError(
            f"{queries.name} has {queries.dim} dimensions, {documents.name} has {documents.dim}: expected as many; "
            "give vectors of the same model"
        )
