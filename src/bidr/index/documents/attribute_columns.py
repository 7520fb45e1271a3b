"""Attributes of documents as columns on disk: a filter reads the columns that it names, and nothing else.

attributes.json             the columns: names, kinds, files
attributes.blob, .offsets   the attributes of each document as they were given
column.0.values.npy         numbers (NaN: none) or truth values (-1: none), one a document
column.0.codes.npy, .rows   words: numbers into the column's sorted dictionary, and whose they are
column.0.words.blob, .offsets  the dictionary
"""

import bisect
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bidr.data.types import Attributes
from bidr.errors import REBUILD, IndexFolderError, to_short_json
from bidr.index.documents.lru_cache import LruCache
from bidr.index.documents.string_file import StringStore
from bidr.index.filters.bitmap_kernels import (
    WORD_BITS,
    Bitmask,
    allocate_bitmask,
    check_row_order,
    map_to_positions,
    map_to_rows,
)
from bidr.index.filters.filter_expression import And, Condition, Filter, Not, Scalar, get_kind
from bidr.index.filters.value_masks import mark_float_range, mark_floats, mark_int_range, mark_ints
from bidr.index.storage.manifest import UNREADABLE, HasFiles, check_content
from bidr.index.storage.verified_mmap import CheckedArray
from bidr.utils.deadline import check_deadline

Mask = npt.NDArray[np.bool_]
Bits = npt.NDArray[np.uint8]
ATTRIBUTES = "attributes"
COLUMNS = "attributes.json"
DTYPES: dict[str, np.dtype[Any]] = {"number": np.dtype("<f8"), "whole": np.dtype("<i8"), "truth": np.dtype("|i1")}
ABSENT: dict[str, float] = {"number": np.nan, "whole": np.iinfo(np.int64).min, "truth": -1}
KEPT_BYTES = 64 << 20


