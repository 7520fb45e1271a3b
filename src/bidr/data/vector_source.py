"""User vectors: an array or a memory-mapped .npy file, converted to float32 block by block."""

import mmap
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import xxhash

from bidr.data.remote_path import is_glob, is_remote, list_glob, open_path, remote_errors
from bidr.data.tabular_source import parse_vector
from bidr.errors import ConfigError, DataError
from bidr.utils.array_types import Floats
from bidr.utils.files import storage_errors

CodesMetric = Literal["cosine", "ip"]
"""Similarities that codes can be learned for."""
Metric = Literal[CodesMetric, "l2"]
"""l2: negative squared Euclidean distance."""
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

    def __init__(self, array: "npt.NDArray[Any] | StackedArrays", name: str, metric: Metric) -> None:
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


def advise_dontneed(array: "npt.NDArray[Any] | StackedArrays") -> None:
    """Release the resident pages of a memory-mapped array; they stay in the page cache."""
    for part in array.arrays if isinstance(array, StackedArrays) else (array,):
        # Arrays computed from a memmap are memmaps as well, without a file behind them.
        mapped = getattr(part, "_mmap", None)
        if mapped is not None and getattr(part, "mode", "c") != "c":
            mapped.madvise(mmap.MADV_DONTNEED)


class StackedArrays:
    """Several arrays of vectors as one, in their order, without a copy."""

    ndim = 2

    def __init__(self, arrays: Sequence[npt.NDArray[Any]]) -> None:
        self.arrays = list(arrays)
        self.dtype = self.arrays[0].dtype
        self._ends = np.cumsum([len(array) for array in self.arrays])
        self.shape = (int(self._ends[-1]), int(self.arrays[0].shape[1]))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step == 1:
                return self._read_range(start, max(start, stop))
            rows = np.arange(start, stop, step)
        numbers = np.arange(len(self))[rows] if rows.dtype == bool else np.asarray(rows)
        parts = np.searchsorted(self._ends, numbers, side="right")
        block = np.empty((len(numbers), self.shape[1]), dtype=self.dtype)
        for part in np.unique(parts):
            is_here = parts == part
            block[is_here] = self.arrays[part][numbers[is_here] - (self._ends[part] - len(self.arrays[part]))]
        return block

    def _read_range(self, start: int, stop: int) -> npt.NDArray[Any]:
        blocks = []
        for end, array in zip(self._ends, self.arrays, strict=True):
            first = end - len(array)
            if first < stop and start < end:
                blocks.append(array[max(start - first, 0) : stop - first])
        return np.concatenate(blocks) if blocks else np.empty((0, self.shape[1]), dtype=self.dtype)


def as_array(values: npt.ArrayLike, name: str) -> npt.NDArray[Any]:
    """Convert an array, nested lists of numbers, or a column of vectors to an array; lists become floats."""
    try:
        array = np.asarray(values)
        if array.dtype == object and array.ndim == 1 and len(array):
            array = np.array([parse_vector(cell, partial(_format_row, name, row)) for row, cell in enumerate(array)])
    except (ValueError, TypeError) as error:
        raise DataError(f"{name}: given no array ({error}), expected numbers in rows of equal length") from error
    if array.dtype.kind not in "fiu":
        raise DataError(f"{name}: given values of type {array.dtype}, expected numbers; convert them")
    return array if isinstance(values, np.ndarray) or array.dtype.kind == "f" else array.astype(np.float32)


def _format_row(name: str, row: int) -> str:
    return f"{name}: row {row:,}"


def is_table(source: object) -> bool:
    """Return whether vectors are given as a column of a table: a file, a frame, records or a dataset."""
    if isinstance(source, str | Path):
        from bidr.data.dataset import is_table_file

        return is_table_file(source)
    if isinstance(source, np.ndarray | VectorSource):
        return False
    if isinstance(source, list | tuple):
        return bool(source) and isinstance(source[0], Mapping)
    if isinstance(source, Mapping) or hasattr(source, "read_vectors"):
        return True
    if not (hasattr(source, "columns") or hasattr(source, "column_names") or hasattr(source, "__arrow_c_stream__")):
        return False
    # A frame of numbers is a matrix; so is a series of vectors.
    return not hasattr(source, "dtype") and np.asarray(source).dtype.kind not in "fiu"


