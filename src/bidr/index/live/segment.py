"""Segments of an open index: an immutable index reader and the deleted rows of one state."""

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from bidr.data.types import Attributes, Document
from bidr.errors import REBUILD, IndexFolderError
from bidr.index.documents.lru_cache import LruCache
from bidr.index.filters.filter_expression import Filter
from bidr.index.filters.schema import SchemaBuilder
from bidr.index.live.attribute_overlay import AttributeOverlay, list_names, match_changes, set_bits
from bidr.index.live.memtable import Mask
from bidr.index.reader import IndexReader
from bidr.index.storage.live_state import SegmentEntry
from bidr.index.storage.manifest import HasFiles, check_content
from bidr.index.vectors import VectorMemory
from bidr.utils.array_types import Bitmap, Codes, Floats, Rows

CACHE_BYTES = 16 << 20


class SegmentHandle:
    """Open files of a segment, shared by all states that list it; closed when the last view that uses it is gone."""

    def __init__(self, entry: SegmentEntry, reader: IndexReader) -> None:
        self.entry, self.reader = entry, reader

    @classmethod
    def open(cls, folder: Path, entry: SegmentEntry, ef: int | None = None, memory: VectorMemory | None = None) -> Self:
        reader = IndexReader.open_segment(folder, entry.name, entry.xxh3, ef, memory or VectorMemory())
        handle = cls(entry, reader)
        weakref.finalize(handle, reader.close)
        if reader.count != entry.count:
            raise IndexFolderError(
                f"{folder / entry.name}: {reader.count} documents, expected {entry.count} according to the state"
            )
        return handle


