"""One state of a live index, with the same parts as an `IndexReader`: documents of all segments numbered through."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bidr.data.types import Document
from bidr.errors import REBUILD, ConfigError, DataError, IndexFolderError
from bidr.index.filters.filter_expression import Filter, parse_filter
from bidr.index.live.memtable import Memory, code_scores
from bidr.index.live.segment import Bits, OpenSegment, Part, bits_set
from bidr.index.live.wal_record import Change
from bidr.index.reader import IndexReader
from bidr.index.storage.live_state import Segment, State
from bidr.index.storage.manifest import Manifest
from bidr.index.types import as_queries
from bidr.index.vectors import FetchedRows, score_fp16
from bidr.quantization.codebooks import Codebooks
from bidr.utils.array_types import Floats, Rows


class LiveView:
    """What an index is at one moment. It never changes, and stays readable while the index goes on."""

    def __init__(self, folder: Path, name: str, state: State, parts: tuple[Part, ...], memory: Memory) -> None:
        self.folder, self.generation, self.state = folder, folder / name, state
        self.parts, self.memory = parts, memory
        self.start = parts[-1].start + parts[-1].count

    @classmethod
    def of(cls, reader: IndexReader) -> "LiveView":
        """An index that was built and is not followed, as a view."""
        segment = Segment(reader.generation.name, "", reader.count)
        state = State(segments=(segment,), model=reader.manifest.model, live=False)
        memory = Memory.empty(reader.manifest.books, reader.manifest.stored_dim)
        return cls(reader.folder, segment.name, state, (Part(OpenSegment(segment, reader), 0, None),), memory)

    def after(self, changes: list[Change]) -> "LiveView":
        """The view with some more commits."""
        if not changes:
            return self
        self._check_codes(changes)
        parts = list(self.parts)
        for number, part in enumerate(parts):
            rows = [row for change in changes for row in change.deleted.get(part.open.segment.name, ())]
            if rows and not all(0 <= row < part.count for row in rows):
                raise IndexFolderError(f"{self.generation}: the log deletes rows that {part.open.segment.name} has not")
            parts[number] = part.after(rows) if rows else part
        memory = self.memory.after(changes)
        return LiveView(self.folder, self.generation.name, self.state, tuple(parts), memory)

    def _check_codes(self, changes: list[Change]) -> None:
        """Refuse codes and vectors that are not of this index."""
        fitting, words = (self.memory.codes.shape[1], self.memory.vectors.shape[1]), self.manifest.words
        for change in changes:
            shapes = change.codes.shape[1], change.vectors.shape[1]
            if shapes != fitting or (change.codes.size and int(change.codes.max()) >= words):
                raise IndexFolderError(
                    f"{self.generation}: the log holds codes and vectors of {shapes} numbers, expected {fitting}, or "
                    f"other codes than the {words} there are; {REBUILD}"
                )

    def latest(self) -> "LiveView":
        return self

    def close(self) -> None:
        """Nothing to do: files are closed when nobody uses them any more."""

    # Made anew each time: a view that kept what keeps it would hold its files until some garbage collection.
    @property
    def candidates(self) -> "LiveCandidates":
        return LiveCandidates(self, None)

    @property
    def vectors(self) -> "LiveVectors":
        return LiveVectors(self)

    @property
    def documents(self) -> "LiveDocuments":
        return LiveDocuments(self)

    @cached_property
    def count(self) -> int:
        """Documents that can be found."""
        return sum(part.alive for part in self.parts) + len(self.in_log)

    @cached_property
    def alive(self) -> list[tuple[Bits | None, int]]:
        """Which places of each part can be found (None: all), and how many they are."""
        return [(part.passing(None), part.alive) for part in self.parts]

    @cached_property
    def in_log(self) -> Rows:
        """Which documents of the log can be found."""
        return np.flatnonzero(self.memory.alive)

    @cached_property
    def only(self) -> Part | None:
        """The part that holds all documents, where there is one: its numbers are the view's own."""
        return self.parts[0] if len(self.parts) == 1 and not self.memory.documents else None

    @cached_property
    def manifest(self) -> Manifest:
        """That of the first segment, with the documents of all."""
        return replace(self.parts[0].open.reader.manifest, count=self.count)

    @property
    def codebooks(self) -> Codebooks:
        return self.parts[0].open.reader.codebooks

    @property
    def ram_bytes(self) -> dict[str, int]:
        """Bytes of RAM by what they are, of all parts: those of documents, codebooks, files of vectors, and the log."""
        total = self.candidates.ram_bytes
        for part in self.parts:
            reader = part.open.reader
            for name, size in {"codebooks": reader.candidates.codebook_bytes, **reader.vectors.ram_bytes}.items():
                total[name] = total.get(name, 0) + size
        return total

    @property
    def ram_bytes_per_doc(self) -> float:
        return sum(self.candidates.ram_bytes.values()) / max(self.count, 1)

    def filtered(self, given: Any) -> "LiveCandidates":
        """The candidate engine over the documents that pass a filter."""
        return LiveCandidates(self, parse_filter(given))

    def attributes(self) -> set[str]:
        """The attributes that any document may have; of those in the log too."""
        found = {name for part in self.parts for name, _ in part.open.reader.documents.columns.columns}
        return found.union(*(document.attributes or {} for document in self.memory.documents))

    def to_faiss(self, engine: str = "scan") -> Any:
        """The codes as a plain Faiss index over rows (see `IndexReader.to_faiss`)."""
        return self.unchanged("leave for Faiss").open.reader.to_faiss(engine)

    @property
    def changed(self) -> bool:
        """Whether documents were added or deleted since it was built or compacted."""
        return len(self.parts) > 1 or self.parts[0].deleted is not None or bool(self.memory.documents)

    def unchanged(self, wanted: str) -> Part:
        """The one part of an index as it was built; refuses another, which cannot do what is wanted."""
        if self.changed:
            raise ConfigError(
                f"{self.folder}: documents were added or deleted since it was built, and so it cannot {wanted}; "
                f"compact it first: bidr compact {self.folder}"
            )
        return self.parts[0]

    def rows_of(self, places: Rows) -> Rows:
        """The rows that stand at places, numbered through as they are; -1 stays -1."""
        # A list's least is found in a third of the time of an array's, for as many as are answers.
        if self.only is not None and places.size and min(places.ravel().tolist()) >= 0:
            return self.only.open.rows(places)
        rows = places.copy()
        for part in self.parts:
            if part.open.reader.ordered:
                here = (places >= part.start) & (places < part.start + part.count)
                rows[here] = part.start + part.open.rows(places[here] - part.start)
        return rows

    def places(self) -> Rows:
        """Where every document that can be found stands."""
        found = []
        for part in self.parts:
            allowed = part.allowed(None)
            found.append(part.start + (np.arange(part.count) if allowed is None else np.flatnonzero(allowed)))
        return np.concatenate([*found, self.start + self.in_log])

    def split(self, rows: Rows) -> Iterator[tuple[Part | None, Rows, Rows]]:
        """Rows by the part that holds them (None: the log): the part, where among the rows, and its own numbers."""
        if self.only is not None:
            yield self.only, np.arange(len(rows)), rows
            return
        starts = np.array([*(part.start for part in self.parts), self.start])
        last = self.start + len(self.memory.documents)
        if len(rows) and (rows.min() < 0 or rows.max() >= last):
            raise DataError(f"rows {rows.min()} to {rows.max()} asked for, expected 0 to {last - 1}")
        of = np.searchsorted(starts, rows, side="right") - 1
        for number in np.unique(of):
            places = np.flatnonzero(of == number)
            part = self.parts[number] if number < len(self.parts) else None
            yield part, places, rows[places] - starts[number]


