"""Open an index for searching and follow the commits of its writers."""

import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bidr.errors import REBUILD, BidrError, IndexFolderError
from bidr.index.live.attribute_overlay import AttributeOverlay
from bidr.index.live.drift import validate_drift
from bidr.index.live.inspection import describe_live, verify_live
from bidr.index.live.memtable import Memtable
from bidr.index.live.segment import Segment, SegmentHandle, read_tombstones
from bidr.index.live.view import LiveCandidates, LiveDocuments, LiveVectors, LiveView
from bidr.index.live.wal import WalReader
from bidr.index.live.wal_record import WalRecord, decode_record
from bidr.index.ram_usage import RamUsage
from bidr.index.reader import check_model
from bidr.index.storage.live_state import IndexState, read_state
from bidr.index.storage.manifest import Manifest, read_current, resolve_generation
from bidr.index.vectors import CacheSize, VectorMemory
from bidr.quantization.codebooks import Codebooks
from bidr.utils.progress import say

REFRESH_SECONDS = 0.2


class LiveIndex:
    """An open index, with or without updates. Commits are visible within REFRESH_SECONDS.

    refresh_error: why the newest state could not be opened; None if it could.
    """

    def __init__(
        self,
        folder: Path,
        expect_model: str | None = None,
        ef: int | None = None,
        cache: CacheSize = None,
        memory: VectorMemory | None = None,
    ) -> None:
        self.folder, self.expect_model, self.ef = folder, expect_model, ef
        self.memory = memory or VectorMemory(cache)
        self._lock, self._refreshed = threading.Lock(), 0.0
        self._current: tuple[str, str] = ("", "")
        self.refresh_error: str | None = None
        self._log: WalReader | None = None
        self._view: LiveView = resolve_generation(folder, self._load)

    @classmethod
    def open(
        cls,
        folder: Path | str,
        expect_model: str | None = None,
        ef: int | None = None,
        cache: CacheSize = None,
        memory: VectorMemory | None = None,
    ) -> Self:
        """Open an index (see `IndexReader.open`); memory: instead of `cache`, a memory for its vectors."""
        return cls(Path(folder), expect_model, ef, cache, memory)

    def latest(self) -> LiveView:
        """Return the newest state, at most REFRESH_SECONDS old; one thread at a time refreshes it."""
        if time.monotonic() - self._refreshed >= REFRESH_SECONDS and self._lock.acquire(blocking=False):
            try:
                self.refresh()
                self.refresh_error = None
            except (BidrError, OSError) as error:
                if self.refresh_error is None:
                    say(f"{self.folder}: later commits cannot be read, the last state stays open ({error})")
                self.refresh_error = str(error)
            finally:
                self._refreshed = time.monotonic()
                self._lock.release()
        return self._view

    def refresh(self) -> None:
        """Open the newest state; on error the last one stays open."""
        current = read_current(self.folder)
        try:
            if current != self._current:
                self._view = resolve_generation(self.folder, self._load)
            elif self._log is not None and self._log.has_more():
                records = _read_records(self._log)
                if self._log.has_unacknowledged and read_current(self.folder) != current:
                    self._view = resolve_generation(self.folder, self._load)
                else:
                    self._view = self._view.apply(records)
        except BaseException:
            self._current = ("", "")  # the log may be read half: reload everything next time
            raise

    def refresh_now(self) -> LiveView:
        """Return the current state, whatever the time since the last refresh."""
        with self._lock:
            self.refresh()
            return self._view

    def get_log_end(self) -> tuple[int, int] | None:
        """Return offset and checksum at which a writer may append to the log; None if it must not."""
        log = self._log
        return (log.end, log.chain) if log is not None and log.is_appendable else None

    def _load(self, name: str, digest: str) -> LiveView:
        state = read_state(self.folder, name, digest)
        validate_drift(state.drift, self.folder / name)
        check_model(self.folder, state.model, self.expect_model)
        segments = self._open_segments(name, state)
        manifest = segments[0].reader.manifest
        view = LiveView(self.folder, name, state, segments, Memtable.empty(manifest.books, manifest.stored_dim))
        log = WalReader(self.folder / name) if state.live else None
        if log is not None:
            view = view.apply(_read_records(log))
            if log.has_unacknowledged and read_current(self.folder) != (name, digest):
                # The writer may have refused these commits and committed a state without them before it closed.
                raise IndexFolderError(f"{self.folder / name}: was replaced while its log was read; try again")
        self._current, self._log = (name, digest), log
        return view

    def _open_segments(self, name: str, state: IndexState) -> tuple[Segment, ...]:
        """Open the segments of a state; those of the last state stay open."""
        previous = self._view.segments if hasattr(self, "_view") else ()
        handles = {(segment.name, segment.entry.xxh3): segment.handle for segment in previous}
        segments, start = [], 0
        for entry in state.segments:
            handle = handles.get((entry.name, entry.xxh3)) or SegmentHandle.open(
                self.folder, entry, self.ef, self.memory
            )
            path = self.folder / name
            overlay = AttributeOverlay(path, state, entry) if entry.changed else None
            segments.append(Segment(handle, start, read_tombstones(path, state, entry), overlay))
            start += entry.count
        _check_same_shape(self.folder, segments)
        self.memory.vector_bytes = sum(segment.reader.vectors.size for segment in segments)
        return tuple(segments)

    def to_faiss(self, engine: str = "scan") -> Any:
        """Convert the codes to a Faiss index over rows (see `IndexReader.to_faiss`)."""
        return self.latest().to_faiss(engine)

    @property
    def count(self) -> int:
        return self.latest().count

    @property
    def generation(self) -> Path:
        return self.latest().generation

    @property
    def manifest(self) -> Manifest:
        return self._view.manifest

    @property
    def candidates(self) -> LiveCandidates:
        return self.latest().candidates

    @property
    def vectors(self) -> LiveVectors:
        return self.latest().vectors

    @property
    def documents(self) -> LiveDocuments:
        return self.latest().documents

    @property
    def codebooks(self) -> Codebooks:
        return self._view.codebooks

    @property
    def ram_usage(self) -> RamUsage:
        """RAM by part."""
        return self._view.ram_usage

    @property
    def ram_bytes_per_doc(self) -> float:
        return self._view.ram_bytes_per_doc

    def describe(self) -> dict[str, Any]:
        """Describe settings, segments, RAM and disk use."""
        return describe_live(self.latest())

    def verify(self) -> None:
        """Verify the checksums of all files of the current state."""
        verify_live(self.latest())

    def close(self) -> None:
        """Stop following the index; files are closed when the last view is gone."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _read_records(log: WalReader) -> list[WalRecord]:
    return [decode_record(content, log.path) for content in log.read()]


def _check_same_shape(folder: Path, segments: list[Segment]) -> None:
    """Raise IndexFolderError if segments differ in the dimensions of vectors or codes."""
    shapes = [
        (manifest.dim, manifest.stored_dim, manifest.code_dim, manifest.books, manifest.words)
        for manifest in (segment.reader.manifest for segment in segments)
    ]
    for segment, shape in zip(segments, shapes, strict=True):
        if shape != shapes[0]:
            raise IndexFolderError(
                f"{folder / segment.name}: dimensions and codes of {shape}, expected {shapes[0]} as in the first "
                f"segment; {REBUILD}"
            )
