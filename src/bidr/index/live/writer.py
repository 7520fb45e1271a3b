"""The one writer of a live index: documents come and go through the log, and become segments when there are enough."""

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
from bidr.index.cost_model.memory_budget import parse_bytes
from bidr.index.documents.id_index import IdIndex
from bidr.index.live.compaction import compacting, why_not_merged
from bidr.index.live.drift import Drift, Watch
from bidr.index.live.live_index import LiveIndex
from bidr.index.live.segment import Bits, Part, bits_set
from bidr.index.live.segment_merge import segment_of_log, segment_of_parts
from bidr.index.live.types import Coded, Coder
from bidr.index.live.view import LiveView
from bidr.index.live.wal import LogWriter, write_log
from bidr.index.live.wal_record import Change, checked_documents, from_bytes, to_bytes
from bidr.index.storage.commit import Generation, confirm_current, next_generation, only_writer, wanted
from bidr.index.storage.live_state import Segment, State
from bidr.index.storage.manifest import FileEntry, current_generation
from bidr.index.vectors import MAX_VALUES
from bidr.utils.array_types import Floats
from bidr.utils.progress import say

LOG_DOCUMENTS = 4_096
LOG_BYTES = 64 << 20
SEGMENTS = 8


class LiveWriter:
    """Adds, replaces and deletes. What a call returned from is durable, and readers see it within a second.

    coder:         by which documents get codes and vectors: those of the model that made the index.
    log_documents: how many documents the log may hold before they become a segment.
    segments:      how many segments there may be before all but the first are merged.
    ram_budget:    most anonymous memory that such a merge may take (bytes, or "1GiB"), with the index, which is open;
                   what would take more is not merged.
    warn:          told when what is added no longer suits the codebooks, and when segments are not merged.
    wait:          seconds to wait for another writer, before this one is refused.
    expect_model:  fingerprint of the model that `coder` is of; an index that another made is refused.
    """

    def __init__(
        self,
        folder: Path | str,
        coder: Coder,
        *,
        log_documents: int = LOG_DOCUMENTS,
        segments: int = SEGMENTS,
        ram_budget: int | str | None = None,
        warn: Callable[[str], None] = say,
        wait: float = 0.0,
        expect_model: str | None = None,
    ) -> None:
        self.folder, self.coder = Path(folder), coder
        self.log_documents, self.most_segments = log_documents, segments
        self._budget = None if ram_budget is None else parse_bytes("ram_budget", str(ram_budget))
        self._warn, self._told = warn, False
        self._watch = Watch(lambda documents, vectors: self.coder(documents, vectors).errors, warn)
        self._lock, self._held = threading.RLock(), ExitStack()
        self._process, self._stale, self._confirmed = os.getpid(), False, False
        self._log: LogWriter | None = None
        self._names: dict[str, IdIndex] = {}
        current_generation(self.folder)  # an index must be there before a lock file is made
        self._held.enter_context(only_writer(self.folder, wait))
        try:
            self._live = LiveIndex.open(self.folder, expect_model)
            self._open()
        except BaseException:
            self._held.close()
            raise

    @property
    def view(self) -> LiveView:
        """What the index holds now."""
        return self._view

    @property
    def drift(self) -> Drift | None:
        """How what was added last compares with the corpus; None: too little was added."""
        return self._watch.drift

    @property
    def wanted(self) -> bool:
        """Whether another process waits to write: close this writer soon, and it has its turn before the next one."""
        return wanted(self.folder)

    def add(self, documents: Sequence[Document], vectors: Floats | None = None) -> int:
        """Put documents into the index in one commit; one whose id is there already is replaced."""
        checked = checked_documents(documents)
        if not checked:
            return 0
        self._check_process()
        dim = self._view.manifest.dim
        vectors = None if vectors is None else as_array(vectors, "vectors")
        if vectors is not None and vectors.shape != (len(checked), dim):
            raise DataError(f"vectors: given shape {vectors.shape}, expected {(len(checked), dim)}: one a document")
        coded = self._fitting(self.coder(checked, vectors), len(checked))
        texts = any(document.title or document.text for document in checked)
        with self._lock:
            deleted, forgotten = self._find([document.id for document in checked])
            half = coded.vectors.astype(np.float16)
            self._commit(Change(checked, texts, coded.codes, half, coded.errors, deleted, forgotten))
            self._watch.look(self._view)
        return len(checked)

    def delete(self, ids: Collection[str], *, missing_ok: bool = False) -> int:
        """Take documents out of the index in one commit; how many. An unknown id is refused, and nothing is deleted."""
        self._check_process()
        names = list(dict.fromkeys(validate_ids(ids)))
        with self._lock:
            deleted, forgotten = self._find(names)
            found = len(forgotten) + sum(map(len, deleted.values()))
            if found < len(names) and not missing_ok:
                unknown = next(name for name in names if not any(self._find([name])))
                raise DataError(
                    f"{self.folder}: no document {unknown!r}; leave it out, or allow ids that are missing "
                    "(--missing-ok, or missing_ok=True in Python)"
                )
            if found:
                memory = self._view.memory
                arrays = memory.codes[:0], memory.vectors[:0], memory.errors[:0]
                self._commit(Change([], False, *arrays, deleted, forgotten))
        return found

    def known(self, ids: Collection[str]) -> set[str]:
        """Those of the ids that the index has."""
        self._check_process()
        asked = validate_ids(ids)
        with self._lock:
            self._follow_own()
            view = self._view
            return {
                name
                for name in asked
                if name in view.memory.rows or any(self._row(part, name) is not None for part in view.parts)
            }

    def flush(self) -> None:
        """Turn what the log holds into a segment."""
        self._check_process()
        with self._lock:
            self._flush()
            if len(self._view.parts) > self.most_segments and self._may_merge():
                self._merge(first=1)

    def _may_merge(self) -> bool:
        why_not = why_not_merged(self._view, self._budget)
        if why_not is not None and not self._told:
            self._warn(why_not)
            self._told = True
        return why_not is None

    def _flush(self) -> None:
        """A new state of what is in memory. Of the log nothing is read back: it may not be what the disk holds."""
        self._follow_own()
        view, spare = self._view, []
        # The first segment stays even where nothing of it is left: by its engine all are merged.
        first = view.parts[0]
        segments = [(part.open.segment, part.deleted) for part in view.parts if part.alive or part is first]
        if view.memory.alive.any():
            made = segment_of_log(view, next_segment)
            segments.append((made, None))
            spare.append(made.name)
        self._put_in_force(segments, spare)

    def compact(self, *, ram_budget: int | str | None = None) -> None:
        """Merge all segments and the log into one, without what is deleted; its engine is chosen anew, if it was.

        One that was killed is gone on with, if nothing was added or deleted since.
        ram_budget: most anonymous memory that it may take, with this index, which is open (bytes, or "1GiB"); what
        cannot be kept is refused.
        """
        self._check_process()
        with self._lock:
            self._follow_own()
            self._compact(ram_budget)

    def _compact(self, ram_budget: int | str | None) -> None:
        with compacting(self._view, ram_budget) as work:
            self._flush()
            if len(self._view.parts) > 1 or self._view.parts[0].deleted is not None:
                before = self._view.manifest.engine
                self._merge(first=0, work=work)
                if (after := self._view.manifest.engine) != before:
                    say(f"{self.folder}: {self._view.count:,} documents are found by {after} now, not by {before}")

    def close(self) -> None:
        """Let another writer have the index. In a forked child it does nothing: the index is the parent's."""
        if os.getpid() != self._process:
            return
        with self._lock:
            self._close_log()
            self._live.close()
            self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _check_process(self) -> None:
        """Refuse a forked child, before it waits for a lock that a thread of the parent may have."""
        if os.getpid() != self._process:
            raise ForkError(
                f"{self.folder}: this writer was opened by process {self._process} and is used in its forked child "
                f"{os.getpid()}; open another one in the child, when the parent has closed its own"
            )

    def _open(self) -> None:
        """Take up the state in force. There is no log to append to where it has none, or one that cannot be trusted."""
        self._view = self._live.now()
        self._names = {
            part.open.segment.name: self._names.get(part.open.segment.name)
            or IdIndex(self.folder / part.open.segment.name, part.open.reader.manifest, part.count)
            for part in self._view.parts
        }
        end = self._live.log_end()
        if end is not None:
            self._log = LogWriter(self._view.generation, *end)
        self._stale = False

    def _follow_own(self) -> None:
        """Open the state that this writer put in force, where it failed to do so at once."""
        if self._stale:
            self._close_log()
            self._open()

    def _ready(self) -> None:
        """Have a log that takes more, in a state that stays in force."""
        self._follow_own()
        held = len(self._view.memory.documents)
        if self._log is None or self._log.broken or held >= self.log_documents or self._log.end > LOG_BYTES:
            self.flush()
        elif not self._confirmed:
            confirm_current(self.folder)
            self._confirmed = True

    def _find(self, ids: list[str]) -> tuple[dict[str, list[int]], list[str]]:
        """Where documents of these ids are: rows by segment, and those in the log."""
        self._ready()
        deleted: dict[str, list[int]] = {}
        for part in self._view.parts:
            alive = [row for name in ids if (row := self._row(part, name)) is not None]
            if alive:
                deleted[part.open.segment.name] = alive
        return deleted, [name for name in ids if name in self._view.memory.rows]

    def _row(self, part: Part, name: str) -> int | None:
        row = self._names[part.open.segment.name].find(name)
        return None if row is None or part.is_deleted(row) else row

    def _commit(self, change: Change) -> None:
        assert self._log is not None
        record = to_bytes(change)
        changed = self._view.after([from_bytes(record, self._log.path)])
        try:
            self._log.append([record])
        except BaseException as error:
            self._log.seal()
            if isinstance(error, Exception):  # else: somebody wants to stop, and the next commit does it
                with suppress(BidrError, OSError):
                    self._flush()
            raise
        self._view = changed

    def _merge(self, first: int, work: WorkFolder | None = None) -> None:
        parts = [part for part in self._view.parts[first:] if part.alive]
        if parts:
            kept = [(part.open.segment, part.deleted) for part in self._view.parts[:first]]
            made = segment_of_parts(self._view, parts, next_segment, like=self._view.parts[first], work=work)
            self._put_in_force([*kept, (made, None)], [made.name])

    def _put_in_force(self, segments: list[tuple[Segment, Bits | None]], spare: list[str]) -> None:
        """Commit a state of these segments, with an empty log."""
        if self._log is not None:
            # Should the commit fail, nobody knows which state is in force after a crash; the lock stays until one is.
            self._log.broken = True
        view, drift = self._view, self.drift._asdict() if self.drift else self._view.state.drift
        with next_generation(self.folder, spare=spare) as generation:
            named = []
            for segment, deleted in segments:
                gone = 0 if deleted is None else bits_set(deleted)
                named.append(Segment(segment.name, segment.xxh3, segment.count, gone))
                if deleted is not None and gone:
                    with generation.file(named[-1].tombstones) as out:
                        out.write(deleted.tobytes())
            write_log(generation.aside, generation.name)

            def describe(files: dict[str, FileEntry]) -> State:
                return State(segments=tuple(named), model=view.state.model, files=dict(files), drift=drift)

            generation.commit(describe)
            self._stale = self._confirmed = True
        self._follow_own()

    def _close_log(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def _fitting(self, coded: Coded, count: int) -> Coded:
        """Refuse arrays that do not fit the index, before anything is written; vectors as they are stored."""
        manifest = self._view.manifest
        found = (coded.codes.shape, coded.vectors.shape, coded.errors.shape)
        expected = ((count, manifest.books), (count, manifest.dim), (count,))
        if found != expected:
            raise DataError(
                f"codes, vectors and errors of shapes {found} given, expected {expected}; use its own model"
            )
        coded, largest = coded._replace(vectors=manifest.cut(coded.vectors)), MAX_VALUES["fp16"]
        bad = ~(np.abs(coded.vectors) <= largest).all(axis=1)
        if bad.any():
            raise DataError(
                f"vectors: row {int(bad.argmax())} holds a number that is not finite or above {largest:,.0f} in size "
                "(fp16); scale or normalise the vectors"
            )
        return coded


def next_segment(folder: Path, keep: int) -> AbstractContextManager[Generation]:
    """How a segment is begun by whom has the index already."""
    return next_generation(folder, alone=False)
