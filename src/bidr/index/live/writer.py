"""The writer of an index: commits go to the log, which is turned into segments."""

import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from bidr.data.types import Document, validate_ids
from bidr.data.validation import format_value
from bidr.data.vector_source import as_array
from bidr.errors import BidrError, DataError, ForkError
from bidr.index.builder.journal import WorkFolder
from bidr.index.filters.filter_expression import Filter, parse_filter
from bidr.index.live.attribute_overlay import apply_changes, validate_changes, write_overlay
from bidr.index.live.compaction import (
    explain_no_merge,
    merge_segments,
    run_compaction,
    write_fitted_segment,
    write_memtable_segment,
)
from bidr.index.live.document_encoder import DocumentEncoder, EncodedBatch
from bidr.index.live.drift import Drift, DriftMonitor
from bidr.index.live.initial_codes import read_fit_settings
from bidr.index.live.live_reader import LiveIndex
from bidr.index.live.segment import Segment, unpack_bits
from bidr.index.live.view import LiveView
from bidr.index.live.wal import WalWriter, write_log
from bidr.index.live.wal_record import WalRecord, decode_record, encode_record, normalize_documents
from bidr.index.storage.commit import (
    GenerationWriter,
    begin_generation,
    hold_writer_lock,
    is_writer_waiting,
    rewrite_current,
)
from bidr.index.storage.live_state import IndexState, SegmentEntry
from bidr.index.storage.manifest import FileEntry, read_current
from bidr.index.vectors import MAX_VALUES
from bidr.utils.array_types import Floats
from bidr.utils.byte_sizes import parse_bytes
from bidr.utils.deprecation import DeprecatedAlias
from bidr.utils.progress import say

MAX_LOG_DOCUMENTS = 4_096
MAX_LOG_BYTES = 64 << 20
MAX_SEGMENTS = 8
MAX_CHANGED_DOCUMENTS = 50_000
"""Documents whose attributes one commit changes; their new attributes are in the RAM of readers until the flush."""


class DocumentPlace(NamedTuple):
    """Where a document is: row of a segment, or in the memtable."""

    id: str
    segment: Segment | None = None
    row: int = -1


