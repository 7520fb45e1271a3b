"""Values of attributes on their way to the index, in bounded memory: what is more waits in a file without a name."""

import heapq
import json
import os
import sys
import tempfile
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bidr.index.filters.filter_expression import Scalar
from bidr.utils.files import storage_errors

Array = npt.NDArray[Any]
ROW, PLACE = np.dtype("u4"), np.dtype("<u4")
AT_ONCE = 1 << 16
# Words of a dictionary that are written and read together, and what all runs of one read ahead together, bytes.
SOME, READ = 4_096, 16 << 20
# What a word takes beside itself: its entry in a dictionary, which grows by doubling, and its number.
ENTRY = 120


class SpillFile:
    """Bytes that wait in a file without a name, in the first folder above `near` that is there."""

    def __init__(self, near: Path) -> None:
        self.near, self._end = near, 0
        self._file: IO[bytes] | None = None

    def put(self, content: bytes | memoryview) -> int:
        """Where they are."""
        left, at = memoryview(content).cast("B"), self._end
        with storage_errors(self.near):
            if self._file is None:
                folder = next(each for each in (self.near, *self.near.absolute().parents) if each.is_dir())
                self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
            self._end += len(left)
            while len(left):
                left = left[self._file.write(left) :]
        return at

    def get(self, at: int, size: int) -> bytes:
        assert self._file is not None
        with storage_errors(self.near):
            content = os.pread(self._file.fileno(), size, at)
            if len(content) != size:
                raise OSError(f"{len(content)} bytes where {size} were written")
        return content

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class Run(NamedTuple):
    """Words that were put away: sorted, a line of JSON each; `numbers` says which number each of them had.

    until: so many values of the column are numbered by this run or one before.
    """

    at: int
    size: int
    numbers: int
    words: int
    until: int


class Words:
    """The different words of a column, numbered as they come. Those that are put away are numbered anew later."""

    def __init__(self) -> None:
        self.held: dict[str, int] = {}
        self.bytes = 0
        self.runs: list[Run] = []

    def number(self, word: str) -> int:
        before = len(self.held)
        number = self.held.setdefault(word, before)
        if len(self.held) > before:
            self.bytes += sys.getsizeof(word) + ENTRY
        return number

    def put_away(self, aside: SpillFile, until: int) -> None:
        words, start, size = sorted(self.held), 0, 0
        for first in range(0, len(words), SOME):
            content = "".join(f"{json.dumps(word)}\n" for word in words[first : first + SOME]).encode()
            at = aside.put(content)
            start, size = at if first == 0 else start, size + len(content)
        numbers = aside.put(np.array([self.held[word] for word in words], dtype=PLACE).data)
        self.runs.append(Run(start, size, numbers, len(words), until))
        self.held, self.bytes = {}, 0


class Sorted(NamedTuple):
    """A dictionary: how many words, the words in order, and the places of those of each run, by their numbers."""

    size: int
    words: Iterator[str]
    places: list["Places"]


class Places:
    """Where the words of one run stand among all of its column."""

    def __init__(self, aside: SpillFile, run: Run) -> None:
        self._aside, self._run = aside, run
        self._waiting, self._parts = array("I"), list[tuple[int, int]]()

    def append(self, place: int) -> None:
        self._waiting.append(place)
        if len(self._waiting) == SOME:
            self.flush()

    def flush(self) -> None:
        self._parts.append((self._aside.put(memoryview(self._waiting)), self._waiting.itemsize * len(self._waiting)))
        self._waiting = array("I")

    def of_numbers(self) -> Array:
        found = np.empty(self._run.words, dtype=PLACE)
        numbers = np.frombuffer(self._aside.get(self._run.numbers, PLACE.itemsize * self._run.words), dtype=PLACE)
        found[numbers] = np.frombuffer(b"".join(self._aside.get(*part) for part in self._parts), dtype="u4")
        return found


def in_order(aside: SpillFile, runs: list[Run]) -> Sorted:
    """All words of some runs, each once."""
    block, places = max(SOME, READ // len(runs)), [Places(aside, run) for run in runs]

    def tagged(number: int) -> Iterator[tuple[str, int]]:
        return ((word, number) for word in _lines(aside, runs[number].at, runs[number].size, block))

    last, count, waiting, parts = None, 0, list[str](), list[tuple[int, int]]()

    def flush() -> None:
        content = "".join(waiting).encode()
        parts.append((aside.put(content), len(content)))
        waiting.clear()

    for word, number in heapq.merge(*map(tagged, range(len(runs)))):
        if word != last:
            last, count = word, count + 1
            waiting.append(f"{json.dumps(word)}\n")
            if len(waiting) == SOME:
                flush()
        places[number].append(count - 1)
    flush()
    for each in places:
        each.flush()
    return Sorted(count, (word for part in parts for word in _lines(aside, *part, block)), places)


def _lines(aside: SpillFile, at: int, size: int, block: int) -> Iterator[str]:
    rest, end = b"", at + size
    for start in range(at, end, block):
        *whole, rest = (rest + aside.get(start, min(block, end - start))).split(b"\n")
        yield from map(json.loads, whole)


class Column:
    """Values of one name and kind, and whose they are. Whole numbers stay whole until another one comes."""

    def __init__(self) -> None:
        self.count, self.whole, self.words = 0, True, Words()
        self._rows = array("I")
        self._values: array[Any] = array("q")
        self._parts: list[tuple[int, int, int, str]] = []
        """Of values that were put away: where rows and values are, how many, and of which type."""

    def append(self, row: int, value: Scalar) -> None:
        self._rows.append(row)
        if isinstance(value, str):
            value = self.words.number(value)
        elif isinstance(value, float) and self._values.typecode == "q":
            self._values, self.whole = array("d", self._values), False
        self._values.append(value)
        self.count += 1

    def put_away(self, aside: SpillFile) -> None:
        if self._rows:
            where = aside.put(memoryview(self._rows)), aside.put(memoryview(self._values))
            self._parts.append((*where, len(self._rows), self._values.typecode))
            self._rows, self._values = array("I"), array(self._values.typecode)

    def blocks(self, aside: SpillFile) -> Iterator[tuple[Array, Array]]:
        """Rows and their values, as they came."""
        for rows, values, count, code in self._parts:
            for at in range(0, count, AT_ONCE):
                some = min(AT_ONCE, count - at)
                found = aside.get(rows + ROW.itemsize * at, ROW.itemsize * some), aside.get(values + 8 * at, 8 * some)
                yield np.frombuffer(found[0], dtype=ROW), self._typed(np.frombuffer(found[1], dtype=code))
        held = np.frombuffer(self._values, dtype=self._values.typecode)
        yield np.frombuffer(self._rows, dtype=ROW), self._typed(held)

    def _typed(self, values: Array) -> Array:
        return values if self.whole else values.astype(np.float64, copy=False)

    def dense(self, aside: SpillFile, count: int, dtype: np.dtype[Any], absent: float) -> Iterator[Array]:
        """A value a row, `absent` where it has none."""
        start = 0
        found = np.full(min(AT_ONCE, count), absent, dtype=dtype)
        for rows, values in self.blocks(aside):
            at = 0
            while at < len(rows):
                end = at + int(np.searchsorted(rows[at:], start + len(found)))
                found[rows[at:end] - start] = values[at:end]
                at = end
                if at < len(rows):
                    yield found
                    start += len(found)
                    found = np.full(min(AT_ONCE, count - start), absent, dtype=dtype)
        while start < count:
            yield found
            start += len(found)
            found = np.full(min(AT_ONCE, count - start), absent, dtype=dtype)
