"""One immutable state of an index, with the interface of an `IndexReader`: all segments under one row numbering."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import numpy as np

from bidr.data.types import Attributes, Document
from bidr.errors import REBUILD, ConfigError, DataError, IndexFolderError
from bidr.index.candidate_source import as_queries
from bidr.index.filters.filter_expression import Filter, parse_filter
from bidr.index.filters.schema import SchemaBuilder
from bidr.index.live.memtable import Memtable, score_codes
from bidr.index.live.segment import Segment, SegmentHandle, count_bits
from bidr.index.live.wal_record import WalRecord
from bidr.index.ram_usage import RamUsage, measure_ram_usage
from bidr.index.reader import IndexReader
from bidr.index.storage.live_state import IndexState, SegmentEntry
from bidr.index.storage.manifest import Manifest
from bidr.index.vectors import FetchedRows, ReadStats, score_fp16
from bidr.quantization.codebooks import Codebooks
from bidr.utils.array_types import Bitmap, Codes, Floats, Rows


class LiveView:
    """Snapshot of an index; immutable, and readable while the index changes.

    Rows and positions are numbered through all segments and the memtable, in this order.
    memtable_start: first row of the memtable.
    """

    def __init__(
        self, folder: Path, name: str, state: IndexState, segments: tuple[Segment, ...], memtable: Memtable
    ) -> None:
        self.folder, self.generation, self.state = folder, folder / name, state
        self.segments, self.memtable = segments, memtable
        self.memtable_start = segments[-1].start + segments[-1].count

    @classmethod
    def from_reader(cls, reader: IndexReader) -> "LiveView":
        """Return the view of an index without updates."""
        entry = SegmentEntry(reader.generation.name, "", reader.count)
        state = IndexState(segments=(entry,), model=reader.manifest.model, live=False)
        memtable = Memtable.empty(reader.manifest.books, reader.manifest.stored_dim)
        return cls(reader.folder, entry.name, state, (Segment(SegmentHandle(entry, reader), 0, None),), memtable)

    def apply(self, records: list[WalRecord]) -> "LiveView":
        """Return the view after more commits."""
        if not records:
            return self
        self._check_shapes(records)
        segments = list(self.segments)
        for number, segment in enumerate(segments):
            rows = [row for record in records for row in record.deleted_rows.get(segment.name, ())]
            if rows and not all(0 <= row < segment.count for row in rows):
                raise IndexFolderError(f"{self.generation}: the log deletes rows that {segment.name} does not have")
            changes = {
                row: item for record in records for row, item in record.changed_rows.get(segment.name, {}).items()
            }
            if not all(row < segment.count for row in changes):
                raise IndexFolderError(f"{self.generation}: the log changes rows that {segment.name} does not have")
            changed = segment.change_attributes(changes) if changes else segment
            segments[number] = changed.delete_rows(rows) if rows else changed
        memtable = self.memtable.apply(records)
        return LiveView(self.folder, self.generation.name, self.state, tuple(segments), memtable)

    def _check_shapes(self, records: list[WalRecord]) -> None:
        """Raise IndexFolderError if codes or vectors do not have the shape of this index."""
        expected, words = (self.memtable.codes.shape[1], self.memtable.vectors.shape[1]), self.manifest.words
        for record in records:
            shape = record.codes.shape[1], record.vectors.shape[1]
            if shape != expected or (record.codes.size and int(record.codes.max()) >= words):
                raise IndexFolderError(
                    f"{self.generation}: the log holds codes and vectors of {shape} numbers, expected {expected}, or "
                    f"codewords above {words - 1}; {REBUILD}"
                )

    def latest(self) -> "LiveView":
        return self

    def close(self) -> None:
        """Do nothing: files are closed when they are no longer referenced."""

    # Not cached: a view in a reference cycle would keep its files open until the next garbage collection.
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
        """Number of alive documents."""
        return sum(segment.alive_count for segment in self.segments) + len(self.memtable_rows)

    @cached_property
    def alive(self) -> list[tuple[Bitmap | None, int]]:
        """Bitmap (None: all) and number of the alive positions of each segment."""
        return [(segment.get_bitmap(None), segment.alive_count) for segment in self.segments]

    @cached_property
    def memtable_rows(self) -> Rows:
        """Rows of the alive documents of the memtable, within it."""
        return np.flatnonzero(self.memtable.alive)

    @cached_property
    def single_segment(self) -> Segment | None:
        """The segment, if there is only one and the memtable is empty: its rows are those of the view."""
        return self.segments[0] if len(self.segments) == 1 and not self.memtable.documents else None

    @cached_property
    def manifest(self) -> Manifest:
        """Manifest of the first segment, with the document count of the view."""
        return replace(self.segments[0].reader.manifest, count=self.count)

    @property
    def has_codes(self) -> bool:
        """Whether codes distinguish documents (see `IndexReader.has_codes`)."""
        return self.segments[0].reader.has_codes

    @property
    def codebooks(self) -> Codebooks:
        return self.segments[0].reader.codebooks

    @property
    def ram_usage(self) -> RamUsage:
        """RAM by part, of all segments and the log."""
        return measure_ram_usage(self.candidates.ram_bytes, [segment.reader for segment in self.segments], self.count)

    @property
    def ram_bytes(self) -> dict[str, int]:
        """Bytes of RAM by part."""
        return self.ram_usage.parts

    @property
    def ram_bytes_per_doc(self) -> float:
        """Bytes of RAM per document, all parts."""
        return self.ram_usage.per_document

    def select(self, condition: Any) -> "LiveCandidates":
        """Return a candidate engine restricted to documents that match a filter."""
        return LiveCandidates(self, parse_filter(condition))

    def attributes(self) -> set[str]:
        """Return the attribute names of all documents."""
        names = {name for segment in self.segments for name in segment.list_attribute_names()}
        return names.union(*(document.attributes or {} for document in self.memtable.documents))

    def describe_attributes(self) -> list[dict[str, Any]]:
        """Describe the attributes of all documents: type, number of documents, examples, range."""
        builder = SchemaBuilder()
        for segment in self.segments:
            segment.add_to_schema(builder)
        builder.add_documents(self.memtable.documents[row].attributes for row in self.memtable_rows)
        return builder.describe()

    def to_faiss(self, engine: str = "scan") -> Any:
        """Convert the codes to a Faiss index over rows (see `IndexReader.to_faiss`)."""
        return self.get_unchanged("be exported to Faiss").reader.to_faiss(engine)

    @property
    def has_changes(self) -> bool:
        """Whether documents were added, deleted or changed since the last build or compaction."""
        first = self.segments[0]
        is_single = len(self.segments) == 1 and not self.memtable.documents
        return not is_single or first.deleted is not None or first.has_changes

    def get_unchanged(self, action: str) -> Segment:
        """Return the segment of an index without changes; raise ConfigError ("it cannot ACTION") otherwise."""
        if self.has_changes:
            raise ConfigError(
                f"{self.folder}: documents were added or deleted since it was built, so it cannot {action}; "
                f"compact it first: bidr compact {self.folder}"
            )
        return self.segments[0]

    def rows_of(self, places: Rows) -> Rows:
        """Map positions to rows; -1 stays -1."""
        # min() of a list takes a third of the time of an array's for the number of hits of a search.
        if self.single_segment is not None and places.size and min(places.ravel().tolist()) >= 0:
            return self.single_segment.get_rows(places)
        rows = places.copy()
        for segment in self.segments:
            if segment.reader.ordered:
                in_segment = (places >= segment.start) & (places < segment.start + segment.count)
                rows[in_segment] = segment.start + segment.get_rows(places[in_segment] - segment.start)
        return rows

    def read_codes(self, positions: Rows) -> Codes:
        """Return the codes of a few positions, one codeword number per byte."""
        codes = np.empty((len(positions), self.manifest.books), dtype=np.uint8)
        for segment, indices, local_positions in self.split(positions):
            if segment is None:
                codes[indices] = self.memtable.codes[local_positions]
            else:
                codes[indices] = segment.get_codes(local_positions)
        return codes

    def find_positions(self, rows: Rows) -> Rows:
        """Return the positions of a few rows; looks through the order of their segments."""
        positions = np.array(rows, dtype=np.int64)
        for segment, indices, local_rows in self.split(positions.copy()):
            if segment is not None and segment.order is not None:
                places = [int(np.flatnonzero(segment.order == row)[0]) for row in local_rows]
                positions[indices] = segment.start + np.array(places)
        return positions

    def places(self) -> Rows:
        """Return the positions of all alive documents."""
        blocks = []
        for segment in self.segments:
            alive = segment.get_mask(None)
            blocks.append(segment.start + (np.arange(segment.count) if alive is None else np.flatnonzero(alive)))
        return np.concatenate([*blocks, self.memtable_start + self.memtable_rows])

    def count_matching(self, condition: Filter) -> int:
        """Count the documents that match a filter."""
        count = int(np.count_nonzero(self.memtable.get_mask(condition)))
        for segment in self.segments:
            bits = segment.get_row_bitmap(condition)
            assert bits is not None
            count += count_bits(bits, segment.count)
        return count

    def find_rows(self, ids: Iterable[str]) -> dict[str, int]:
        """Return the rows of those ids that the index has."""
        rows: dict[str, int] = {}
        for doc_id in ids:
            if (row := self.memtable.rows.get(doc_id)) is not None:
                rows[doc_id] = self.memtable_start + row
                continue
            for segment in self.segments:
                segment_row = segment.reader.id_index.find(doc_id)
                if segment_row is not None and not segment.is_deleted(segment_row):
                    rows[doc_id] = segment.start + segment_row
        return rows

    def split(self, rows: Rows) -> Iterator[tuple[Segment | None, Rows, Rows]]:
        """Split rows by segment: the segment (None: memtable), indices into `rows`, rows within the segment."""
        if self.single_segment is not None:
            yield self.single_segment, np.arange(len(rows)), rows
            return
        starts = np.array([*(segment.start for segment in self.segments), self.memtable_start])
        count = self.memtable_start + len(self.memtable.documents)
        if len(rows) and (rows.min() < 0 or rows.max() >= count):
            raise DataError(f"invalid rows: {rows.min()} to {rows.max()} (allowed: 0 to {count - 1})")
        numbers = np.searchsorted(starts, rows, side="right") - 1
        for number in np.unique(numbers):
            indices = np.flatnonzero(numbers == number)
            segment = self.segments[number] if number < len(self.segments) else None
            yield segment, indices, rows[indices] - starts[number]


class LiveCandidates:
    """Candidate engine over all segments: results are merged by score, as all segments share the codebooks."""

    def __init__(self, view: LiveView, condition: Filter | None) -> None:
        self.view, self.condition = view, condition
        if condition is None:
            self._allowed, self._memtable_rows = view.alive, view.memtable_rows
        else:
            self._allowed = []
            for segment in view.segments:
                bits = segment.get_bitmap(condition)
                allowed_count = segment.alive_count if bits is None else count_bits(bits, segment.count)
                self._allowed.append((bits, allowed_count))
            self._memtable_rows = np.flatnonzero(view.memtable.get_mask(condition))

    @property
    def name(self) -> str:
        return str(self.view.segments[0].reader.candidates.name)

    @property
    def count(self) -> int:
        """Number of documents that can be found."""
        return sum(allowed_count for _, allowed_count in self._allowed) + len(self._memtable_rows)

    @property
    def ram_bytes(self) -> dict[str, int]:
        """RAM of the documents in bytes, by purpose."""
        total: dict[str, int] = {}
        for segment in self.view.segments:
            for name, size in segment.reader.candidates.ram_bytes.items():
                total[name] = total.get(name, 0) + size
            if segment.deleted is not None:
                total["deleted"] = total.get("deleted", 0) + segment.deleted_bytes
        if self.view.memtable.documents:
            total["log"] = self.view.memtable.bytes
        return total

    def search(self, queries: Floats, k: int, ef: int | None = None) -> tuple[Floats, Rows]:
        """Return scores and positions of the top `k` per query, best first; -1 and -inf pad short results."""
        view, scores, positions = self.view, [], []
        for segment, (allowed, allowed_count) in zip(view.segments, self._allowed, strict=True):
            if allowed_count:
                segment_scores, places = segment.search(queries, k, ef, allowed, allowed_count)
                scores.append(segment_scores)
                positions.append(np.where(places < 0, -1, places + segment.start) if segment.start else places)
        if len(self._memtable_rows):
            tables = view.segments[0].reader.candidates.compute_tables(as_queries(queries))
            scores.append(score_codes(tables, view.memtable.codes[self._memtable_rows]))
            positions.append(np.broadcast_to(view.memtable_start + self._memtable_rows, scores[-1].shape))
        if len(scores) == 1 and scores[0].shape[1] == k:
            return scores[0], positions[0]
        all_scores, all_positions = (
            np.concatenate([np.full((len(queries), k), padding, dtype), *blocks], axis=1)
            for padding, dtype, blocks in ((-np.inf, np.float32, scores), (-1, np.int64, positions))
        )
        top = np.lexsort((all_positions, -all_scores), axis=1)[:, :k]
        return np.take_along_axis(all_scores, top, axis=1), np.take_along_axis(all_positions, top, axis=1)


class LiveVectors:
    """Vectors of all segments by row."""

    def __init__(self, view: LiveView) -> None:
        self.view = view
        self.dim = int(view.memtable.vectors.shape[1])

    @property
    def waits_for_disk(self) -> bool:
        """Whether most searches read from the disk, in all segments alike (see `VectorFile.waits_for_disk`)."""
        return self.view.segments[0].reader.vectors.waits_for_disk

    def fetch(self, rows: Rows, query: Floats) -> list[FetchedRows]:
        """Fetch rows of each segment (see `VectorFile.fetch`)."""
        if self.view.single_segment is not None:
            return [self.view.single_segment.reader.vectors.fetch(rows, query)]
        return [
            segment.reader.vectors.fetch(local_rows, query)
            for segment, _, local_rows in self.view.split(rows)
            if segment is not None
        ]

    @staticmethod
    def sum_stats(fetched: list[FetchedRows]) -> ReadStats:
        """Return what fetching took."""
        return reduce(ReadStats.plus, [segment_rows.stats for segment_rows in fetched] or [ReadStats()])

    def score(self, rows: Rows, query: Floats, fetched: list[FetchedRows] | None = None) -> Floats:
        """Compute the scores of rows with a query (see `VectorFile.score`)."""
        blocks = iter(self.fetch(rows, query) if fetched is None else fetched)
        if self.view.single_segment is not None:
            return self.view.single_segment.reader.vectors.score(rows, query, next(blocks))
        scores = np.empty(len(rows), dtype=np.float32)
        for segment, indices, local_rows in self.view.split(rows):
            if segment is not None:
                scores[indices] = segment.reader.vectors.score(local_rows, query, next(blocks))
            else:
                scores[indices] = score_fp16(
                    self.view.memtable.vectors[local_rows], query, by_distance=self.view.manifest.similarity == "l2"
                )
        return scores

    def read(self, rows: Rows) -> Floats:
        """Read rows as float32."""
        vectors = np.empty((len(rows), self.dim), dtype=np.float32)
        for segment, indices, local_rows in self.view.split(rows):
            stored = (
                self.view.memtable.vectors[local_rows] if segment is None else segment.reader.vectors.read(local_rows)
            )
            vectors[indices] = stored
        return vectors


class LiveDocuments:
    """Ids, texts and attributes of all segments by row."""

    def __init__(self, view: LiveView) -> None:
        self.view = view

    @property
    def has_text(self) -> bool:
        return self.view.memtable.has_text or any(segment.reader.documents.has_text for segment in self.view.segments)

    def id(self, row: int) -> str:
        segment, local_row = self._locate(row)
        return segment.reader.documents.id(local_row) if segment else self.view.memtable.documents[local_row].id

    def ids(self, rows: Rows | Iterable[int]) -> list[str]:
        """Return the ids of many rows."""
        return [self.id(int(row)) for row in rows]

    def document(self, row: int) -> Document | None:
        """Return a document with its text; None if no text is stored."""
        segment, local_row = self._locate(row)
        if segment:
            return segment.get_document(local_row)
        return self.view.memtable.documents[local_row] if self.view.memtable.has_text else None

    def record(self, row: int) -> Document:
        """Return a document with id and attributes, and with text if texts are stored."""
        segment, local_row = self._locate(row)
        return self.view.memtable.documents[local_row] if segment is None else segment.get_record(local_row)

    def attributes(self, row: int) -> Attributes | None:
        """Return the attributes of a document."""
        segment, local_row = self._locate(row)
        return (
            self.view.memtable.documents[local_row].attributes if segment is None else segment.get_attributes(local_row)
        )

    def _locate(self, row: int) -> tuple[Segment | None, int]:
        """Return the segment of a row (None: memtable) and its row there."""
        if self.view.single_segment is not None:
            return self.view.single_segment, row
        segment, _, local_rows = next(self.view.split(np.array([row], dtype=np.int64)))
        return segment, int(local_rows[0])