class LiveWriter:
    """Adds, replaces and deletes documents. Commits are durable when a call returns, and visible within a second.

    Args:
        folder: The index.
        encoder: Computes codes and vectors of documents with the model of the index.
        log_documents: Size of the log at which it becomes a segment.
        segments: Number of segments above which all but the first are merged.
        ram_budget: Limit of anonymous memory, with the open index, for such a merge (bytes, or "1GiB"); a merge that
            needs more is skipped.
        warn: Called when added documents no longer fit the codebooks, and when a merge is skipped.
        wait: Seconds to wait for another writer.
        expect_model: Fingerprint of the encoder's model; an index of another model is refused.
        fits_codes: In an index that was created empty, `add` fits codes when there are enough documents.
    """

    def __init__(
        self,
        folder: Path | str,
        encoder: DocumentEncoder,
        *,
        log_documents: int = MAX_LOG_DOCUMENTS,
        segments: int = MAX_SEGMENTS,
        ram_budget: int | str | None = None,
        warn: Callable[[str], None] = say,
        wait: float = 0.0,
        expect_model: str | None = None,
        fits_codes: bool = True,
    ) -> None:
        self.folder, self.encoder, self.fits_codes = Path(folder), encoder, fits_codes
        self.max_log_documents, self.max_segments = log_documents, segments
        self._budget = None if ram_budget is None else parse_bytes("ram_budget", str(ram_budget))
        self._warn, self._warned_of_skipped_merge = warn, False
        self._drift_monitor = DriftMonitor(lambda documents, vectors: self.encoder(documents, vectors).errors, warn)
        self._lock, self._writer_lock = threading.RLock(), ExitStack()
        self._process, self._is_stale, self._current_is_durable = os.getpid(), False, False
        self._log: WalWriter | None = None
        read_current(self.folder)  # raises before a lock file is created where there is no index
        self._writer_lock.enter_context(hold_writer_lock(self.folder, wait))
        try:
            self._live = LiveIndex.open(self.folder, expect_model)
            self._open()
        except BaseException:
            self._writer_lock.close()
            raise

    def __len__(self) -> int:
        """Return the number of documents."""
        return self._view.count

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"LiveWriter({str(self.folder)!r}, {self._view.count:,} documents)"

    @property
    def view(self) -> LiveView:
        """The current state."""
        return self._view

    @property
    def drift(self) -> Drift | None:
        """Drift of the documents in the log; None: too few were added to measure it."""
        return self._drift_monitor.drift

    @property
    def wanted(self) -> bool:
        """Whether another process waits for the writer lock; it gets the lock when this writer is closed."""
        return is_writer_waiting(self.folder)

    def add(self, documents: Sequence[Document], vectors: Floats | None = None) -> int:
        """Add documents in one commit, replacing those with the same ids; return how many."""
        added = normalize_documents(documents)
        if not added:
            return 0
        self._check_process()
        dim = self._view.manifest.dim
        vectors = None if vectors is None else as_array(vectors, "vectors")
        if vectors is not None and vectors.shape != (len(added), dim):
            raise DataError(
                f"vectors: given shape {vectors.shape}, expected {(len(added), dim)}: one row for each document"
            )
        codebooks = self._view.codebooks
        batch = self._validate_batch(self.encoder(added, vectors), len(added))
        has_text = any(document.title or document.text for document in added)
        with self._lock:
            if self._view.codebooks is not codebooks:  # another thread fitted codes or compacted meanwhile
                batch = self._validate_batch(self.encoder(added, vectors), len(added))
            deleted_rows, removed_ids = self._find([document.id for document in added])
            fp16_vectors = batch.vectors.astype(np.float16)
            self._commit(WalRecord(added, has_text, batch.codes, fp16_vectors, batch.errors, deleted_rows, removed_ids))
            if self._view.has_codes:
                self._drift_monitor.update(self._view)
            elif self.fits_codes and self.is_fit_due:
                self.fit_codes()
        return len(added)

    @property
    def is_fit_due(self) -> bool:
        """Whether the index was created empty and now has enough documents to fit codes to."""
        return not self._view.has_codes and self._view.count >= read_fit_settings(self.folder).documents

    def fit_codes(self) -> None:
        """Fit codes to the documents of an index that was created empty; readers go on meanwhile."""
        self._check_process()
        with self._lock:
            self._flush()
            settings = read_fit_settings(self.folder)
            if self._view.count < settings.codes.codewords:
                raise DataError(
                    f"{self.folder}: {self._view.count:,} documents, expected {settings.codes.codewords} or more to "
                    "fit codes to; add more first"
                )
            entry = write_fitted_segment(self._view, settings, begin_segment)
            self._commit_state([SegmentState(entry)], [entry.name])

    def delete(self, ids: Collection[str], *, missing_ok: bool = False) -> int:
        """Delete documents in one commit; return how many. An unknown id raises DataError unless `missing_ok`."""
        self._check_process()
        unique_ids = list(dict.fromkeys(validate_ids(ids)))
        with self._lock:
            deleted_rows, removed_ids = self._find(unique_ids)
            count = len(removed_ids) + sum(map(len, deleted_rows.values()))
            if count < len(unique_ids) and not missing_ok:
                unknown = next(document_id for document_id in unique_ids if not any(self._find([document_id])))
                raise DataError(
                    f"{self.folder}: no document {unknown!r}; leave it out, or allow ids that are missing "
                    "(--missing-ok, or missing_ok=True in Python)"
                )
            if count:
                self._commit(self._make_record()._replace(deleted_rows=deleted_rows, removed_ids=removed_ids))
        return count

    def delete_where(self, filter: Any) -> int:
        """Delete the documents that match a filter in one commit; return how many."""
        self._check_process()
        expression = parse_filter(filter)
        with self._lock:
            self._prepare_log()
            deleted_rows, removed_ids = dict[str, list[int]](), list[str]()
            places = self._match(expression)
            for place in places:
                if place.segment is None:
                    removed_ids.append(place.id)
                else:
                    deleted_rows.setdefault(place.segment.name, []).append(place.row)
            if places:
                self._commit(self._make_record()._replace(deleted_rows=deleted_rows, removed_ids=removed_ids))
        return len(places)

    def set_attributes(self, changes: Mapping[str, Mapping[str, Any]], *, missing_ok: bool = False) -> int:
        """Change attributes of documents by id; return how many documents there are of these ids.

        Codes, vectors and texts stay as they are. Up to MAX_CHANGED_DOCUMENTS are one commit.

        Args:
            changes: new values by id and name: {"doc-1": {"price": 3, "stock": None}}; None removes an attribute.
            missing_ok: ignore ids that are not in the index; otherwise they raise DataError, and nothing is changed.
        """
        self._check_process()
        if not isinstance(changes, Mapping):
            raise DataError(f"changes: given {format_value(changes)}, expected a dictionary of attributes by id")
        ids = validate_ids(changes)
        validated = {
            doc_id: validate_changes(values, f"document {doc_id!r}")
            for doc_id, values in zip(ids, changes.values(), strict=True)
        }
        with self._lock:
            self._prepare_log()
            existing = self.find_existing(ids)
            if len(existing) < len(validated) and not missing_ok:
                unknown = next(doc_id for doc_id in ids if doc_id not in existing)
                raise DataError(
                    f"{self.folder}: no document {unknown!r}; leave it out, or allow ids that are missing "
                    "(--missing-ok, or missing_ok=True in Python)"
                )
            names = [doc_id for doc_id in validated if doc_id in existing]
            self._change(lambda: self._locate(names), len(names), validated.__getitem__)
        return len(names)

    def set_attributes_where(self, filter: Any, values: Mapping[str, Any]) -> int:
        """Change attributes of the documents that match a filter; return how many. See `set_attributes`.

        Args:
            filter: which documents.
            values: new values by name; None removes an attribute.
        """
        self._check_process()
        expression, changes = parse_filter(filter), validate_changes(values, "values")
        with self._lock:
            self._prepare_log()
            count = self._view.count_matching(expression)
            self._change(lambda: self._match(expression), count, lambda doc_id: changes)
        return count

    def _match(self, expression: Filter) -> list[DocumentPlace]:
        """Find the documents that match a filter."""
        memtable = self._view.memtable
        places = [DocumentPlace(memtable.documents[row].id) for row in np.flatnonzero(memtable.get_mask(expression))]
        for segment in self._view.segments:
            bits = segment.get_row_bitmap(expression)
            assert bits is not None
            rows = np.flatnonzero(unpack_bits(bits, segment.count)).tolist()
            places += [DocumentPlace("", segment, row) for row in rows]
        return places

    def _locate(self, ids: Sequence[str]) -> list[DocumentPlace]:
        """Find documents by id."""
        places = []
        for doc_id in ids:
            if doc_id in self._view.memtable.rows:
                places.append(DocumentPlace(doc_id))
                continue
            for segment in self._view.segments:
                if (row := self._find_row(segment, doc_id)) is not None:
                    places.append(DocumentPlace(doc_id, segment, row))
        return places

    def _change(
        self,
        find_places: Callable[[], list[DocumentPlace]],
        count: int,
        get_changes: Callable[[str], Mapping[str, Any]],
    ) -> None:
        """Change attributes, up to MAX_CHANGED_DOCUMENTS in one commit."""
        if count > MAX_CHANGED_DOCUMENTS and self._view.memtable.documents:
            self._flush()  # between commits every document must stay where it is
        places = find_places()
        for start in range(0, len(places), MAX_CHANGED_DOCUMENTS):
            if start:
                self._flush()
            memtable, changed_ids = self._view.memtable, dict[str, Any]()
            changed_rows = dict[str, dict[int, Any]]()
            for place in places[start : start + MAX_CHANGED_DOCUMENTS]:
                changes = get_changes(place.id)
                if place.segment is None:
                    attributes = memtable.documents[memtable.rows[place.id]].attributes
                    changed_ids[place.id] = apply_changes(attributes, changes)
                else:
                    attributes = place.segment.get_attributes(place.row)
                    changed_rows.setdefault(place.segment.name, {})[place.row] = apply_changes(attributes, changes)
            self._commit(self._make_record()._replace(changed_rows=changed_rows, changed_ids=changed_ids))
        if self._count_pending() > self.max_log_documents:
            self.flush()

    def _make_record(self) -> WalRecord:
        """Return a record that changes nothing."""
        memtable = self._view.memtable
        return WalRecord([], False, memtable.codes[:0], memtable.vectors[:0], memtable.errors[:0], {}, [])

    def _count_pending(self) -> int:
        """Return the number of documents that the log adds or changes."""
        return len(self._view.memtable.documents) + sum(len(segment.changes) for segment in self._view.segments)

    known = DeprecatedAlias("LiveWriter.known", "find_existing")

    def find_existing(self, ids: Collection[str]) -> set[str]:
        """Return those of the ids that are in the index."""
        self._check_process()
        unique_ids = validate_ids(ids)
        with self._lock:
            self._reopen_if_stale()
            view = self._view
            return {
                document_id
                for document_id in unique_ids
                if document_id in view.memtable.rows
                or any(self._find_row(segment, document_id) is not None for segment in view.segments)
            }

    def flush(self) -> None:
        """Turn the log into a segment."""
        self._check_process()
        with self._lock:
            self._flush()
            if len(self._view.segments) > self.max_segments and self._may_merge():
                self._merge(first=1)

    def _may_merge(self) -> bool:
        obstacle = explain_no_merge(self._view, self._budget)
        if obstacle is not None and not self._warned_of_skipped_merge:
            self._warn(obstacle)
            self._warned_of_skipped_merge = True
        return obstacle is None

    def _flush(self) -> None:
        """Commit a state of what is in memory. The log is not read back: it may differ from what is on disk."""
        self._reopen_if_stale()
        view, pending = self._view, []
        # The first segment stays even without alive documents, as merges take the engine from it.
        first = view.segments[0]
        segments = [SegmentState.of(segment) for segment in view.segments if segment.alive_count or segment is first]
        if view.memtable.alive.any():
            entry = write_memtable_segment(view, begin_segment)
            segments.append(SegmentState(entry))
            pending.append(entry.name)
        self._commit_state(segments, pending)

    def compact(self, *, ram_budget: int | str | None = None) -> None:
        """Merge all segments and the log into one, without deleted documents; an automatic engine is chosen again.

        A killed compaction is resumed, if nothing was added or deleted since.
        ram_budget: limit of anonymous memory, with the open index (bytes, or "1GiB"); raises ConfigError if too small.
        """
        self._check_process()
        with self._lock:
            self._reopen_if_stale()
            self._compact(ram_budget)

    def _compact(self, ram_budget: int | str | None) -> None:
        with run_compaction(self._view, ram_budget) as work:
            self._flush()
            if self._view.has_changes:
                previous = self._view.manifest.engine
                self._merge(first=0, work=work)
                if (engine := self._view.manifest.engine) != previous:
                    say(
                        f"{self.folder}: the engine is {engine} now, for {self._view.count:,} documents, not {previous}"
                    )

    def close(self) -> None:
        """Release the writer lock. Does nothing in a forked child, where the lock is the parent's."""
        if os.getpid() != self._process:
            return
        with self._lock:
            self._close_log()
            self._live.close()
            self._writer_lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _check_process(self) -> None:
        """Raise ForkError in a forked child, which must not wait for a lock that a thread of the parent holds."""
        if os.getpid() != self._process:
            raise ForkError(
                f"{self.folder}: this writer was opened by process {self._process} and is used in its forked child "
                f"{os.getpid()}; open another one in the child, when the parent has closed its own"
            )

    def _open(self) -> None:
        """Open the current state; no log is opened if there is none or it must not be appended to."""
        self._view = self._live.refresh_now()
        end = self._live.get_log_end()
        if end is not None:
            self._log = WalWriter(self._view.generation, *end)
        self._is_stale = False

    def _reopen_if_stale(self) -> None:
        """Open the state that this writer committed, if that failed after the commit."""
        if self._is_stale:
            self._close_log()
            self._open()

    def _prepare_log(self) -> None:
        """Ensure that the log can be appended to, and that CURRENT is durable."""
        self._reopen_if_stale()
        count = self._count_pending()
        if self._log is None or self._log.broken or count >= self.max_log_documents or self._log.end > MAX_LOG_BYTES:
            self.flush()
        elif not self._current_is_durable:
            rewrite_current(self.folder)
            self._current_is_durable = True

    def _find(self, ids: list[str]) -> tuple[dict[str, list[int]], list[str]]:
        """Find documents: rows by segment name, and those of the ids that are in the memtable."""
        self._prepare_log()
        rows_by_segment: dict[str, list[int]] = {}
        for segment in self._view.segments:
            rows = [row for document_id in ids if (row := self._find_row(segment, document_id)) is not None]
            if rows:
                rows_by_segment[segment.name] = rows
        return rows_by_segment, [document_id for document_id in ids if document_id in self._view.memtable.rows]

    def _find_row(self, segment: Segment, document_id: str) -> int | None:
        row = segment.reader.id_index.find(document_id)
        return None if row is None or segment.is_deleted(row) else row

    def _commit(self, record: WalRecord) -> None:
        assert self._log is not None
        content = encode_record(record)
        view = self._view.apply([decode_record(content, self._log.path)])
        try:
            self._log.append([content])
        except BaseException as error:
            self._log.seal()
            if isinstance(error, Exception):  # after an interrupt, the next commit flushes instead
                with suppress(BidrError, OSError):
                    self._flush()
            raise
        self._view = view

    def _merge(self, first: int, work: WorkFolder | None = None) -> None:
        """Merge the segments from number `first` on."""
        merged = [segment for segment in self._view.segments[first:] if segment.alive_count]
        if merged:
            unmerged = [SegmentState.of(segment) for segment in self._view.segments[:first]]
            entry = merge_segments(self._view, merged, begin_segment, like=self._view.segments[first], work=work)
            self._commit_state([*unmerged, SegmentState(entry)], [entry.name])

    def _commit_state(self, segments: "list[SegmentState]", pending: list[str]) -> None:
        """Commit a state of these segments and an empty log. `pending`: segments that no state lists yet."""
        if self._log is not None:
            # If the commit fails, the state after a crash is unknown; the log stays locked until one is committed.
            self._log.broken = True
        view, drift = self._view, self.drift._asdict() if self.drift else self._view.state.drift
        with begin_generation(self.folder, pending=pending) as generation:
            entries = [_write_segment_state(generation, segment) for segment in segments]
            write_log(generation.staging, generation.name)

            def describe(files: dict[str, FileEntry]) -> IndexState:
                return IndexState(segments=tuple(entries), model=view.state.model, files=dict(files), drift=drift)

            generation.commit(describe)
            self._is_stale = self._current_is_durable = True
        self._reopen_if_stale()

    def _close_log(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def _validate_batch(self, batch: EncodedBatch, count: int) -> EncodedBatch:
        """Raise DataError for arrays that do not fit the index; truncate vectors as they are stored."""
        manifest = self._view.manifest
        shapes = (batch.codes.shape, batch.vectors.shape, batch.errors.shape)
        expected = ((count, manifest.books), (count, manifest.dim), (count,))
        if shapes != expected:
            raise DataError(
                f"codes, vectors and errors of shapes {shapes}, expected {expected}; use the model of the index"
            )
        batch, largest = batch._replace(vectors=manifest.truncate(batch.vectors)), MAX_VALUES["fp16"]
        is_invalid = ~(np.abs(batch.vectors) <= largest).all(axis=1)
        if is_invalid.any():
            raise DataError(
                f"vectors: row {int(is_invalid.argmax())} holds a number that is not finite or above {largest:,.0f} "
                "in size (fp16); scale or normalize the vectors"
            )
        return batch


class SegmentState(NamedTuple):
    """A segment to list in a state. `segment`: the open one, if rows of it were deleted or changed."""

    entry: SegmentEntry
    segment: Segment | None = None

    @classmethod
    def of(cls, segment: Segment) -> Self:
        return cls(segment.entry, segment)


def _write_segment_state(generation: GenerationWriter, state: SegmentState) -> SegmentEntry:
    """Write deleted rows and changed attributes of a segment; return its entry."""
    entry, segment = state.entry, state.segment
    if segment is None:
        return entry
    rows = segment.list_changed_rows() if segment.has_changes else ()
    entry = SegmentEntry(entry.name, entry.xxh3, entry.count, segment.deleted_count, len(rows))
    if segment.deleted is not None and entry.deleted:
        with generation.open_file(entry.tombstones) as out:
            out.write(segment.deleted.tobytes())
    if isinstance(rows, np.ndarray) and len(rows):
        write_overlay(generation.open_file, generation.staging, entry, rows, segment.get_attributes)
    return entry


def begin_segment(folder: Path, keep: int) -> AbstractContextManager[GenerationWriter]:
    """Start the generation of a segment; the caller holds the writer lock (see `BeginGeneration`)."""
    return begin_generation(folder, make_current=False)
