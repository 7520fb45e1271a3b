"""Writing attributes: as they come to one file, by column to others at the end (see `attributes`)."""

import json
from array import array
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from bidr.index.attributes import ABSENT, ATTRIBUTES, COLUMNS, DTYPES
from bidr.index.filters import Scalar, check_attributes, kind
from bidr.index.lines import LinesWriter, NewFile, new_lines
from bidr.index.vectors import write_npy_header
from bidr.text.records import Attributes


class AttributesWriter:
    """Takes the attributes of `count` documents in order; in RAM are 12 bytes a value at most, and each word once."""

    def __init__(self, create: NewFile, count: int) -> None:
        self.create, self.count, self.rows = create, count, 0
        self._columns: dict[tuple[str, str], _Column] = {}
        self._opened = ExitStack()
        self._texts: LinesWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._opened.__exit__(kind, error, at)

    def append(self, given: Attributes | None) -> None:
        text = "{}"
        if given:
            checked = check_attributes(given, f"documents: row {self.rows:,}")
            text = json.dumps(checked, ensure_ascii=False)
            for name, value in checked.items():
                each: Any
                for each in value if isinstance(value, list) else [value]:
                    self._columns.setdefault((name, kind(each)), _Column()).append(self.rows, each)
        if given and self._texts is None:
            self._texts = self._opened.enter_context(new_lines(self.create, ATTRIBUTES, self.count))
            for _ in range(self.rows):
                self._texts.append("{}")
        if self._texts is not None:
            self._texts.append(text)
        self.rows += 1

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
                values = np.full(self.rows, ABSENT[stored], dtype=DTYPES[stored])
                values[np.frombuffer(column.rows, dtype=np.uint32)] = column.numbers()
                self._write_array(f"column.{number}.values.npy", values)
            columns.append({"name": name, "kind": stored})
        with self.create(COLUMNS) as out:
            out.write(json.dumps(columns).encode())

    def _write_words(self, number: int, column: "_Column") -> None:
        words = sorted(column.words)
        with new_lines(self.create, f"column.{number}.words", len(words)) as lines:
            for word in words:
                lines.append(json.dumps(word))
        places = np.empty(len(words), dtype="<u4")
        places[[column.words[word] for word in words]] = np.arange(len(words))
        self._write_array(f"column.{number}.codes.npy", places[column.numbers()])
        rows = np.frombuffer(column.rows, dtype=np.uint32)
        self._write_array(f"column.{number}.rows.npy", rows.astype("<i8"))

    def _write_array(self, name: str, values: npt.NDArray[Any]) -> None:
        with self.create(name) as out:
            write_npy_header(out, values.dtype, values.shape)
            out.write(np.ascontiguousarray(values).data.cast("B"))


class _Column:
    """Values of one name and kind, and whose they are. Whole numbers stay whole until another one comes."""

    def __init__(self) -> None:
        self.rows = array("I")
        self.values: array[Any] = array("q")
        self.words: dict[str, int] = {}

    @property
    def whole(self) -> bool:
        return self.values.typecode == "q"

    def numbers(self) -> npt.NDArray[Any]:
        return np.frombuffer(self.values, dtype=self.values.typecode)

    def append(self, row: int, value: Scalar) -> None:
        self.rows.append(row)
        if isinstance(value, str):
            value = self.words.setdefault(value, len(self.words))
        elif isinstance(value, float) and self.whole:
            self.values = array("d", self.values)
        self.values.append(value)
