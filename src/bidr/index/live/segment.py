"""Segments of an open index: an immutable index reader and the deleted rows of one state."""

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np

from bidr.data.types import Document
from bidr.errors import REBUILD, IndexFolderError
from bidr.index.filters.filter_expression import Filter
from bidr.index.live.memtable import Mask
from bidr.index.reader import IndexReader
from bidr.index.storage.live_state import SegmentEntry
from bidr.index.storage.manifest import HasFiles, check_content
from bidr.index.vectors import VectorMemory
from bidr.utils.array_types import Bitmap, Codes, Floats, Rows


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
    """

    handle: SegmentHandle
    start: int
    deleted: Bitmap | None

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
        documents = self.reader.documents
        return documents.document(row) or Document(documents.id(row), "", "", documents.columns.get(row))

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
        matching = self.reader.documents.columns.build_bitmap(condition, self.order)
        return matching if alive is None else matching & alive

    def get_mask(self, condition: Filter | None) -> Mask | None:
        """Like `get_bitmap`, as an array of bool."""
        bits = self.get_bitmap(condition)
        return None if bits is None else unpack_bits(bits, self.count)

    def search(
        self, queries: Floats, k: int, ef: int | None, allowed: Bitmap | None, allowed_count: int
    ) -> tuple[Floats, Rows]:
        """Return scores and positions of the best `k` of the `allowed_count` allowed positions, or fewer."""
        return self.reader.candidates.search(queries, min(k, allowed_count), ef, allowed=allowed)

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