class LiveCandidates:
    """Candidates of all parts, merged by the score of their codes, which the same codebooks make comparable."""

    def __init__(self, view: LiveView, asked: Filter | None) -> None:
        self.view, self.asked = view, asked
        if asked is None:
            self._allowed, self._in_log = view.alive, view.in_log
        else:
            found = [(part, part.passing(asked)) for part in view.parts]
            self._allowed = [(bits, part.alive if bits is None else bits_set(bits, part.count)) for part, bits in found]
            self._in_log = np.flatnonzero(view.memory.allowed(asked))

    @property
    def name(self) -> str:
        return str(self.view.parts[0].open.reader.candidates.name)

    @property
    def count(self) -> int:
        """How many documents may be found."""
        return sum(there for _, there in self._allowed) + len(self._in_log)

    @property
    def ram_bytes(self) -> dict[str, int]:
        """Bytes held in RAM for the documents, by what they are."""
        total: dict[str, int] = {}
        for part in self.view.parts:
            for name, size in part.open.reader.candidates.ram_bytes.items():
                total[name] = total.get(name, 0) + size
            if part.deleted is not None:
                total["deleted"] = total.get("deleted", 0) + part.deleted_bytes
        if self.view.memory.documents:
            total["log"] = self.view.memory.bytes
        return total

    def search(self, queries: Floats, k: int, ef: int | None = None) -> tuple[Floats, Rows]:
        """Scores and rows of k documents a query, best first; rows of -1 where fewer may be found."""
        view, scores, rows = self.view, [], []
        for part, (allowed, there) in zip(view.parts, self._allowed, strict=True):
            if there:
                found, places = part.search(queries, k, ef, allowed, there)
                scores.append(found)
                rows.append(np.where(places < 0, -1, places + part.start) if part.start else places)
        if len(self._in_log):
            tables = view.parts[0].open.reader.candidates.compute_tables(as_queries(queries))
            found = code_scores(tables, view.memory.codes[self._in_log])
            scores.append(found)
            rows.append(np.broadcast_to(view.start + self._in_log, found.shape))
        if len(scores) == 1 and scores[0].shape[1] == k:
            return scores[0], rows[0]
        every, names = (
            np.concatenate([np.full((len(queries), k), end, dtype), *given], axis=1)
            for end, dtype, given in ((-np.inf, np.float32, scores), (-1, np.int64, rows))
        )
        best = np.lexsort((names, -every), axis=1)[:, :k]
        return np.take_along_axis(every, best, axis=1), np.take_along_axis(names, best, axis=1)


