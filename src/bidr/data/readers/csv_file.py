"""CSV and TSV files with a header: any delimiter, quoted fields, numbers and truth values by column."""

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from bidr.data.column_roles import format_names
from bidr.data.compressed_file import open_compressed
from bidr.data.line_reader import MAX_LINE_BYTES, file_errors
from bidr.data.tabular_source import RecordSource, check_same_columns
from bidr.errors import DataError

DELIMITERS = (",", "\t", ";", "|")
SUFFIXES = (".csv", ".tsv")
_INTEGER = re.compile(r"-?(?:0|[1-9]\d{0,17})")
_NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
_MISSING_NUMBERS = frozenset({"", "nan", "na", "n/a", "null", "none", "<na>", "nat"})
_TRUTH_VALUES = {"true": True, "false": False}


class CsvSource(RecordSource):
    """Delimited files with the same columns.

    A column of attributes whose cells are all integers, all numbers, or all "true" and "false" is read as such; numbers
    with leading zeros or above 18 digits are text. An empty cell is a missing value.
    """

    def __init__(self, name: str, where: str, files: Sequence[Path]) -> None:
        super().__init__(name, where)
        self.files = tuple(files)
        self._parsers: dict[str, Callable[[str], Any]] = {}

    @cached_property
    def columns(self) -> list[str]:
        return next(_read_rows(self.files[0]))

    def read(self, columns: Sequence[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
        names = list(columns)
        self._detect_kinds([name for name in names if name not in self._parsers])
        parsers = [self._parsers[name] for name in names]
        for number, cells in self._read_cells(names):
            yield number, {name: parse(cell) for name, parse, cell in zip(names, parsers, cells, strict=True)}

    def read_texts(self, columns: Sequence[str]) -> None:
        """Read these columns as text, whatever their cells look like."""
        self._parsers |= dict.fromkeys(columns, str)

    def has_vectors(self, column: str) -> bool:
        self.read_texts([column])  # without a pass over all rows
        if super().has_vectors(column):
            return True
        del self._parsers[column]
        return False

    def _read_cells(self, names: list[str]) -> Iterator[tuple[int, list[str]]]:
        """Yield the number of each row over all files, and the cells of some columns."""
        number = 0
        for path in self.files:
            self.starts[str(path)] = number
            rows = _read_rows(path)
            header = next(rows)
            check_same_columns(path, header, self.files[0], self.columns)
            indices = [header.index(name) for name in names]
            for row in rows:
                number += 1
                yield number, [row[index] for index in indices]

    def _detect_kinds(self, names: list[str]) -> None:
        """Find the kind of each column in a pass over all rows."""
        if not names:
            return
        kinds = [_Kind() for _ in names]
        for _, cells in self._read_cells(names):
            for kind, cell in zip(kinds, cells, strict=True):
                if kind.can_be:
                    kind.update(cell)
        self._parsers |= {name: kind.get_parser() for name, kind in zip(names, kinds, strict=True)}


class _Kind:
    """What all cells of a column could be."""

    def __init__(self) -> None:
        self.can_be = ["integer", "number", "truth value"]
        self.has_values = False

    def update(self, cell: str) -> None:
        """Exclude kinds that a cell is not."""
        text = cell.strip()
        if text.lower() in _MISSING_NUMBERS:
            return
        self.has_values = True
        if "integer" in self.can_be and not _INTEGER.fullmatch(text):
            self.can_be.remove("integer")
        if "number" in self.can_be and not (_INTEGER.fullmatch(text) or _is_decimal(text)):
            self.can_be.remove("number")
        if "truth value" in self.can_be and text.lower() not in _TRUTH_VALUES:
            self.can_be.remove("truth value")

    def get_parser(self) -> Callable[[str], Any]:
        """Return the parser of the narrowest kind."""
        parsers: dict[str, Callable[[str], Any]] = {"integer": int, "number": float, "truth value": _parse_truth}
        return _Optional(parsers[self.can_be[0]]) if self.has_values and self.can_be else _parse_text


def _is_decimal(text: str) -> bool:
    """Return whether a text is a number that float64 holds: not a string of digits too long for an integer."""
    return _NUMBER.fullmatch(text) is not None and not text.lstrip("+-").isdigit()


class _Optional:
    """Parses cells other than missing ones. A class, so that a dataset can be pickled."""

    def __init__(self, parse: Callable[[str], Any]) -> None:
        self.parse = parse

    def __call__(self, cell: str) -> Any:
        text = cell.strip()
        return None if text.lower() in _MISSING_NUMBERS else self.parse(text)


def _parse_truth(text: str) -> bool:
    return _TRUTH_VALUES[text.lower()]


def _parse_text(cell: str) -> str | None:
    return cell or None


def _read_rows(path: Path) -> Iterator[list[str]]:
    """Yield the header and the rows of a file, all of one length."""
    csv.field_size_limit(MAX_LINE_BYTES)
    line = 0
    with file_errors(path, lambda: line), open_compressed(path) as content:
        text = io.TextIOWrapper(content, encoding="utf-8-sig", newline="")
        first = text.readline(MAX_LINE_BYTES)
        rows = csv.reader(_chain_lines(first, text), delimiter=_choose_delimiter(first))
        header: list[str] = []
        try:
            for row in rows:
                line = rows.line_num
                if not row:
                    continue
                if not header:
                    header = _check_header(row, path)
                elif len(row) != len(header):
                    raise DataError(
                        f"{path} line {line}: {len(row)} fields, expected {len(header)} as in the header "
                        f"({format_names(header)}); quote fields that contain the delimiter"
                    )
                yield row
        except csv.Error as error:
            raise DataError(f"{path} line {rows.line_num}: {error}; check the quotes around this line") from error
        if not header:
            raise DataError(f"{path} is empty, expected a header line with the names of the columns")


def _chain_lines(first: str, text: io.TextIOWrapper) -> Iterator[str]:
    yield first
    yield from text


def _choose_delimiter(header: str) -> str:
    """Choose the delimiter that is most frequent in the header line."""
    return max(DELIMITERS, key=header.count)


def _check_header(header: list[str], path: Path) -> list[str]:
    repeated = [name for name in header if header.count(name) > 1]
    if repeated:
        raise DataError(f"{path}: the column {repeated[0]!r} occurs twice in the header; rename one")
    return header
