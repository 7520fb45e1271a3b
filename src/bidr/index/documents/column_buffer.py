"""Values of attributes, buffered in bounded memory: strings are dictionary-encoded, overflow goes to a spill file."""

import heapq
import json
import sys
from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bidr.index.filters.filter_expression import Scalar
from bidr.utils.spill_file import SpillFile

Array = npt.NDArray[Any]
ROW, CODE = np.dtype("u4"), np.dtype("<u4")
VALUES_PER_BLOCK = 1 << 16
# Strings of a dictionary that are written and read in one piece, and read-ahead of all its runs together in bytes.
STRINGS_PER_BLOCK, READ_AHEAD_BYTES = 4_096, 16 << 20
# Memory of a string beside its object: its entry in a dict, which grows by doubling, and its number.
ENTRY_BYTES = 120


class SortedRun(NamedTuple):
    """Strings that were spilled: sorted, one line of JSON each.

    offset, size: where the lines are.
    numbers:      offset of the number that each string had.
    strings:      how many there are.
    until:        this run and those before number the first so many values of the column.
    """

    offset: int
    size: int
    numbers: int
    strings: int
    until: int


class StringNumbering:
    """Distinct strings of a column, numbered in order of appearance. Each run starts numbering anew."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.bytes = 0
        self.runs: list[SortedRun] = []

    def add(self, string: str) -> int:
        size = len(self.numbers)
        number = self.numbers.setdefault(string, size)
        if len(self.numbers) > size:
            self.bytes += sys.getsizeof(string) + ENTRY_BYTES
        return number

    def flush(self, spill: SpillFile, until: int) -> None:
        """Write the strings as a sorted run."""
        strings, start, size = sorted(self.numbers), 0, 0
        for first in range(0, len(strings), STRINGS_PER_BLOCK):
            lines = "".join(f"{json.dumps(string)}\n" for string in strings[first : first + STRINGS_PER_BLOCK]).encode()
            offset = spill.append(lines)
            start, size = offset if first == 0 else start, size + len(lines)
        numbers = spill.append(np.array([self.numbers[string] for string in strings], dtype=CODE).data)
        self.runs.append(SortedRun(start, size, numbers, len(strings), until))
        self.numbers, self.bytes = {}, 0


class MergedDictionary(NamedTuple):
    """The dictionary of a column: its size, its strings in order, and for each run the codes of its strings."""

    size: int
    strings: Iterator[str]
    run_codes: list["RunCodes"]


class RunCodes:
    """Codes of the strings of one run: their positions in the merged dictionary."""

    def __init__(self, spill: SpillFile, run: SortedRun) -> None:
        self._spill, self._run = spill, run
        self._buffer, self._parts = array("I"), list[tuple[int, int]]()

    def append(self, code: int) -> None:
        self._buffer.append(code)
        if len(self._buffer) == STRINGS_PER_BLOCK:
            self.flush()

    def flush(self) -> None:
        self._parts.append((self._spill.append(memoryview(self._buffer)), self._buffer.itemsize * len(self._buffer)))
        self._buffer = array("I")

    def load_by_number(self) -> Array:
        """Read the code of each number of the run."""
        codes = np.empty(self._run.strings, dtype=CODE)
        numbers = np.frombuffer(self._spill.read(self._run.numbers, CODE.itemsize * self._run.strings), dtype=CODE)
        codes[numbers] = np.frombuffer(b"".join(self._spill.read(*part) for part in self._parts), dtype="u4")
        return codes


def merge_runs(spill: SpillFile, runs: list[SortedRun]) -> MergedDictionary:
    """Merge sorted runs into one dictionary without duplicates."""
    block_bytes = max(STRINGS_PER_BLOCK, READ_AHEAD_BYTES // len(runs))
    run_codes = [RunCodes(spill, run) for run in runs]

    def read_run(number: int) -> Iterator[tuple[str, int]]:
        return ((string, number) for string in _read_lines(spill, runs[number].offset, runs[number].size, block_bytes))

    last, count, lines, parts = None, 0, list[str](), list[tuple[int, int]]()

    def flush() -> None:
        content = "".join(lines).encode()
        parts.append((spill.append(content), len(content)))
        lines.clear()

    for string, number in heapq.merge(*map(read_run, range(len(runs)))):
        if string != last:
            last, count = string, count + 1
            lines.append(f"{json.dumps(string)}\n")
            if len(lines) == STRINGS_PER_BLOCK:
                flush()
        run_codes[number].append(count - 1)
    flush()
    for codes in run_codes:
        codes.flush()
    strings = (string for part in parts for string in _read_lines(spill, *part, block_bytes))
    return MergedDictionary(count, strings, run_codes)


def _read_lines(spill: SpillFile, offset: int, size: int, block_bytes: int) -> Iterator[str]:
    rest, end = b"", offset + size
    for start in range(offset, end, block_bytes):
        *lines, rest = (rest + spill.read(start, min(block_bytes, end - start))).split(b"\n")
        yield from map(json.loads, lines)


class ColumnBuffer:
    """Rows and values of one attribute of one kind. Integers stay integers until the first float."""

    def __init__(self) -> None:
        self.count, self.is_integer, self.strings = 0, True, StringNumbering()
        self._rows = array("I")
        self._values: array[Any] = array("q")
        self._parts: list[tuple[int, int, int, str]] = []
        """Of spilled values: offsets of the rows and of the values, how many there are, their type code."""

    def append(self, row: int, value: Scalar) -> None:
        self._rows.append(row)
        if isinstance(value, str):
            value = self.strings.add(value)
        elif isinstance(value, float) and self._values.typecode == "q":
            self._values, self.is_integer = array("d", self._values), False
        self._values.append(value)
        self.count += 1

    def flush(self, spill: SpillFile) -> None:
        if self._rows:
            offsets = spill.append(memoryview(self._rows)), spill.append(memoryview(self._values))
            self._parts.append((*offsets, len(self._rows), self._values.typecode))
            self._rows, self._values = array("I"), array(self._values.typecode)

    def iter_blocks(self, spill: SpillFile) -> Iterator[tuple[Array, Array]]:
        """Yield rows and their values in order."""
        for rows, values, count, code in self._parts:
            for at in range(0, count, VALUES_PER_BLOCK):
                size = min(VALUES_PER_BLOCK, count - at)
                row_bytes = spill.read(rows + ROW.itemsize * at, ROW.itemsize * size)
                value_bytes = spill.read(values + 8 * at, 8 * size)
                yield np.frombuffer(row_bytes, dtype=ROW), self._convert(np.frombuffer(value_bytes, dtype=code))
        buffered = np.frombuffer(self._values, dtype=self._values.typecode)
        yield np.frombuffer(self._rows, dtype=ROW), self._convert(buffered)

    def _convert(self, values: Array) -> Array:
        return values if self.is_integer else values.astype(np.float64, copy=False)

    def iter_dense(self, spill: SpillFile, count: int, dtype: np.dtype[Any], absent: float) -> Iterator[Array]:
        """Yield one value per row, `absent` for rows without one."""
        start = 0
        block = np.full(min(VALUES_PER_BLOCK, count), absent, dtype=dtype)
        for rows, values in self.iter_blocks(spill):
            at = 0
            while at < len(rows):
                end = at + int(np.searchsorted(rows[at:], start + len(block)))
                block[rows[at:end] - start] = values[at:end]
                at = end
                if at < len(rows):
                    yield block
                    start += len(block)
                    block = np.full(min(VALUES_PER_BLOCK, count - start), absent, dtype=dtype)
        while start < count:
            yield block
            start += len(block)
            block = np.full(min(VALUES_PER_BLOCK, count - start), absent, dtype=dtype)