def collect_vectors(dataset: Any, folder: Path | None = None) -> npt.NDArray[Any]:
    """Write the vectors of a dataset to an anonymous temporary file and map it.

    Args:
        dataset: A dataset with a vector column.
        folder: Where the file goes, or in the nearest existing parent; by default the temporary folder.
    """
    name = dataset.corpus.table.where
    if dataset.read_vectors is None:
        raise DataError(
            f"{name}: no column holds vectors; name one with vector_column (--vector-column), or give the vectors "
            "as an array"
        )
    parents = [] if folder is None else [path for path in (folder, *folder.absolute().parents) if path.is_dir()]
    with storage_errors(folder or Path(tempfile.gettempdir())):
        file = tempfile.TemporaryFile(dir=parents[0] if parents else None)  # noqa: SIM115 - the map keeps it
        count = dim = 0
        for block in dataset.read_vectors():
            file.write(block.astype("<f4").tobytes())
            count, dim = count + len(block), block.shape[1]
        file.flush()
    if not count:
        raise DataError(f"{name} has no rows, expected one vector at least")
    return np.memmap(file, dtype="<f4", mode="r", shape=(count, dim))


def open_vectors(source: Any, name: str, metric: Metric, folder: Path | None = None) -> VectorSource:
    """Open vectors: an array, nested lists, .npy files, or a table with a column of vectors.

    A VectorSource is returned as it is: its `array` may compute the rows that are read from it.

    Args:
        source: An array; nested lists; an .npy file, several as a folder or pattern (memory-mapped); a data frame, an
            Arrow table or a table file with a column of vectors; a VectorSource.
        name: Name in error messages.
        metric: Similarity.
        folder: See `collect_vectors`.
    """
    if isinstance(source, VectorSource):
        if source.metric != metric:
            raise ConfigError(
                f"{source.name}: given with metric {metric}, opened with {source.metric}; give one of them"
            )
        return source
    if isinstance(source, np.ndarray) and source.dtype != object:
        return VectorSource(source, name, metric)
    if is_table(source):
        from bidr.data.dataset import load

        return VectorSource(collect_vectors(load(source), folder), name, metric)
    if not isinstance(source, Path | str):
        return VectorSource(as_array(source, name), name, metric)
    paths = _list_array_files(source)
    arrays = [_map_array(path) for path in paths]
    for path, array in zip(paths, arrays, strict=True):
        VectorSource(array, str(path), metric)  # checks shape and type
        if array.shape[1] != arrays[0].shape[1] or array.dtype != arrays[0].dtype:
            raise DataError(
                f"{path} has {array.shape[1]} dimensions of {array.dtype}, {paths[0]} has {arrays[0].shape[1]} of "
                f"{arrays[0].dtype}: expected as many, of one type; give files of the same model"
            )
    return VectorSource(arrays[0] if len(arrays) == 1 else StackedArrays(arrays), str(source), metric)


def open_query_vectors(source: Any, name: str, metric: Metric) -> VectorSource:
    """Open query vectors; one alone may have one dimension."""
    if is_table(source):
        return open_vectors(source, name, metric)
    if not isinstance(source, Path | str):
        array = as_array(source, name)
    elif len(paths := _list_array_files(source)) == 1:
        array, name = _map_array(paths[0]), str(source)
    else:
        return open_vectors(source, name, metric)
    return open_vectors(array[None] if array.ndim == 1 else array, name, metric)


def _list_array_files(source: Path | str) -> list[Path]:
    """List the .npy files that a path, a folder or a pattern names, in order of their names."""
    if is_glob(source):
        return list_glob(source)
    path = open_path(source)
    if not path.is_dir():
        return [path]
    files = sorted(path.glob("*.npy"))
    if not files:
        raise DataError(f"{path} holds no .npy file; give one .npy file with one vector a row, or a folder of them")
    return files


def _map_array(path: Path) -> npt.NDArray[Any]:
    """Memory-map an .npy file; one at an address is copied to an anonymous temporary file first."""
    try:
        if is_remote(path):
            return _copy_array(path)
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; give an .npy file with one vector a row") from error
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} cannot be read as .npy; save the vectors with numpy.save") from error
    if not isinstance(array, np.ndarray):
        raise DataError(f"{path} holds several arrays, expected one; save the vectors alone with numpy.save")
    return array


def _copy_array(path: Path) -> npt.NDArray[Any]:
    with remote_errors(path), path.open("rb") as content:
        copy = tempfile.TemporaryFile()  # noqa: SIM115 - the map keeps it
        shutil.copyfileobj(content, copy)
        copy.seek(0)
        read_header = {(1, 0): np.lib.format.read_array_header_1_0}.get(
            np.lib.format.read_magic(copy), np.lib.format.read_array_header_2_0
        )
        shape, is_fortran, dtype = read_header(copy)
        if dtype.hasobject:
            raise ValueError("objects")
        return np.memmap(copy, dtype, "r", copy.tell(), shape, "F" if is_fortran else "C")


def check_same_dim(documents: VectorSource, queries: VectorSource) -> None:
    """Refuse query vectors whose dimension differs from the documents'."""
    if documents.dim != queries.dim:
        raise DataError(
            f"{queries.name} has {queries.dim} dimensions, {documents.name} has {documents.dim}: expected as many; "
            "give vectors of the same model"
        )