class AttributeColumns:
    """The attributes of a segment. A column's bytes are checked when a filter first asks for it."""

    def __init__(self, folder: Path, manifest: HasFiles, count: int) -> None:
        self.folder, self.manifest, self.count = folder, manifest, count
        self._passing = LruCache(KEPT_BYTES)
        self._opened, self._once_each = cache(self._open_array), cache(self._check_rows)
        self._dictionaries = dict[int, _Words]()
        self._order: npt.NDArray[Any] | None = None
        """The order that was last checked."""
        self.there = COLUMNS in manifest.files
        self._texts = StringStore(folder, ATTRIBUTES, manifest) if self.there else None
        if self._texts is not None and len(self._texts) != count:
            raise IndexFolderError(f"{self._texts.path}: {len(self._texts):,} rows, expected {count:,}; {REBUILD}")
        self.columns = self._names() if self.there else []

    def _names(self) -> list[tuple[str, str]]:
        path = self.folder / COLUMNS
        check_content(self.folder, self.manifest, COLUMNS)
        try:
            columns = [(column["name"], column["kind"]) for column in json.loads(path.read_bytes())]
        except (OSError, *UNREADABLE) as error:
            raise IndexFolderError(f"{path}: damaged ({error}); {REBUILD}") from error
        for name, of in columns:
            if not (isinstance(name, str) and isinstance(of, str) and of in (*DTYPES, "word")):
                raise IndexFolderError(
                    f"{path}: a column {to_short_json([name, of])}, expected a name and a kind; {REBUILD}"
                )
        return columns

    def get(self, row: int) -> Attributes | None:
        """The attributes of one document as they were given."""
        if self._texts is None:
            return None
        try:
            found: dict[str, Any] = json.loads(self._texts.get(row))
            if not isinstance(found, dict):
                raise ValueError(f"{to_short_json(found)}, expected values by name")
        except (ValueError, RecursionError) as error:
            raise IndexFolderError(f"{self._texts.path}: row {row} is damaged ({error}); {REBUILD}") from error
        return found or None

    def mask(self, asked: Filter) -> Mask:
        """Which documents pass, by row."""
        return np.unpackbits(_as_bytes(self._evaluate(asked)), count=self.count, bitorder="little").view(np.bool_)

    def build_bitmap(self, asked: Filter, order: npt.NDArray[Any] | None) -> Bits:
        """Which places pass, a bit each; `order` says which row stands at a place.

        The last answers are kept: filters come again, and looking through columns takes a third of a search.
        """
        name = repr(asked)  # as keys, filters for 1 and for True would be one
        if (known := self._passing.get(name)) is not None:
            return known
        found = _as_bytes(self._by_place(self._evaluate(asked), order))[: -(-self.count // 8)]
        self._passing.put(name, found)
        return found

    def close(self) -> None:
        if self._texts is not None:
            self._texts.close()
        for words in self._dictionaries.values():
            words.lines.close()
        # These hold on to this object, as it does to them: what they have mapped is let go now, not by some collection.
        for kept in (self._once_each, self._opened):
            kept.cache_clear()
        self._passing.clear()
        self._order = None

    def _by_place(self, words: Bitmask, order: npt.NDArray[Any] | None) -> Bitmask:
        """The bits of rows where these stand; none is set beyond the last place."""
        if order is None:
            if self.count % WORD_BITS:
                words[-1] &= (1 << self.count % WORD_BITS) - 1
            return words
        if order is not self._order:
            unsigned = order.view(f"u{order.itemsize}")  # what is below 0 is then far above
            if len(order) != self.count or unsigned.max() >= self.count:
                raise IndexFolderError(f"{self.folder}: the order of documents names rows not there; {REBUILD}")
            self._order = order
        found = allocate_bitmask(self.count)
        map_to_positions(words, order, found)
        return found

    def _evaluate(self, asked: Filter) -> Bitmask:
        """Which rows pass; bits beyond the last row mean nothing."""
        check_deadline()
        if isinstance(asked, Condition):
            words = allocate_bitmask(self.count)
            for number, (name, of) in enumerate(self.columns):
                if name == asked.name and of == "word":
                    self._mark_words(number, asked, words)
                elif name == asked.name:
                    self._mark_values(number, of, asked, words)
            return words
        if isinstance(asked, Not):
            words = self._evaluate(asked.part)
            return np.invert(words, out=words)
        combine, (first, *rest) = np.bitwise_and if isinstance(asked, And) else np.bitwise_or, asked.parts
        words = self._evaluate(first)
        for part in rest:
            combine(words, self._evaluate(part), out=words)
        return words

    def _mark_values(self, number: int, of: str, test: Condition, words: Bitmask) -> None:
        """Set the bits of rows that pass one condition by one column of numbers or truth values."""
        wanted = "number" if of == "whole" else of
        values = self._array(f"column.{number}.values.npy", DTYPES[of])
        if len(values) != self.count:
            raise IndexFolderError(f"{self.folder}: column {number} of another length; {REBUILD}")
        if test.any:
            mark_any = mark_floats if of == "number" else mark_ints
            numbers = [each for each in test.any if get_kind(each) == wanted and not isinstance(each, str)]
            mark_any(values, numbers, words)
        elif wanted == "number" and all(get_kind(bound) == wanted for _, bound in test.bounds):
            mark_range = mark_float_range if of == "number" else mark_int_range
            mark_range(values, test.bounds, words)

    def _mark_words(self, number: int, test: Condition, words: Bitmask) -> None:
        """The same by a column of words."""
        dictionary, once_each, rows = self._dictionary(number), self._once_each(number), self._rows(number)
        codes = self._array(f"column.{number}.codes.npy", np.dtype("<u4"))
        if len(codes) != len(rows):
            raise IndexFolderError(f"{self.folder}: column {number} of another length; {REBUILD}")
        bits = words if once_each else allocate_bitmask(len(codes))
        if test.any:
            places = [place for word in test.any if (place := dictionary.find(word)) is not None]
            mark_ints(codes, places, bits)
        elif all(isinstance(bound, str) for _, bound in test.bounds):
            low, high = dictionary.between(test.bounds)
            mark_int_range(codes, (("gte", low), ("lt", high)), bits)
        if not once_each:
            map_to_rows(bits, rows, words)

    def _rows(self, number: int) -> npt.NDArray[Any]:
        """Whose the words of a column are."""
        return self._array(f"column.{number}.rows.npy", np.dtype("<i8"))

    def _check_rows(self, number: int) -> bool:
        """Whether every document has a word of a column, one alone."""
        right, once_each = check_row_order(self._rows(number), self.count)
        if not right:
            raise IndexFolderError(f"{self.folder}: column {number} names rows that are not there; {REBUILD}")
        return once_each

    def _dictionary(self, number: int) -> "_Words":
        """Opened once: that takes longer than finding a word in it."""
        if (known := self._dictionaries.get(number)) is not None:
            return known
        opened = _Words(StringStore(self.folder, f"column.{number}.words", self.manifest, whole=True))
        return self._dictionaries.setdefault(number, opened)

    def _array(self, name: str, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        return self._opened(name, dtype).whole()

    def _open_array(self, name: str, dtype: np.dtype[Any]) -> CheckedArray:
        """A file of a column, mapped once: mapping it takes as long as comparing it."""
        return CheckedArray(self.folder, name, dtype, self.manifest, whole=True)


class _Words:
    """A sorted dictionary on disk."""

    def __init__(self, lines: StringStore) -> None:
        self.lines = lines

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, place: int) -> str:
        try:
            text = str(self.lines.get(place), "ascii")
            # Most need no parsing, the longest part of a look.
            return str(json.loads(text)) if "\\" in text else text[1:-1]
        except (ValueError, RecursionError) as error:
            raise IndexFolderError(f"{self.lines.path}: word {place} is damaged ({error}); {REBUILD}") from error

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


def _as_bytes(words: Bitmask) -> Bits:
    return words.astype("<u4", copy=False).view(np.uint8)
