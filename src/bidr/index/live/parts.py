"""The parts of a live index: segments on disk with their deleted rows, and what each contributes to an answer."""

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from bidr.codes.codebooks import Codes, Floats
from bidr.errors import IndexFolderError
from bidr.index.candidates import Rows
from bidr.index.filters import Filter
from bidr.index.folder import REBUILD, HasFiles, check_content
from bidr.index.live.memory import Mask
from bidr.index.reader import IndexReader
from bidr.index.state import Segment
from bidr.text.records import Document

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

    @cached_property
    def order(self) -> Rows | None:
        """The row of each place, where vectors and codes stand in another order than ids and texts."""
        return self.reader.order

    def rows(self, places: Rows) -> Rows:
        return places if self.order is None else np.asarray(self.order[places], dtype=np.int64)

    def record(self, row: int) -> Document:
        """Everything that is known of a document; without text where it was given without."""
        known = self.reader.documents
        return known.document(row) or Document(known.id(row), "", "", known.columns.get(row))

    @property
    def codes(self) -> Codes:
        """The codes of all places, one number a byte: a copy."""
        return self.reader.candidates.codes()

    def attributes_mask(self, asked: Filter) -> Mask:
        return self.reader.documents.columns.mask(asked)


@dataclass(frozen=True)
class Part:
    """A segment in one state of the index: its documents are numbered from `start`, some of them are deleted."""

    open: OpenSegment
    start: int
    deleted: Mask | None
    """By row; None: no document of it is."""

    @property
    def count(self) -> int:
        return self.open.segment.count

    @property
    def alive(self) -> int:
        return self.count if self.deleted is None else self.count - int(np.count_nonzero(self.deleted))

    def allowed(self, asked: Filter | None) -> Mask | None:
        """Which places may be found; None: all."""
        if asked is None and self.deleted is None:
            return None
        mask = ~self.deleted if self.deleted is not None else np.ones(self.count, dtype=bool)
        if asked is not None:
            mask &= self.open.attributes_mask(asked)
        return mask if self.open.order is None else np.asarray(mask[self.open.order])

    def search(self, queries: Floats, k: int, ef: int | None, allowed: Mask | None) -> tuple[Floats, Rows]:
        """The best k or fewer of the allowed places."""
        engine = self.open.reader.candidates
        if allowed is None:
            return engine.search(queries, min(k, self.count), ef)
        return engine.search(queries, min(k, int(np.count_nonzero(allowed))), ef, allowed=pack(allowed))

    def after(self, rows: Iterable[int]) -> "Part":
        """The same with more of its rows deleted."""
        deleted = np.zeros(self.count, dtype=bool) if self.deleted is None else self.deleted.copy()
        deleted[list(rows)] = True
        return replace(self, deleted=deleted)


def pack(mask: Mask) -> Bits:
    """One bit a document, the first one lowest, as Faiss reads them."""
    return np.packbits(mask, bitorder="little")


def read_tombstones(state: Path, files: HasFiles, segment: Segment) -> Mask | None:
    """The deleted rows of a segment, every byte checked."""
    if not segment.deleted:
        return None
    check_content(state, files, segment.tombstones)
    bits = np.fromfile(state / segment.tombstones, dtype=np.uint8)
    mask = np.unpackbits(bits, count=segment.count, bitorder="little").astype(bool)
    if np.count_nonzero(mask) != segment.deleted:
        raise IndexFolderError(f"{state / segment.tombstones}: not the {segment.deleted:,} rows expected; {REBUILD}")
    return mask