class LiveVectors:
    """Vectors of all parts by row."""

    def __init__(self, view: LiveView) -> None:
        self.view = view
        self.dim = int(view.memory.vectors.shape[1])

    def fetch(self, rows: Rows) -> list[FetchedRows]:
        """As `VectorFile.fetch`, for each part."""
        if self.view.only is not None:
            return [self.view.only.open.reader.vectors.fetch(rows)]
        return [part.open.reader.vectors.fetch(own) for part, _, own in self.view.split(rows) if part is not None]

    def score(self, rows: Rows, query: Floats, fetched: list[FetchedRows] | None = None) -> Floats:
        """As `VectorFile.score`."""
        brought = iter(self.fetch(rows) if fetched is None else fetched)
        if self.view.only is not None:
            return self.view.only.open.reader.vectors.score(rows, query, next(brought))
        scores = np.empty(len(rows), dtype=np.float32)
        for part, places, own in self.view.split(rows):
            if part is not None:
                scores[places] = part.open.reader.vectors.score(own, query, next(brought))
            else:
                scores[places] = score_fp16(self.view.memory.vectors[own], query)
        return scores

    def read(self, rows: Rows) -> Floats:
        """Rows as float32, in the order asked for."""
        out = np.empty((len(rows), self.dim), dtype=np.float32)
        for part, places, own in self.view.split(rows):
            out[places] = part.open.reader.vectors.read(own) if part else self.view.memory.vectors[own]
        return out


class LiveDocuments:
    """Ids, texts and attributes of all parts by row."""

    def __init__(self, view: LiveView) -> None:
        self.view = view

    @property
    def has_text(self) -> bool:
        return self.view.memory.texts or any(part.open.reader.documents.has_text for part in self.view.parts)

    def id(self, row: int) -> str:
        part, own = self._at(row)
        return part.open.reader.documents.id(own) if part else self.view.memory.documents[own].id

    def ids(self, rows: Rows | Iterable[int]) -> list[str]:
        """Ids of many rows."""
        return [self.id(int(row)) for row in rows]

    def document(self, row: int) -> Document | None:
        """A document with its text, or None where it was given without."""
        part, own = self._at(row)
        if part:
            return part.open.reader.documents.document(own)
        return self.view.memory.documents[own] if self.view.memory.texts else None

    def record(self, row: int) -> Document:
        """Everything that is known of a document; without text where it was given without."""
        part, own = self._at(row)
        return self.view.memory.documents[own] if part is None else part.open.record(own)

    def _at(self, row: int) -> tuple[Part | None, int]:
        if self.view.only is not None:
            return self.view.only, row
        part, _, own = next(self.view.split(np.array([row], dtype=np.int64)))
        return part, int(own[0])
