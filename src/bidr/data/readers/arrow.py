"""Arrow data: pyarrow tables, streams and datasets, Hugging Face datasets, and parquet files."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import IO, Any

import numpy as np

from bidr.data.tabular_source import BATCH_ROWS, InvalidUtf8, RecordSource
from bidr.errors import DataError, MissingExtraError
from bidr.utils.array_types import Floats

Batches = Callable[[list[str]], Iterator[Any]]
"""Reads the record batches of some columns."""


def import_pyarrow(feature: str) -> Any:
    """Import pyarrow, which an extra brings."""
    try:
        import pyarrow
    except ImportError as error:
        raise MissingExtraError(feature, "pyarrow", extra="data") from error
    return pyarrow


class ArrowSource(RecordSource):
    """Record batches that can be read again."""

    def __init__(self, name: str, where: str, columns: list[str], batches: Batches, count: int | None = None) -> None:
        super().__init__(name, where)
        self._columns, self.batches, self.count = columns, batches, count

    @property
    def columns(self) -> list[str]:
        return self._columns

    def read(self, columns: Sequence[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
        number, names = 0, list(columns)
        if not names:  # the rows alone, with row numbers as ids
            names = self.columns[:1]
        for batch in self.batches(names):
            values = [read_values(batch.column(name)) for name in names]
            for row in zip(*values, strict=True):
                number += 1
                yield number, dict(zip(names, row, strict=True))

    def read_vectors(self, column: str) -> Iterator[Floats]:
        row = 0
        dim: int | None = None
        for batch in self.batches([column]):
            block = convert_vectors(batch.column(column))
            if block is None or (dim is not None and block.shape[1] != dim):
                yield from self._read_vectors_by_row(column, row)
                return
            dim = block.shape[1]
            row += len(block)
            yield block

    def _read_vectors_by_row(self, column: str, first: int) -> Iterator[Floats]:
        """Read from row `first` on by converting each cell, which finds the row of a fault."""
        row = 0
        for block in super().read_vectors(column):
            if row + len(block) > first:
                yield block[max(first - row, 0) :]
            row += len(block)


def convert_vectors(column: Any) -> Floats | None:
    """Convert a list column of equal lengths without a copy by value; None if it needs a look at each cell."""
    import pyarrow

    if isinstance(column, pyarrow.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pyarrow.ExtensionArray):
        column = column.storage
    if isinstance(column, pyarrow.ChunkedArray):  # more values than one array can hold
        return None
    kind = column.type
    is_list = pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind) or pyarrow.types.is_fixed_size_list(kind)
    if not is_list or column.null_count or not len(column):
        return None
    lengths = column.value_lengths()
    values = column.flatten()
    dim = lengths[0].as_py() if len(lengths) else 0
    is_number = pyarrow.types.is_floating(values.type) or pyarrow.types.is_integer(values.type)
    if values.null_count or not is_number or not dim or not bool((lengths.to_numpy(zero_copy_only=False) == dim).all()):
        return None
    with np.errstate(over="ignore"):
        block: Floats = values.to_numpy(zero_copy_only=False).astype(np.float32).reshape(len(column), dim)
    return block


def read_values(column: Any) -> list[Any]:
    """Read a column as Python values. Arrow does not check on reading that strings are UTF-8."""
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        values = [_decode(value) for value in column.cast("large_binary").to_pylist()]
    return values


def _decode(value: bytes | None) -> str | InvalidUtf8 | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return InvalidUtf8(value or b"")


class _Spill:
    """The batches of a stream that can be read once, in an anonymous temporary file."""

    def __init__(self, stream: Any) -> None:
        pyarrow = import_pyarrow("reading an Arrow stream")
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the dataset
        self.count = 0
        with pyarrow.ipc.new_stream(self._file, stream.schema) as out:
            for batch in stream:
                self.count += len(batch)
                out.write_batch(batch)
        self._file.flush()

    def iter_batches(self, columns: list[str]) -> Iterator[Any]:
        import pyarrow

        # The name under /proc opens the file again, with a position of its own.
        with (
            open(f"/proc/self/fd/{self._file.fileno()}", "rb") as file,
            pyarrow.ipc.open_stream(file) as stream,
        ):
            for batch in stream:
                for start in range(0, len(batch), BATCH_ROWS):
                    yield batch.select(columns).slice(start, BATCH_ROWS)


def open_arrow(value: Any, where: str) -> ArrowSource | None:
    """Open a pyarrow or Hugging Face object; None for anything else."""
    package = type(value).__module__.partition(".")[0]
    if package == "datasets":
        return _open_hugging_face(value, where)
    return _open_pyarrow(value, where) if package == "pyarrow" else None


def open_stream(value: Any, where: str) -> ArrowSource | None:
    """Open an object with the Arrow stream interface, such as a DuckDB relation; None for anything else."""
    if not hasattr(value, "__arrow_c_stream__"):
        return None
    pyarrow = import_pyarrow(f"reading a {type(value).__name__}")
    return _open_pyarrow(pyarrow.RecordBatchReader.from_stream(value), where)


def _open_pyarrow(value: Any, where: str) -> ArrowSource | None:
    pyarrow = import_pyarrow("reading Arrow data")
    if isinstance(value, pyarrow.RecordBatch):
        value = pyarrow.Table.from_batches([value])
    if isinstance(value, pyarrow.Table):
        check_unique_columns(value.schema.names, where)
        return ArrowSource(
            where,
            where,
            list(value.schema.names),
            lambda columns: iter(value.select(columns).to_batches(max_chunksize=BATCH_ROWS)),
            len(value),
        )
    if isinstance(value, pyarrow.RecordBatchReader):
        check_unique_columns(value.schema.names, where)
        spill = _Spill(value)
        return ArrowSource(where, where, list(value.schema.names), spill.iter_batches, spill.count)
    if hasattr(value, "to_batches") and hasattr(value, "schema"):  # pyarrow.dataset.Dataset
        return ArrowSource(where, where, list(value.schema.names), partial(iter_dataset_batches, value))
    return None


def iter_dataset_batches(dataset: Any, columns: list[str]) -> Iterator[Any]:
    """Yield the batches of a pyarrow dataset, one of them read in advance instead of 16 of each of 4 files."""
    batches = dataset.to_batches(
        columns=columns, batch_size=BATCH_ROWS, batch_readahead=1, fragment_readahead=1, use_threads=False
    )
    return (batch for batch in batches if len(batch))


def _open_hugging_face(value: Any, where: str) -> ArrowSource:
    if isinstance(value, Mapping):
        splits = ", ".join(map(repr, value))
        raise DataError(
            f"{where}: given a {type(value).__name__} of the splits {splits}, expected one; choose it by name"
        )
    columns = value.column_names
    if not columns:
        raise DataError(
            f"{where}: the {type(value).__name__} does not tell its columns; call _resolve_features() first"
        )

    def iter_batches(names: list[str]) -> Iterator[Any]:
        return iter(value.select_columns(names).with_format("arrow").iter(BATCH_ROWS))

    return ArrowSource(where, where, list(columns), iter_batches, len(value) if hasattr(value, "__len__") else None)


def check_unique_columns(columns: Sequence[str], where: str) -> None:
    """Refuse two columns with one name."""
    repeated = [name for name in columns if list(columns).count(name) > 1]
    if repeated:
        raise DataError(f"{where}: the column {repeated[0]!r} occurs twice; rename or drop one")
