"""Segments from what is alive in others and in the log, streamed: a row's number and place are held, not its codes."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bidr.data.types import Document
from bidr.errors import REBUILD, IndexFolderError
from bidr.index.builder.build import build_index
from bidr.index.builder.journal import WorkFolder
from bidr.index.code_packing import unpack
from bidr.index.engines.engine_files import CODES_FILE, open_array
from bidr.index.live.segment import Part
from bidr.index.live.segment import unpack as truths
from bidr.index.live.view import LiveView
from bidr.index.storage.commit import Begin
from bidr.index.storage.live_state import Segment
from bidr.index.storage.manifest import MANIFEST, check_content, checksum, file_checksum
from bidr.utils.array_types import Codes, Floats, Rows

PLACE = np.dtype(np.uint32)
Places = npt.NDArray[np.uint32]
Kept = Sequence[Places | Rows]
AT_ONCE = 1 << 16


class RowsOf:
    """The vectors of some places of several parts as an array to what takes slices."""

    ndim = 2
    dtype = np.dtype(np.float32)

    def __init__(self, view: LiveView, parts: list[Part], kept: Kept, stamp: str = "") -> None:
        self.view, self.stamp, self._kept = view, stamp, kept
        self._starts = np.array([part.start for part in parts])
        self._ends = np.cumsum([len(places) for places in kept])
        self.shape = (int(self._ends[-1]), view.vectors.dim)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, which: Any) -> Floats:
        rows = np.arange(*which.indices(len(self))) if isinstance(which, slice) else np.asarray(which)
        found, of = np.empty(len(rows), dtype=np.int64), np.searchsorted(self._ends, rows, side="right")
        for number in np.unique(of):
            mine = of == number
            first = self._ends[number] - len(self._kept[number])
            found[mine] = self._starts[number] + self._kept[number][rows[mine] - first]
        vectors = self.view.vectors.read(found)
        if not np.isfinite(vectors).all():
            raise IndexFolderError(f"{self.view.folder}: a vector holds a number that is not finite; {REBUILD}")
        return vectors


class CodesOf:
    """The codes of some places of several parts, read from their files, as an array to what takes slices."""

    ndim = 2
    dtype = np.dtype(np.uint8)

    def __init__(self, parts: list[Part], kept: Kept, stamp: str = "") -> None:
        self.stamp = stamp
        readers = [part.open.reader for part in parts]
        for reader in readers:  # once more: what is wrong now would be right in what is written
            check_content(reader.generation, reader.manifest, CODES_FILE)
        self._files = [open_array(reader.generation / CODES_FILE, self.dtype, 2) for reader in readers]
        self._kept, self._books = kept, readers[0].codebooks
        self._ends = np.cumsum([len(places) for places in kept])
        self.shape = (int(self._ends[-1]), self._books.books)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, which: Any) -> Codes:
        rows = np.arange(*which.indices(len(self))) if isinstance(which, slice) else np.asarray(which)
        found = np.empty((len(rows), self.shape[1]), dtype=np.uint8)
        of = np.searchsorted(self._ends, rows, side="right")
        for number in np.unique(of):
            mine = of == number
            first = self._ends[number] - len(self._kept[number])
            packed = self._files[number][self._kept[number][rows[mine] - first]]
            found[mine] = unpack(packed, self._books.books, self._books.bits)
        return found


def stamp_of_parts(parts: list[Part]) -> str:
    """Tells what is alive in some segments from anything else: they never change, but for what is deleted in them."""
    named = [(part.open.segment.name, part.open.segment.xxh3, _bits(part)) for part in parts]
    return checksum(json.dumps(named).encode())


def _bits(part: Part) -> str:
    return "" if part.deleted is None else checksum(part.deleted.tobytes())


def segment_of_parts(
    view: LiveView, parts: list[Part], begin: Begin, like: Part, work: WorkFolder | None = None
) -> Segment:
    """One segment of what is alive in several, with the engine (chosen anew, if it was) and the lists of another.

    work: where its steps are kept, so that one that was killed goes on.
    """
    kept, stamp = [alive_places(part) for part in parts], stamp_of_parts(parts)
    texts = any(part.open.reader.documents.has_text for part in parts)

    def documents() -> Iterator[Document]:
        for part, places in zip(parts, kept, strict=True):
            for at in range(0, len(places), AT_ONCE):
                rows = part.open.rows(places[at : at + AT_ONCE].astype(np.int64))
                yield from map(part.open.record, rows.tolist())

    path = build_index(
        view.folder,
        codebooks=view.codebooks,
        codes=CodesOf(parts, kept, stamp),  # type: ignore[arg-type]
        vectors=RowsOf(view, parts, kept, stamp),  # type: ignore[arg-type]
        **{"documents" if texts else "ids": documents()},  # type: ignore[arg-type]
        model=view.state.model,
        engine="auto" if like.open.reader.manifest.auto else like.open.reader.manifest.engine,
        lists=like.open.reader.learned_lists(),
        **_as_before(view),
        begin=begin,
        work=work,
        documents_stamp=[stamp, texts],
    )
    return written(path, sum(map(len, kept)))


def alive_places(part: Part) -> Places:
    """Where the documents of a part that can be found stand, 4 bytes each."""
    bits = part.passing(None)
    if bits is None:
        return np.arange(part.count, dtype=PLACE)
    found = np.empty(part.alive, dtype=PLACE)
    done = 0
    for start in range(0, part.count, AT_ONCE):  # of all at once it would take 9 bytes a document more
        some = min(AT_ONCE, part.count - start)
        places = np.flatnonzero(truths(bits[start // 8 : (start + some + 7) // 8], some))
        found[done : done + len(places)] = places + start
        done += len(places)
    return found


def segment_of_log(view: LiveView, begin: Begin) -> Segment:
    """One segment of what is alive in the log."""
    memory = view.memory
    rows = np.flatnonzero(memory.alive)
    documents = [memory.documents[row] for row in rows]
    path = build_index(
        view.folder,
        codebooks=view.codebooks,
        codes=memory.codes[rows],
        vectors=memory.vectors[rows],
        **{"documents" if memory.texts else "ids": documents},  # type: ignore[arg-type]
        model=view.state.model,
        engine="scan",
        **_as_before(view),
        begin=begin,
    )
    return written(path, len(rows))


def _as_before(view: LiveView) -> dict[str, Any]:
    """How the index was built, for segments to come."""
    first = view.parts[0].open.reader
    words = first.words.titles if first.words else None
    manifest = first.manifest
    cut = {} if manifest.dims is None else {"full_dim": manifest.dim, "code_error": manifest.code_error}
    return {"stored": first.vectors.kind, "unit": manifest.unit, "lexical": words, **cut}


def written(path: Path, count: int) -> Segment:
    """A segment as a state names it."""
    return Segment(path.name, file_checksum(path / MANIFEST), count)
