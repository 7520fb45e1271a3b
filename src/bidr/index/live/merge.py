"""Segments from what is alive in others and in the log, streamed: a row's number and place are held, not its codes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bidr.codes.codebooks import Codes, Floats
from bidr.index.build import build_index
from bidr.index.candidates import Rows
from bidr.index.engines.files import CODES_FILE, open_array
from bidr.index.faissfile import unpack
from bidr.index.folder import MANIFEST, check_content, file_checksum
from bidr.index.generation import Begin
from bidr.index.live.parts import Part
from bidr.index.live.view import LiveView
from bidr.index.state import Segment
from bidr.text.records import Document


class RowsOf:
    """Some rows of a view's vectors as an array to what takes slices."""

    ndim = 2
    dtype = np.dtype(np.float32)

    def __init__(self, view: LiveView, rows: Rows) -> None:
        self.view, self.rows = view, rows
        self.shape = (len(rows), view.vectors.dim)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, which: Any) -> Floats:
        return self.view.vectors.read(self.rows[which])


class CodesOf:
    """The codes of some places of several parts, read from their files, as an array to what takes slices."""

    ndim = 2
    dtype = np.dtype(np.uint8)

    def __init__(self, parts: list[Part], kept: list[Rows]) -> None:
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


def segment_of_parts(view: LiveView, parts: list[Part], begin: Begin, like: Part) -> Segment:
    """One segment of what is alive in several, with the engine (chosen anew, if it was) and the lists of another."""
    kept = [np.arange(part.count) if (mask := part.allowed(None)) is None else np.flatnonzero(mask) for part in parts]
    rows = np.concatenate([part.start + places for part, places in zip(parts, kept, strict=True)])
    texts = any(part.open.reader.documents.has_text for part in parts)

    def documents() -> Iterator[Document]:
        for part, places in zip(parts, kept, strict=True):
            yield from map(part.open.record, part.open.rows(places).tolist())

    path = build_index(
        view.folder,
        codebooks=view.codebooks,
        codes=CodesOf(parts, kept),  # type: ignore[arg-type]
        vectors=RowsOf(view, rows),  # type: ignore[arg-type]
        **{"documents" if texts else "ids": documents()},  # type: ignore[arg-type]
        model=view.state.model,
        engine="auto" if like.open.reader.manifest.auto else like.open.reader.manifest.engine,
        lists=like.open.reader.learned_lists(),
        **_as_before(view),
        begin=begin,
    )
    return written(path, len(rows))


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
    cut = {} if manifest.dims is None else {"whole": manifest.dim, "code_error": manifest.code_error}
    return {"stored": first.vectors.kind, "unit": manifest.unit, "lexical": words, **cut}


def written(path: Path, count: int) -> Segment:
    """A segment as a state names it."""
    return Segment(path.name, file_checksum(path / MANIFEST), count)