@dataclass(frozen=True)
class Segment:
    """A segment in one state of the index.

    start:   first row and position of the segment in the index.
    deleted: deleted rows, one bit per row; None: no row is deleted.
    overlay: attributes that were changed before this state was written.
    changes: attributes by row that the log changes.
    """

    handle: SegmentHandle
    start: int
    deleted: Bitmap | None
    overlay: AttributeOverlay | None = None
    changes: Mapping[int, Attributes | None] = field(default_factory=dict)

    @property
    def reader(self) -> IndexReader:
        return self.handle.reader

    @property
    def entry(self) -> SegmentEntry:
        return self.handle.entry

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def count(self) -> int:
        return self.entry.count

    @cached_property
    def deleted_count(self) -> int:
        return 0 if self.deleted is None else count_bits(self.deleted)

    @property
    def alive_count(self) -> int:
        return self.count - self.deleted_count

    @property
    def deleted_bytes(self) -> int:
        """RAM of the deleted rows: a bit by row, and a bit by position."""
        return 0 if self.deleted is None else 2 * self.deleted.nbytes

    def is_deleted(self, row: int) -> bool:
        return self.deleted is not None and bool(self.deleted[row >> 3] >> (row & 7) & 1)

    @property
    def order(self) -> Rows | None:
        """Row of each position; None: positions are rows."""
        return self.reader.order

    def get_rows(self, positions: Rows) -> Rows:
        """Map positions to rows, both within the segment."""
        return self.reader.rows_of(positions)

    def get_record(self, row: int) -> Document:
        """Return a document with id and attributes, and with text if texts are stored."""
        return self.get_document(row) or Document(self.reader.documents.id(row), "", "", self.get_attributes(row))

    def get_document(self, row: int) -> Document | None:
        """Return a document with its text; None if no text is stored."""
        document = self.reader.documents.document(row)
        if document is None or not self.has_changes:
            return document
        return document._replace(attributes=self.get_attributes(row))

    @property
    def has_changes(self) -> bool:
        """Whether attributes were changed."""
        return self.overlay is not None or bool(self.changes)

    def get_attributes(self, row: int) -> Attributes | None:
        """Return the attributes of a document."""
        if row in self.changes:
            return self.changes[row]
        place = None if self.overlay is None else self.overlay.find(row)
        if self.overlay is not None and place is not None:
            return self.overlay.columns.get(place)
        return self.reader.documents.columns.get(row)

    def list_changed_rows(self) -> Rows:
        """Return the rows with changed attributes that are not deleted, ascending."""
        rows = np.fromiter(self.changes, dtype=np.int64, count=len(self.changes))
        rows = np.unique(rows if self.overlay is None else np.concatenate([rows, self.overlay.rows]))
        alive = self.get_alive_rows()
        return rows if alive is None else rows[alive[rows]]

    def list_attribute_names(self) -> set[str]:
        """Return the names of all attributes, also of deleted documents."""
        overlays = () if self.overlay is None else self.overlay.columns.columns
        return {name for name, _ in (*self.reader.documents.columns.columns, *overlays)} | list_names(
            self.changes.values()
        )

    def add_to_schema(self, builder: SchemaBuilder) -> None:
        """Add the attributes of the alive documents to a schema."""
        alive, overlay = self.get_alive_rows(), self.overlay
        if not self.has_changes:
            builder.add_columns(self.reader.documents.columns, alive)
            return
        is_current = np.ones(self.count, dtype=bool) if alive is None else alive
        builder.add_documents(attributes for row, attributes in self.changes.items() if is_current[row])
        is_current[np.fromiter(self.changes, dtype=np.int64, count=len(self.changes))] = False
        if overlay is not None:
            builder.add_columns(overlay.columns, is_current[overlay.rows])
            is_current[overlay.rows] = False
        builder.add_columns(self.reader.documents.columns, is_current)

    def get_alive_rows(self) -> Mask | None:
        """Mask of the rows that are not deleted; None: all."""
        return None if self.deleted is None else ~unpack_bits(self.deleted, self.count)

    def get_codes(self, positions: Rows) -> Codes:
        """Copy the codes at positions, one codeword number per byte."""
        return self.reader.candidates.unpack_codes(positions)

    @cached_property
    def _alive_positions(self) -> Bitmap | None:
        if self.deleted is None:
            return None
        order = self.order
        return ~(self.deleted if order is None else pack_bits(unpack_bits(self.deleted, self.count)[order]))

    def get_bitmap(self, condition: Filter | None) -> Bitmap | None:
        """Bitmap of alive positions that match a filter; None: all. Bits past the last position are undefined."""
        alive = self._alive_positions
        if condition is None:
            return alive
        matching = self._match(condition, self.order)
        return matching if alive is None else matching & alive

    def get_row_bitmap(self, condition: Filter | None) -> Bitmap | None:
        """Like `get_bitmap`, by row."""
        alive = None if self.deleted is None else ~self.deleted
        if condition is None:
            return alive
        matching = self._match(condition, None)
        return matching if alive is None else matching & alive

    def _match(self, condition: Filter, order: Any) -> Bitmap:
        """Bitmap of the rows, or of the positions by `order`, that match a filter."""
        columns = self.reader.documents.columns
        if not self.has_changes:
            return columns.build_bitmap(condition, order)
        key = f"{'rows' if order is None else 'positions'} {condition!r}"
        if (cached := self._bitmaps.get(key)) is not None:
            return cached
        bitmask = columns.evaluate(condition)
        if self.overlay is not None:
            set_bits(bitmask, self.overlay.rows, self.overlay.columns.build_mask(condition))
        set_bits(bitmask, *match_changes(self.changes, condition))
        bitmap = columns.map_to_positions(bitmask, order)
        self._bitmaps.put(key, bitmap)
        return bitmap

    @cached_property
    def _bitmaps(self) -> LruCache:
        """Bitmaps of filters over changed attributes; those of the columns would not be valid."""
        return LruCache(CACHE_BYTES)

    def get_mask(self, condition: Filter | None) -> Mask | None:
        """Like `get_bitmap`, as an array of bool."""
        bits = self.get_bitmap(condition)
        return None if bits is None else unpack_bits(bits, self.count)

    def search(
        self, queries: Floats, k: int, ef: int | None, allowed: Bitmap | None, allowed_count: int
    ) -> tuple[Floats, Rows]:
        """Return scores and positions of the best `k` of the `allowed_count` allowed positions, or fewer."""
        return self.reader.candidates.search(queries, min(k, allowed_count), ef, allowed=allowed)

    def change_attributes(self, changes: Mapping[int, Attributes | None]) -> "Segment":
        """Return the segment with new attributes of some rows."""
        return replace(self, changes={**self.changes, **changes})

    def delete_rows(self, rows: Iterable[int]) -> "Segment":
        """Return the segment with more rows deleted."""
        deleted = np.zeros(-(-self.count // 8), dtype=np.uint8) if self.deleted is None else self.deleted.copy()
        numbers = np.fromiter(rows, dtype=np.int64)
        np.bitwise_or.at(deleted, numbers >> 3, np.left_shift(1, numbers & 7).astype(np.uint8))
        return replace(self, deleted=deleted)


def pack_bits(mask: Mask) -> Bitmap:
    """Pack a mask into a bitmap, lowest bit first."""
    return np.packbits(mask, bitorder="little")


def unpack_bits(bits: Bitmap, count: int) -> Mask:
    """Unpack the first `count` bits of a bitmap."""
    return np.unpackbits(bits, count=count, bitorder="little").view(np.bool_)


def count_bits(bits: Bitmap, count: int | None = None) -> int:
    """Count the bits that are set, among the first `count` if given."""
    total = int(np.bitwise_count(bits).sum(dtype=np.int64))
    if count is not None and count % 8:
        total -= int(bits[-1] >> count % 8).bit_count()
    return total


def read_tombstones(state: Path, files: HasFiles, entry: SegmentEntry) -> Bitmap | None:
    """Read and verify the deleted rows of a segment."""
    if not entry.deleted:
        return None
    check_content(state, files, entry.tombstones)
    bits = np.fromfile(state / entry.tombstones, dtype=np.uint8)
    is_valid = len(bits) == -(-entry.count // 8) and count_bits(bits) == count_bits(bits, entry.count)
    if not is_valid or count_bits(bits) != entry.deleted:
        raise IndexFolderError(f"{state / entry.tombstones}: not the expected {entry.deleted:,} rows; {REBUILD}")
    return bits
