"""Writing attributes: as they come to one file, by column to others at the end (see `attributes`)."""

import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from bidr.data.attributes import check_stored_attributes
from bidr.data.types import Attributes
from bidr.index.documents.attribute_columns import ABSENT, ATTRIBUTES, COLUMNS, DTYPES
from bidr.index.documents.attribute_values import PLACE, Column, Sorted, SpillFile, in_order
from bidr.index.documents.string_file import FileFactory, StringStoreWriter, create_string_store
from bidr.index.filters.filter_expression import get_kind
from bidr.index.vectors import write_npy_header
from bidr.utils.system import trim_heap

# What may wait in memory, of all columns together: values, of 12 bytes, and bytes of different words.
HELD, WORDS_HELD = 1 << 20, 32 << 20


class AttributeWriter:
    """Takes the attributes of `count` documents in order. However many they are, a bounded share is in memory; what is
    more waits near `folder`."""

    def __init__(self, create: FileFactory, count: int, folder: Path) -> None:
        self.create, self.count, self.rows = create, count, 0
        self._columns: dict[tuple[str, str], Column] = {}
        self._held = self._words_held = 0
        self._opened, self._aside = ExitStack(), SpillFile(folder)
        self._texts: StringStoreWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._opened.__exit__(kind, error, at)

    def close(self) -> None:
        """Let go of what waited."""
        self._aside.close()

    def append(self, given: Attributes | None) -> None:
        text = "{}"
        if given:
            checked = check_stored_attributes(given, f"documents: row {self.rows:,}")
            text = json.dumps(checked, ensure_ascii=False)
            for name, value in checked.items():
                each: Any
                for each in value if isinstance(value, list) else [value]:
                    self._put(name, each)
        if given and self._texts is None:
            self._texts = self._opened.enter_context(create_string_store(self.create, ATTRIBUTES, self.count))
            for _ in range(self.rows):
                self._texts.append("{}")
        if self._texts is not None:
            self._texts.append(text)
        self.rows += 1

    def _put(self, name: str, value: Any) -> None:
        column = self._columns.setdefault((name, get_kind(value)), Column())
        before = column.words.bytes
        column.append(self.rows, value)
        self._held += 1
        self._words_held += column.words.bytes - before
        if self._held >= HELD:
            for each in self._columns.values():
                each.put_away(self._aside)
            self._held = 0
            trim_heap()
        if self._words_held >= WORDS_HELD:
            largest = max(self._columns.values(), key=lambda each: each.words.bytes)
            self._words_held -= largest.words.bytes
            largest.words.put_away(self._aside, largest.count)
            trim_heap()

    def write(self) -> None:
        """Write the columns, after the last document; nothing where none has an attribute."""
        if self._texts is None:
            return
        columns = []
        for number, ((name, of), column) in enumerate(self._columns.items()):
            stored = "whole" if of == "number" and column.whole else of
            if of == "word":
                self._write_words(number, column)
            else:
                blocks = column.dense(self._aside, self.rows, DTYPES[stored], ABSENT[stored])
                self._write_array(f"column.{number}.values.npy", DTYPES[stored], self.rows, blocks)
            columns.append({"name": name, "kind": stored})
        with self.create(COLUMNS) as out:
            out.write(json.dumps(columns).encode())

    def _write_words(self, number: int, column: Column) -> None:
        column.words.put_away(self._aside, column.count)
        found = in_order(self._aside, column.words.runs)
        with create_string_store(self.create, f"column.{number}.words", found.size) as lines:
            for word in found.words:
                lines.append(json.dumps(word))
        self._write_array(f"column.{number}.codes.npy", PLACE, column.count, self._places(column, found))
        rows = (rows.astype("<i8") for rows, _ in column.blocks(self._aside))
        self._write_array(f"column.{number}.rows.npy", np.dtype("<i8"), column.count, rows)

    def _places(self, column: Column, found: Sorted) -> Iterator[npt.NDArray[Any]]:
        """For every value of a column the place of its word in the dictionary."""
        runs, run, done = column.words.runs, 0, 0
        places = found.places[0].of_numbers()
        for _, numbers in column.blocks(self._aside):
            at = 0
            while at < len(numbers):
                while done >= runs[run].until:
                    run += 1
                    places = found.places[run].of_numbers()
                end = min(len(numbers), at + runs[run].until - done)
                yield places[numbers[at:end]]
                at, done = end, done + end - at

    def _write_array(self, name: str, dtype: np.dtype[Any], count: int, blocks: Iterable[npt.NDArray[Any]]) -> None:
        with self.create(name) as out:
            write_npy_header(out, dtype, (count,))
            for block in blocks:
                out.write(np.ascontiguousarray(block, dtype=dtype).data.cast("B"))
