"""Data frames of pandas, Polars and others that narwhals reads, columns by name, and lists of records."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from bidr.data.tabular_source import BATCH_ROWS, RecordSource
from bidr.data.validation import format_value
from bidr.errors import DataError

SAMPLED_RECORDS = 100


class FrameSource(RecordSource):
    """A data frame in memory."""

    def __init__(self, frame: Any, where: str) -> None:
        import narwhals

        super().__init__(where, where)
        try:
            self.frame = narwhals.from_native(frame, eager_only=True)
        except (TypeError, ValueError) as error:  # repeated columns, or a lazy frame
            hint = "call .collect()" if hasattr(frame, "collect") else "rename or drop one"
            raise DataError(
                f"{where}: given a {type(frame).__name__} ({' '.join(str(error).split())}), expected a frame in memory "
                f"with unique column names; {hint}"
            ) from error
        self._native_names = {str(name): name for name in self.frame.columns}
        self.count = len(self.frame)

    @property
    def columns(self) -> list[str]:
        return list(self._native_names)

    def read(self, columns: Sequence[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
        names = list(columns) or self.columns[:1]
        frame = self.frame.select([self._native_names[name] for name in names])
        for start in range(0, len(frame), BATCH_ROWS):
            rows = frame[start : start + BATCH_ROWS].iter_rows(named=False)
            for number, row in enumerate(rows, start=start + 1):
                yield number, dict(zip(names, row, strict=True))


def is_frame(value: object) -> bool:
    """Return whether narwhals reads this object as a data frame."""
    import narwhals

    return narwhals.dependencies.is_into_dataframe(value) or (
        type(value).__name__ == "LazyFrame" and hasattr(value, "collect")
    )


class ColumnsSource(RecordSource):
    """Columns of equal lengths by name: lists, arrays or series."""

    def __init__(self, columns: Mapping[str, Any], where: str) -> None:
        super().__init__(where, where)
        self._values = {str(name): _check_column(name, values, where) for name, values in columns.items()}
        lengths = {name: len(values) for name, values in self._values.items()}
        if len(set(lengths.values())) > 1:
            counts = ", ".join(f"{name!r} {length:,}" for name, length in lengths.items())
            raise DataError(f"{where}: given columns of different lengths ({counts}), expected one value a row in each")
        self.count = next(iter(lengths.values()), 0)

    @property
    def columns(self) -> list[str]:
        return list(self._values)

    def read(self, columns: Sequence[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
        names = list(columns) or self.columns[:1]
        for number, row in enumerate(zip(*(self._values[name] for name in names), strict=True), start=1):
            yield number, dict(zip(names, row, strict=True))


def _check_column(name: Any, values: Any, where: str) -> Any:
    if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__len__") or not isinstance(values, Iterable):
        raise DataError(f"{where}: column {name!r} is {format_value(values)}, expected a list of one value a row")
    return values


class RecordsSource(RecordSource):
    """Mappings in memory, or any iterable of them that can be read again."""

    unit, varying = "record", True

    def __init__(self, records: Iterable[Any], where: str) -> None:
        super().__init__(where, where)
        self.records = records
        self.count = len(records) if isinstance(records, Sequence) else None
        sampled = {str(name): None for _, row in islice(self.read(()), SAMPLED_RECORDS) for name in row}
        self._columns = list(sampled)

    @property
    def columns(self) -> list[str]:
        return self._columns

    def read(self, columns: Sequence[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
        for number, record in enumerate(self.records, start=1):
            if not isinstance(record, Mapping):
                raise DataError(
                    f"{self.where}: given a {type(self.records).__name__} whose number {number} is "
                    f"{format_value(record)}, expected dicts such as {{'id': ..., 'text': ...}}"
                )
            yield number, record


def open_frame(value: Any, where: str) -> RecordSource | None:
    """Open a data frame, or columns by name; None for anything else."""
    if is_frame(value):
        return FrameSource(value, where)
    return ColumnsSource(value, where) if isinstance(value, Mapping) else None


def open_records(value: Any, where: str) -> RecordSource | None:
    """Open an iterable of mappings; None for anything else."""
    if isinstance(value, str | bytes | bytearray | np.ndarray) or not isinstance(value, Iterable):
        return None
    if iter(value) is value:
        raise DataError(
            f"{where}: given a {type(value).__name__}, which can be read once, expected what can be read again, since "
            "a build reads it several times; give a list: list(...)"
        )
    return RecordsSource(value, where)
