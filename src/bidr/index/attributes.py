"""Attributes of documents as columns on disk: a filter reads the columns that it names, and nothing else.

attributes.json             the columns: names, kinds, files
attributes.blob, .offsets   the attributes of each document as they were given
column.0.values.npy         numbers (NaN: none) or truth values (-1: none), one a document
column.0.codes.npy, .rows   words: numbers into the column's sorted dictionary, and whose they are
column.0.words.blob, .offsets  the dictionary
"""

import bisect
import json
from collections import OrderedDict
from collections.abc import Callable
from functools import cache, reduce
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bidr.errors import IndexFolderError
from bidr.index.filters import RANGES, All, Filter, Not, Scalar, Test, kind
from bidr.index.folder import REBUILD, HasFiles, check_content
from bidr.index.lines import Lines
from bidr.index.vectors import read_npy_header
from bidr.text.records import Attributes

Mask = npt.NDArray[np.bool_]
Bits = npt.NDArray[np.uint8]
ATTRIBUTES = "attributes"
COLUMNS = "attributes.json"
DTYPES: dict[str, np.dtype[Any]] = {"number": np.dtype("<f8"), "whole": np.dtype("<i8"), "truth": np.dtype("|i1")}
ABSENT: dict[str, float] = {"number": np.nan, "whole": np.iinfo(np.int64).min, "truth": -1}
KEPT_FILTERS = 64


class Columns:
    """The attributes of a segment. A column's bytes are checked when a filter first asks for it."""

    def __init__(self, folder: Path, manifest: HasFiles, count: int) -> None:
        self.folder, self.manifest, self.count = folder, manifest, count
        self._passing: OrderedDict[str, Bits] = OrderedDict()
        self._checked, self._array = cache(self._check), cache(self._open_array)
        self.there = COLUMNS in manifest.files
        self._texts = Lines(folder, ATTRIBUTES) if self.there else None
        if self._texts is not None and len(self._texts) != count:
            raise IndexFolderError(f"{self._texts.path}: {len(self._texts):,} rows, expected {count:,}; {REBUILD}")
        self.columns = self._names() if self.there else []

    def _names(self) -> list[tuple[str, str]]:
        path = self._checked(COLUMNS)
        try:
            return [(column["name"], column["kind"]) for column in json.loads(path.read_bytes())]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise IndexFolderError(f"{path}: damaged ({error}); {REBUILD}") from error

    def get(self, row: int) -> Attributes | None:
        """The attributes of one document as they were given."""
        if self._texts is None:
            return None
        try:
            found: dict[str, Any] = json.loads(self._texts.get(row))
        except ValueError as error:
            raise IndexFolderError(f"{self._texts.path}: row {row} is damaged ({error}); {REBUILD}") from error
        return found or None

    def mask(self, asked: Filter) -> Mask:
        """Which documents pass, by row."""
        return self._evaluate(asked)

    def passing(self, asked: Filter, order: npt.NDArray[Any] | None) -> Bits:
        """Which places pass, a bit each; `order` says which row stands at a place.

        The last few answers are kept: filters come again, and reading columns takes longer than a search does.
        """
        name = repr(asked)  # as keys, filters for 1 and for True would be one
        if (known := self._passing.get(name)) is not None:
            return known
        mask = self.mask(asked)
        found = np.packbits(mask if order is None else mask.take(order), bitorder="little")
        self._passing[name] = found
        while len(self._passing) > KEPT_FILTERS:
            self._passing.popitem(last=False)
        return found

    def close(self) -> None:
        if self._texts is not None:
            self._texts.close()

    def _evaluate(self, asked: Filter) -> Mask:
        if isinstance(asked, Test):
            none = np.zeros(self.count, dtype=bool)
            named = [number for number, (name, _) in enumerate(self.columns) if name == asked.name]
            return reduce(np.logical_or, (self._test(number, asked) for number in named), none)
        if isinstance(asked, Not):
            return ~self._evaluate(asked.part)
        combine = np.logical_and if isinstance(asked, All) else np.logical_or
        return reduce(combine, [self._evaluate(part) for part in asked.parts])

    def _test(self, number: int, test: Test) -> Mask:
        of = self.columns[number][1]
        if of == "word":
            return self._test_words(number, test)
        wanted = "number" if of == "whole" else of
        values = self._array(f"column.{number}.values.npy", DTYPES[of])
        if len(values) != self.count:
            raise IndexFolderError(f"{self.folder}: column {number} of another length; {REBUILD}")
        there: Mask = ~np.isnan(values) if of == "number" else values != ABSENT[of]
        if test.any:
            same = [value for value in test.any if kind(value) == wanted]
            equal: Mask = reduce(np.logical_or, (_equal(values, value) for value in same), np.zeros(self.count, bool))
            return there & equal
        if wanted == "truth" or any(kind(bound) != wanted for _, bound in test.bounds):
            return np.zeros(self.count, dtype=bool)
        return reduce(np.logical_and, (_within(values, key, bound) for key, bound in test.bounds), there)

    def _test_words(self, number: int, test: Test) -> Mask:
        words = _Words(Lines(self.folder, f"column.{number}.words", self._checked))
        mask, hits = np.zeros(self.count, dtype=bool), []
        codes = self._array(f"column.{number}.codes.npy", np.dtype("<u4"))
        if test.any:
            hits = [codes == place for word in test.any if (place := words.find(word)) is not None]
        elif all(isinstance(bound, str) for _, bound in test.bounds):
            low, high = words.between(test.bounds)
            hits = [(codes >= low) & (codes < high)]
        rows = self._array(f"column.{number}.rows.npy", np.dtype("<i8"))
        for hit in hits:
            mask[rows[hit]] = True
        return mask

    def _open_array(self, name: str, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """A file of a column, mapped once: mapping it takes as long as comparing it."""
        path = self._checked(name)
        shape, start = read_npy_header(path, dtype, dimensions=1)
        mapped: npt.NDArray[Any] = np.memmap(path, dtype=dtype, mode="r", offset=start, shape=shape)
        return mapped.view(np.ndarray)

    def _check(self, name: str) -> Path:
        check_content(self.folder, self.manifest, name)
        return self.folder / name


class _Words:
    """A sorted dictionary on disk."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, place: int) -> str:
        return str(json.loads(self.lines.get(place)))

    def find(self, word: Scalar) -> int | None:
        if not isinstance(word, str):
            return None
        place = bisect.bisect_left(self, word)
        return place if place < len(self) and self[place] == word else None

    def between(self, bounds: tuple[tuple[str, Any], ...]) -> tuple[int, int]:
        low, high = 0, len(self)
        for key, bound in bounds:
            side = bisect.bisect_left if key in ("gte", "lt") else bisect.bisect_right
            place = side(self, bound)
            low, high = (max(low, place), high) if key in ("gt", "gte") else (low, min(high, place))
        return low, high


def _equal(values: npt.NDArray[Any], wanted: Scalar) -> Mask:
    found: Mask = values == wanted
    return found


def _within(values: npt.NDArray[Any], key: str, bound: Scalar) -> Mask:
    compare: Callable[[Any, Any], Any] = RANGES[key]
    found: Mask = compare(values, bound)
    return found
