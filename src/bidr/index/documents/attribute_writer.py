"""Write attributes: as JSON in row order, and as one column for each name and kind (see `attribute_columns`)."""

import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from bidr.data.attribute_validation import check_stored_attributes
from bidr.data.types import Attributes
from bidr.index.documents.attribute_columns import ABSENT, ATTRIBUTES, COLUMNS, DTYPES
from bidr.index.documents.column_buffer import CODE, ColumnBuffer, MergedDictionary, merge_runs
from bidr.index.documents.string_store import FileFactory, StringStoreWriter, create_string_store
from bidr.index.filters.filter_expression import get_kind
from bidr.index.vectors import write_npy_header
from bidr.utils.cpu_and_heap import trim_heap
from bidr.utils.spill_file import SpillFile

# Most that all columns together hold in memory: values (12 bytes each), and bytes of distinct strings.
VALUES_IN_MEMORY, STRING_BYTES_IN_MEMORY = 1 << 20, 32 << 20


class AttributeWriter:
    """Takes the attributes of documents in row order, in bounded memory.

    Args:
        create: opens a new file of the segment.
        count: number of documents.
        folder: where values beyond the memory bound are spilled.
    """

    def __init__(self, create: FileFactory, count: int, folder: Path) -> None:
        self.create, self.count, self.rows = create, count, 0
        self._columns: dict[tuple[str, str], ColumnBuffer] = {}
        self._buffered_values = self._buffered_string_bytes = 0
        self._opened, self._spill = ExitStack(), SpillFile(folder)
        self._texts: StringStoreWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._opened.__exit__(kind, error, at)

    def close(self) -> None:
        self._spill.close()

    def append(self, attributes: Attributes | None) -> None:
        text = "{}"
        if attributes:
            checked = check_stored_attributes(attributes, f"documents: row {self.rows:,}")
            text = json.dumps(checked, ensure_ascii=False)
            for name, value in checked.items():
                scalar: Any
                for scalar in value if isinstance(value, list) else [value]:
                    self._add_value(name, scalar)
        if attributes and self._texts is None:
            self._texts = self._opened.enter_context(create_string_store(self.create, ATTRIBUTES, self.count))
            for _ in range(self.rows):
                self._texts.append("{}")
        if self._texts is not None:
            self._texts.append(text)
        self.rows += 1

    def _add_value(self, name: str, value: Any) -> None:
        column = self._columns.setdefault((name, get_kind(value)), ColumnBuffer())
        string_bytes = column.strings.bytes
        column.append(self.rows, value)
        self._buffered_values += 1
        self._buffered_string_bytes += column.strings.bytes - string_bytes
        if self._buffered_values >= VALUES_IN_MEMORY:
            for buffer in self._columns.values():
                buffer.flush(self._spill)
            self._buffered_values = 0
            trim_heap()
        if self._buffered_string_bytes >= STRING_BYTES_IN_MEMORY:
            largest = max(self._columns.values(), key=lambda buffer: buffer.strings.bytes)
            self._buffered_string_bytes -= largest.strings.bytes
            largest.strings.flush(self._spill, largest.count)
            trim_heap()

    def write(self) -> None:
        """Write the columns after the last document; write nothing if no document has attributes."""
        if self._texts is None:
            return
        columns = []
        for number, ((name, kind), column) in enumerate(self._columns.items()):
            stored = "whole" if kind == "number" and column.is_integer else kind
            if kind == "word":
                self._write_strings(number, column)
            else:
                blocks = column.iter_dense(self._spill, self.rows, DTYPES[stored], ABSENT[stored])
                self._write_array(f"column.{number}.values.npy", DTYPES[stored], self.rows, blocks)
            columns.append({"name": name, "kind": stored})
        with self.create(COLUMNS) as out:
            out.write(json.dumps(columns).encode())

    def _write_strings(self, number: int, column: ColumnBuffer) -> None:
        column.strings.flush(self._spill, column.count)
        dictionary = merge_runs(self._spill, column.strings.runs)
        with create_string_store(self.create, f"column.{number}.words", dictionary.size) as store:
            for string in dictionary.strings:
                store.append(json.dumps(string))
        self._write_array(f"column.{number}.codes.npy", CODE, column.count, self._iter_codes(column, dictionary))
        rows = (rows.astype("<i8") for rows, _ in column.iter_blocks(self._spill))
        self._write_array(f"column.{number}.rows.npy", np.dtype("<i8"), column.count, rows)

    def _iter_codes(self, column: ColumnBuffer, dictionary: MergedDictionary) -> Iterator[npt.NDArray[Any]]:
        """Yield the dictionary code of every value of a column."""
        runs, run, start = column.strings.runs, 0, 0
        codes = dictionary.run_codes[0].load_by_number()
        for _, numbers in column.iter_blocks(self._spill):
            at = 0
            while at < len(numbers):
                while start >= runs[run].until:
                    run += 1
                    codes = dictionary.run_codes[run].load_by_number()
                end = min(len(numbers), at + runs[run].until - start)
                yield codes[numbers[at:end]]
                at, start = end, start + end - at

    def _write_array(self, name: str, dtype: np.dtype[Any], count: int, blocks: Iterable[npt.NDArray[Any]]) -> None:
        with self.create(name) as out:
            write_npy_header(out, dtype, (count,))
            for block in blocks:
                out.write(np.ascontiguousarray(block, dtype=dtype).data.cast("B"))
