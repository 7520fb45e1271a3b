"""Read attributes as columns on disk; a filter reads only the columns that it names.

attributes.json             the columns: names, kinds, files
attributes.blob, .offsets   the attributes of each document as JSON
column.0.values.npy         numbers (NaN: absent) or booleans (-1: absent), one per document
column.0.codes.npy, .rows   strings: codes into the sorted dictionary of the column, and their rows
column.0.bitmask.blob, .offsets  the dictionary
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
from bidr.index.documents.string_store import StringStore
from bidr.index.filters.bitmask import (
    WORD_BITS,
    Bitmask,
    allocate_bitmask,
    check_row_order,
    map_to_positions,
    map_to_rows,
    mark_by_table,
    mark_float_range,
    mark_floats,
    mark_int_range,
    mark_ints,
)
from bidr.index.filters.filter_expression import (
    And,
    Condition,
    Exists,
    Filter,
    Leaf,
    Not,
    Prefix,
    Scalar,
    TimeRange,
    get_kind,
)
from bidr.index.filters.iso_time import parse_quoted_times
from bidr.index.storage.checksums import VerifiedArray
from bidr.index.storage.manifest import PARSE_ERRORS, HasFiles, check_content
from bidr.utils.deadline import check_deadline

Mask = npt.NDArray[np.bool_]
Bits = npt.NDArray[np.uint8]
ATTRIBUTES = "attributes"
COLUMNS = "attributes.json"
DTYPES: dict[str, np.dtype[Any]] = {"number": np.dtype("<f8"), "whole": np.dtype("<i8"), "truth": np.dtype("|i1")}
ABSENT: dict[str, float] = {"number": np.nan, "whole": np.iinfo(np.int64).min, "truth": -1}
CACHE_BYTES = 64 << 20


class AttributeColumns:
    """The attributes of a segment. The checksum of a column is verified when a filter first reads it."""

    @property
    def cached_bytes(self) -> int:
        """Bytes of the bitmaps that earlier filters left in memory."""
        return self._bitmaps.bytes

    def __init__(self, folder: Path, manifest: HasFiles, count: int, prefix: str = "") -> None:
        """`prefix`: of all file names. Files with one are verified as a whole, as they have no block checksums."""
        self.folder, self.manifest, self.count, self._prefix = folder, manifest, count, prefix
        self._bitmaps = LruCache(CACHE_BYTES)
        self._opened, self._is_one_per_row = cache(self._map_array), cache(self._check_rows)
        self._dictionaries = dict[int, _Dictionary]()
        self._order: npt.NDArray[Any] | None = None
        """The order that was checked last."""
        self.exists, self._texts = prefix + COLUMNS in manifest.files, None
        if self.exists:
            self._texts = StringStore(folder, prefix + ATTRIBUTES, manifest, verify_whole_file=bool(prefix))
        if self._texts is not None and len(self._texts) != count:
            raise IndexFolderError(f"{self._texts.path}: {len(self._texts):,} rows, expected {count:,}; {REBUILD}")
        self.columns = self._load_columns() if self.exists else []

    def _load_columns(self) -> list[tuple[str, str]]:
        path = self.folder / (self._prefix + COLUMNS)
        check_content(self.folder, self.manifest, path.name)
        try:
            columns = [(column["name"], column["kind"]) for column in json.loads(path.read_bytes())]
        except (OSError, *PARSE_ERRORS) as error:
            raise IndexFolderError(f"{path}: damaged ({error}); {REBUILD}") from error
        for name, kind in columns:
            if not (isinstance(name, str) and isinstance(kind, str) and kind in (*DTYPES, "word")):
                raise IndexFolderError(
                    f"{path}: a column {to_short_json([name, kind])}, expected a name and a kind; {REBUILD}"
                )
        return columns

    def get(self, row: int) -> Attributes | None:
        """Read the attributes of one document."""
        if self._texts is None:
            return None
        try:
            attributes: dict[str, Any] = json.loads(self._texts.get(row))
            if not isinstance(attributes, dict):
                raise ValueError(f"{to_short_json(attributes)}, expected values by name")
        except (ValueError, RecursionError) as error:
            raise IndexFolderError(f"{self._texts.path}: row {row} is damaged ({error}); {REBUILD}") from error
        return attributes or None

    def build_mask(self, expression: Filter) -> Mask:
        """Return which rows match a filter."""
        return np.unpackbits(_as_bytes(self.evaluate(expression)), count=self.count, bitorder="little").view(np.bool_)

    def build_bitmap(self, expression: Filter, order: npt.NDArray[Any] | None) -> Bits:
        """Return one bit per position: set where the row at this position matches.

        The last bitmaps are cached: filters repeat, and scanning the columns takes a third of a search.

        Args:
            order: the row of each position; None: rows are positions.
        """
        # As keys of a dict, filters for 1 and for True would be equal.
        key = f"{'rows' if order is None else 'positions'} {expression!r}"
        if (cached := self._bitmaps.get(key)) is not None:
            return cached
        bitmap = self.map_to_positions(self.evaluate(expression), order)
        self._bitmaps.put(key, bitmap)
        return bitmap

    def close(self) -> None:
        if self._texts is not None:
            self._texts.close()
        for dictionary in self._dictionaries.values():
            dictionary.store.close()
        # The caches and this object refer to each other: unmap the files now, not in a garbage collection.
        for cached in (self._is_one_per_row, self._opened):
            cached.cache_clear()
        self._bitmaps.clear()
        self._order = None

    def map_to_positions(self, bitmask: Bitmask, order: npt.NDArray[Any] | None) -> Bits:
        """Move the bits of rows to their positions, with none set beyond the last position."""
        return _as_bytes(self._move_bits(bitmask, order))[: -(-self.count // 8)]

    def _move_bits(self, bitmask: Bitmask, order: npt.NDArray[Any] | None) -> Bitmask:
        if order is None:
            if self.count % WORD_BITS:
                bitmask[-1] &= (1 << self.count % WORD_BITS) - 1
            return bitmask
        if order is not self._order:
            unsigned = order.view(f"u{order.itemsize}")  # negative rows become large
            if len(order) != self.count or unsigned.max() >= self.count:
                raise IndexFolderError(f"{self.folder}: the order of documents names invalid rows; {REBUILD}")
            self._order = order
        by_position = allocate_bitmask(self.count)
        map_to_positions(bitmask, order, by_position)
        return by_position

    def evaluate(self, expression: Filter) -> Bitmask:
        """Return which rows match; bits beyond the last row are undefined."""
        check_deadline()
        if isinstance(expression, Leaf):
            bitmask = allocate_bitmask(self.count)
            for number, (name, kind) in enumerate(self.columns):
                if name == expression.name and kind == "word":
                    self._mark_strings(number, expression, bitmask)
                elif name == expression.name:
                    self._mark_values(number, kind, expression, bitmask)
            return bitmask
        if isinstance(expression, Not):
            bitmask = self.evaluate(expression.part)
            return np.invert(bitmask, out=bitmask)
        combine, (first, *rest) = np.bitwise_and if isinstance(expression, And) else np.bitwise_or, expression.parts
        bitmask = self.evaluate(first)
        for part in rest:
            combine(bitmask, self.evaluate(part), out=bitmask)
        return bitmask

    def _mark_values(self, number: int, kind: str, condition: Leaf, bitmask: Bitmask) -> None:
        """Set the bits of rows that match a condition on a column of numbers or booleans."""
        if isinstance(condition, Prefix | TimeRange):
            return
        value_kind, values = "number" if kind == "whole" else kind, self.load_values(number)
        if isinstance(condition, Exists):
            if kind == "number":
                mark_float_range(values, (), bitmask)
            else:
                mark_int_range(values, (("gte", 0),) if kind == "truth" else (), bitmask)
        elif condition.any:
            mark_equal = mark_floats if kind == "number" else mark_ints
            numbers = [value for value in condition.any if get_kind(value) == value_kind and not isinstance(value, str)]
            mark_equal(values, numbers, bitmask)
        elif value_kind == "number" and all(get_kind(bound) == value_kind for _, bound in condition.bounds):
            mark_between = mark_float_range if kind == "number" else mark_int_range
            mark_between(values, condition.bounds, bitmask)

    def _mark_strings(self, number: int, condition: Leaf, bitmask: Bitmask) -> None:
        """Set the bits of rows that match a condition on a column of strings."""
        rows, codes = self.load_rows(number), self.load_codes(number)
        is_one_per_row = self._is_one_per_row(number)
        bits = bitmask if is_one_per_row else allocate_bitmask(len(codes))
        dictionary = self._open_dictionary(number)
        if isinstance(condition, TimeRange):
            times = self.load_times(number)
            table = np.append((times >= condition.low) & (times <= condition.high), False)
            mark_by_table(codes, 0, table.view(np.uint8), bits)
        elif isinstance(condition, Condition) and condition.any:
            matching = [code for string in condition.any if (code := dictionary.find(string)) is not None]
            mark_ints(codes, matching, bits)
        else:
            low, high = 0, len(dictionary)
            if isinstance(condition, Prefix):
                low, high = dictionary.find_prefix(condition.prefix)
            elif isinstance(condition, Condition):
                is_range = all(isinstance(bound, str) for _, bound in condition.bounds)
                low, high = dictionary.find_range(condition.bounds) if is_range else (0, 0)
            mark_int_range(codes, (("gte", low), ("lt", high)), bits)
        if not is_one_per_row:
            map_to_rows(bits, rows, bitmask)

    def load_values(self, number: int) -> npt.NDArray[Any]:
        """Load a column of numbers or booleans."""
        values = self._load_array(f"{self._prefix}column.{number}.values.npy", DTYPES[self.columns[number][1]])
        if len(values) != self.count:
            raise IndexFolderError(f"{self.folder}: column {number} has the wrong length; {REBUILD}")
        return values

    def count_strings(self, number: int) -> int:
        """Return the number of distinct strings of a column."""
        return len(self._open_dictionary(number))

    def get_string(self, number: int, code: int) -> str:
        """Read a string by its code."""
        return self._open_dictionary(number)[code]

    def load_codes(self, number: int) -> npt.NDArray[Any]:
        """Load the dictionary code of each value of a string column."""
        codes = self._load_array(f"{self._prefix}column.{number}.codes.npy", np.dtype("<u4"))
        if len(codes) != len(self.load_rows(number)):
            raise IndexFolderError(f"{self.folder}: column {number} has the wrong length; {REBUILD}")
        return codes

    def load_times(self, number: int) -> npt.NDArray[np.int64]:
        """Parse the strings of a dictionary as times (NO_TIME: none); kept with the bitmaps, within their limit."""
        key = f"times of column {number}"  # no filter has such a representation
        if (cached := self._bitmaps.get(key)) is not None:
            return cached
        store = self._open_dictionary(number).store
        blob, offsets = store.load_all()
        times = np.empty(len(store), dtype=np.int64)
        if not parse_quoted_times(blob, offsets, times):
            raise IndexFolderError(f"{store.path}: its offsets are damaged; {REBUILD}")
        self._bitmaps.put(key, times)
        return times

    def load_rows(self, number: int) -> npt.NDArray[Any]:
        """Load the row of each value of a string column, which must be valid."""
        self._is_one_per_row(number)
        return self._map_rows(number)

    def _map_rows(self, number: int) -> npt.NDArray[Any]:
        return self._load_array(f"{self._prefix}column.{number}.rows.npy", np.dtype("<i8"))

    def _check_rows(self, number: int) -> bool:
        """Return whether every document has exactly one value in a string column; refuse invalid rows."""
        is_valid, is_one_per_row = check_row_order(self._map_rows(number), self.count)
        if not is_valid:
            raise IndexFolderError(f"{self.folder}: column {number} names invalid rows; {REBUILD}")
        return is_one_per_row

    def _open_dictionary(self, number: int) -> "_Dictionary":
        """Open a dictionary once: opening takes longer than a lookup."""
        if (opened := self._dictionaries.get(number)) is not None:
            return opened
        opened = _Dictionary(
            StringStore(self.folder, f"{self._prefix}column.{number}.words", self.manifest, verify_whole_file=True)
        )
        return self._dictionaries.setdefault(number, opened)

    def _load_array(self, name: str, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        return self._opened(name, dtype).read_all()

    def _map_array(self, name: str, dtype: np.dtype[Any]) -> VerifiedArray:
        """Map a file of a column; cached, since mapping takes as long as comparing."""
        return VerifiedArray(self.folder, name, dtype, self.manifest, verify_whole_file=True)


class _Dictionary:
    """Sorted strings on disk."""

    def __init__(self, store: StringStore) -> None:
        self.store = store

    def __len__(self) -> int:
        return len(self.store)

    def __getitem__(self, code: int) -> str:
        try:
            text = str(self.store.get(code), "ascii")
            # Parsing dominates a lookup; most strings need none.
            return str(json.loads(text)) if "\\" in text else text[1:-1]
        except (ValueError, RecursionError) as error:
            raise IndexFolderError(f"{self.store.path}: string {code} is damaged ({error}); {REBUILD}") from error

    def find(self, string: Scalar) -> int | None:
        if not isinstance(string, str):
            return None
        code = bisect.bisect_left(self, string)
        return code if code < len(self) and self[code] == string else None

    def find_prefix(self, prefix: str) -> tuple[int, int]:
        """Return the range of the strings that begin with a prefix."""
        low = bisect.bisect_left(self, prefix)
        return low, bisect.bisect_right(self, prefix, lo=low, key=lambda string: string[: len(prefix)])

    def find_range(self, bounds: tuple[tuple[str, Any], ...]) -> tuple[int, int]:
        low, high = 0, len(self)
        for key, bound in bounds:
            side = bisect.bisect_left if key in ("gte", "lt") else bisect.bisect_right
            code = side(self, bound)
            low, high = (max(low, code), high) if key in ("gt", "gte") else (low, min(high, code))
        return low, high


def _as_bytes(bitmask: Bitmask) -> Bits:
    return bitmask.astype("<u4", copy=False).view(np.uint8)
