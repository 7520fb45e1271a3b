"""The writer of an index: commits go to the log, which is turned into segments."""

import os
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from bidr.data.types import Document, validate_ids
from bidr.data.vector_source import as_array
from bidr.errors import BidrError, DataError, ForkError
from bidr.index.builder.journal import WorkFolder
from bidr.index.documents.id_index import IdIndex
from bidr.index.live.compaction import explain_no_merge, merge_segments, run_compaction, write_memtable_segment
from bidr.index.live.document_encoder import DocumentEncoder, EncodedBatch
from bidr.index.live.drift import Drift, DriftMonitor
from bidr.index.live.live_reader import LiveIndex
from bidr.index.live.segment import Segment, count_bits
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
from bidr.utils.array_types import Bitmap, Floats
from bidr.utils.byte_sizes import parse_bytes
from bidr.utils.deprecation import DeprecatedAlias
from bidr.utils.progress import say

MAX_LOG_DOCUMENTS = 4_096
MAX_LOG_BYTES = 64 << 20
MAX_SEGMENTS = 8


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
    ) -> None:
        self.folder, self.encoder = Path(folder), encoder
        self.max_log_documents, self.max_segments = log_documents, segments
        self._budget = None if ram_budget is None else parse_bytes("ram_budget", str(ram_budget))
        self._warn, self._warned_of_skipped_merge = warn, False
        self._drift_monitor = DriftMonitor(lambda documents, vectors: self.encoder(documents, vectors).errors, warn)
        self._lock, self._writer_lock = threading.RLock(), ExitStack()
        self._process, self._is_stale, self._current_is_durable = os.getpid(), False, False
        self._log: WalWriter | None = None
        self._id_indexes: dict[str, IdIndex] = {}
        read_current(self.folder)  # raises before a lock file is created where there is no index
        self._writer_lock.enter_context(hold_writer_lock(self.folder, wait))
        try:
            self._live = LiveIndex.open(self.folder, expect_model)
            self._open()
        except BaseException:
            self._writer_lock.close()
            raise

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
        batch = self._validate_batch(self.encoder(added, vectors), len(added))
        has_text = any(document.title or document.text for document in added)
        with self._lock:
            deleted_rows, removed_ids = self._find([document.id for document in added])
            fp16_vectors = batch.vectors.astype(np.float16)
            self._commit(WalRecord(added, has_text, batch.codes, fp16_vectors, batch.errors, deleted_rows, removed_ids))
            self._drift_monitor.update(self._view)
        return len(added)

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
                memtable = self._view.memtable
                arrays = memtable.codes[:0], memtable.vectors[:0], memtable.errors[:0]
                self._commit(WalRecord([], False, *arrays, deleted_rows, removed_ids))
        return count

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
        segments = [
            (segment.entry, segment.deleted) for segment in view.segments if segment.alive_count or segment is first
        ]
        if view.memtable.alive.any():
            entry = write_memtable_segment(view, begin_segment)
            segments.append((entry, None))
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
            if len(self._view.segments) > 1 or self._view.segments[0].deleted is not None:
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
        self._id_indexes = {
            segment.name: self._id_indexes.get(segment.name)
            or IdIndex(self.folder / segment.name, segment.reader.manifest, segment.count)
            for segment in self._view.segments
        }
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
        count = len(self._view.memtable.documents)
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
        row = self._id_indexes[segment.name].find(document_id)
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
            unmerged = [(segment.entry, segment.deleted) for segment in self._view.segments[:first]]
            entry = merge_segments(self._view, merged, begin_segment, like=self._view.segments[first], work=work)
            self._commit_state([*unmerged, (entry, None)], [entry.name])

    def _commit_state(self, segments: list[tuple[SegmentEntry, Bitmap | None]], pending: list[str]) -> None:
        """Commit a state of these segments and an empty log. `pending`: segments that no state lists yet."""
        if self._log is not None:
            # If the commit fails, the state after a crash is unknown; the log stays locked until one is committed.
            self._log.broken = True
        view, drift = self._view, self.drift._asdict() if self.drift else self._view.state.drift
        with begin_generation(self.folder, pending=pending) as generation:
            entries = []
            for entry, deleted in segments:
                deleted_count = 0 if deleted is None else count_bits(deleted)
                entries.append(SegmentEntry(entry.name, entry.xxh3, entry.count, deleted_count))
                if deleted is not None and deleted_count:
                    with generation.open_file(entries[-1].tombstones) as out:
                        out.write(deleted.tobytes())
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


def begin_segment(folder: Path, keep: int) -> AbstractContextManager[GenerationWriter]:
    """Start the generation of a segment; the caller holds the writer lock (see `BeginGeneration`)."""
    return begin_generation(folder, make_current=False)
