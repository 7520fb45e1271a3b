"""The parts of a live index: segments on disk with their deleted rows, and what each contributes to an answer."""

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from bidr.data.types import Document
from bidr.errors import REBUILD, IndexFolderError
from bidr.index.filters.filter_expression import Filter
from bidr.index.live.memtable import Mask
from bidr.index.reader import IndexReader
from bidr.index.storage.live_state import Segment
from bidr.index.storage.manifest import HasFiles, check_content
from bidr.utils.array_types import Codes, Floats, Rows

Bits = npt.NDArray[np.uint8]


class OpenSegment:
    """A segment that is open. Its files are closed when the last view that uses it is gone."""

    def __init__(self, segment: Segment, reader: IndexReader) -> None:
        self.segment, self.reader = segment, reader

    @classmethod
    def open(cls, folder: Path, segment: Segment, ef: int | None = None) -> Self:
        reader = IndexReader.open_segment(folder, segment.name, segment.xxh3, ef)
        opened = cls(segment, reader)
        weakref.finalize(opened, reader.close)
        if reader.count != segment.count:
            raise IndexFolderError(f"{folder / segment.name}: {reader.count} documents, the state says {segment.count}")
        return opened

    @property
    def order(self) -> Rows | None:
        """The row of each place, where vectors and codes stand in another order than ids and texts."""
        return self.reader.order

    def rows(self, places: Rows) -> Rows:
        return self.reader.rows_of(places)

    def record(self, row: int) -> Document:
        """Everything that is known of a document; without text where it was given without."""
        known = self.reader.documents
        return known.document(row) or Document(known.id(row), "", "", known.columns.get(row))

    def codes(self, places: Rows) -> Codes:
        """The codes of some places, one number a byte: a copy."""
        return self.reader.candidates.unpack_codes(places)

    def passing(self, asked: Filter) -> Bits:
        """Which places pass a filter, a bit each."""
        return self.reader.documents.columns.build_bitmap(asked, self.order)


@dataclass(frozen=True)
class Part:
    """A segment in one state of the index: its documents are numbered from `start`, some of them are deleted."""

    open: OpenSegment
    start: int
    deleted: Bits | None
    """A bit for every row; None: no document of it is deleted."""

    @property
    def count(self) -> int:
        return self.open.segment.count

    @cached_property
    def gone(self) -> int:
        """How many are deleted."""
        return 0 if self.deleted is None else bits_set(self.deleted)

    @property
    def alive(self) -> int:
        return self.count - self.gone

    @property
    def deleted_bytes(self) -> int:
        """What the deleted rows take in RAM: a bit a row, and one a place that says whether it may be found."""
        return 0 if self.deleted is None else 2 * self.deleted.nbytes

    def is_deleted(self, row: int) -> bool:
        return self.deleted is not None and bool(self.deleted[row >> 3] >> (row & 7) & 1)

    @cached_property
    def _alive_places(self) -> Bits | None:
        if self.deleted is None:
            return None
        order = self.open.order
        return ~(self.deleted if order is None else pack(unpack(self.deleted, self.count)[order]))

    def passing(self, asked: Filter | None) -> Bits | None:
        """Which places may be found, a bit each; None: all. Bits beyond the last place mean nothing."""
        alive = self._alive_places
        if asked is None:
            return alive
        return self.open.passing(asked) if alive is None else self.open.passing(asked) & alive

    def allowed(self, asked: Filter | None) -> Mask | None:
        """The same, a truth value each."""
        bits = self.passing(asked)
        return None if bits is None else unpack(bits, self.count)

    def search(self, queries: Floats, k: int, ef: int | None, allowed: Bits | None, there: int) -> tuple[Floats, Rows]:
        """The best k or fewer of the allowed places, of which there are so many."""
        return self.open.reader.candidates.search(queries, min(k, there), ef, allowed=allowed)

    def after(self, rows: Iterable[int]) -> "Part":
        """The same with more of its rows deleted."""
        deleted = np.zeros(-(-self.count // 8), dtype=np.uint8) if self.deleted is None else self.deleted.copy()
        numbers = np.fromiter(rows, dtype=np.int64)
        np.bitwise_or.at(deleted, numbers >> 3, np.left_shift(1, numbers & 7).astype(np.uint8))
        return replace(self, deleted=deleted)


def pack(mask: Mask) -> Bits:
    """One bit a document, the first one lowest."""
    return np.packbits(mask, bitorder="little")


def unpack(bits: Bits, count: int) -> Mask:
    """A truth value a document."""
    return np.unpackbits(bits, count=count, bitorder="little").view(np.bool_)


def bits_set(bits: Bits, count: int | None = None) -> int:
    """How many bits are set, of all or of the first so many."""
    found = int(np.bitwise_count(bits).sum(dtype=np.int64))
    if count is not None and count % 8:
        found -= int(bits[-1] >> count % 8).bit_count()
    return found


def read_tombstones(state: Path, files: HasFiles, segment: Segment) -> Bits | None:
    """The deleted rows of a segment, every byte checked."""
    if not segment.deleted:
        return None
    check_content(state, files, segment.tombstones)
    bits = np.fromfile(state / segment.tombstones, dtype=np.uint8)
    right = len(bits) == -(-segment.count // 8) and bits_set(bits) == bits_set(bits, segment.count)
    if not right or bits_set(bits) != segment.deleted:
        raise IndexFolderError(f"{state / segment.tombstones}: not the {segment.deleted:,} rows expected; {REBUILD}")
    return bits
