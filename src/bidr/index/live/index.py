"""An index that is followed: whoever asks gets its newest state, at most a fraction of a second old."""

import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bidr.codes.codebooks import Codebooks
from bidr.errors import REBUILD, BidrError, IndexFolderError
from bidr.index.live.changes import Change, from_bytes
from bidr.index.live.check import describe_live, verify_live
from bidr.index.live.drift import check_drift
from bidr.index.live.log import LogReader
from bidr.index.live.memory import Memory
from bidr.index.live.parts import OpenSegment, Part, read_tombstones
from bidr.index.live.view import LiveCandidates, LiveDocuments, LiveVectors, LiveView
from bidr.index.reader import check_model
from bidr.index.storage.folder import Manifest, current_generation, settled
from bidr.index.storage.state import State, read_state
from bidr.progress import say

LOOK_EVERY = 0.2


class LiveIndex:
    """Any index folder, opened for searching. What writers commit is seen within LOOK_EVERY seconds."""

    def __init__(self, folder: Path, expect_model: str | None = None, ef: int | None = None) -> None:
        self.folder, self.expect_model, self.ef = folder, expect_model, ef
        self._lock, self._looked = threading.Lock(), 0.0
        self._current: tuple[str, str] = ("", "")
        self.trouble: str | None = None
        self._log: LogReader | None = None
        self._view: LiveView = settled(folder, self._load)

    @classmethod
    def open(cls, folder: Path | str, expect_model: str | None = None, ef: int | None = None) -> Self:
        """Open an index as it was built, or one that was added to. Arguments as those of `IndexReader.open`."""
        return cls(Path(folder), expect_model, ef)

    def latest(self) -> LiveView:
        """The newest state. Costs a look at two small files now and then; one of many threads does it for all."""
        if time.monotonic() - self._looked >= LOOK_EVERY and self._lock.acquire(blocking=False):
            try:
                self.follow()
                self.trouble = None
            except (BidrError, OSError) as error:
                if self.trouble is None:
                    say(f"{self.folder} is served as it was opened: what came later cannot be read ({error})")
                self.trouble = str(error)
            finally:
                self._looked = time.monotonic()
                self._lock.release()
        return self._view

    def follow(self) -> None:
        """Look for what was committed since. What is served stays as it is if the newest state cannot be opened."""
        current = current_generation(self.folder)
        try:
            if current != self._current:
                self._view = settled(self.folder, self._load)
            elif self._log is not None and self._log.grown():
                self._view = _after(self._view, self._changes(self._log))
        except BaseException:
            self._current = ("", "")  # whatever was half taken up, the next look begins anew
            raise

    def now(self) -> LiveView:
        """The state of this very moment."""
        with self._lock:
            self.follow()
            return self._view

    def log_end(self) -> tuple[int, int] | None:
        """Where the log ends, and its checksum there; None where it has none, or ends in the middle of a record."""
        log = self._log
        return None if log is None or log.grown() else (log.end, log.chain)

    def _load(self, name: str, digest: str) -> LiveView:
        state = read_state(self.folder, name, digest)
        check_drift(state.drift, self.folder / name)
        check_model(self.folder, state.model, self.expect_model)
        parts = self._open_parts(name, state)
        manifest = parts[0].open.reader.manifest
        view = LiveView(self.folder, name, state, parts, Memory.empty(manifest.books, manifest.stored_dim))
        log = LogReader(self.folder / name) if state.live else None
        if log is not None:
            view = _after(view, self._changes(log))
        self._current, self._log = (name, digest), log
        return view

    def _open_parts(self, name: str, state: State) -> tuple[Part, ...]:
        """Segments that are open already are taken over."""
        open_before = self._view.parts if hasattr(self, "_view") else ()
        known = {(part.open.segment.name, part.open.segment.xxh3): part.open for part in open_before}
        parts, start = [], 0
        for segment in state.segments:
            opened = known.get((segment.name, segment.xxh3)) or OpenSegment.open(self.folder, segment, self.ef)
            parts.append(Part(opened, start, read_tombstones(self.folder / name, state, segment)))
            start += segment.count
        _check_alike(self.folder, parts)
        return tuple(parts)

    @staticmethod
    def _changes(log: LogReader) -> list[Change]:
        return [from_bytes(record, log.path) for record in log.read()]

    def to_faiss(self, engine: str = "scan") -> Any:
        """The codes as a plain Faiss index over rows (see `IndexReader.to_faiss`)."""
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
    def ram_bytes_per_doc(self) -> float:
        return self._view.ram_bytes_per_doc

    def describe(self) -> dict[str, Any]:
        """What is in RAM, what is on disk, which segments, what the log holds."""
        return describe_live(self.latest())

    def verify(self) -> None:
        """Check every byte of every file of the state in force."""
        verify_live(self.latest())

    def close(self) -> None:
        """Let go; files are closed when the last view is gone."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _check_alike(folder: Path, parts: list[Part]) -> None:
    """Refuse segments that one query cannot be asked of."""
    shapes = [
        (manifest.dim, manifest.stored_dim, manifest.code_dim, manifest.books, manifest.words)
        for manifest in (part.open.reader.manifest for part in parts)
    ]
    for part, shape in zip(parts, shapes, strict=True):
        if shape != shapes[0]:
            raise IndexFolderError(
                f"{folder / part.open.segment.name}: dimensions and codes of {shape}, other segments of {shapes[0]}; "
                f"{REBUILD}"
            )


def _after(view: LiveView, changes: list[Change]) -> LiveView:
    """The view with some more commits."""
    if not changes:
        return view
    fitting, words = (view.memory.codes.shape[1], view.memory.vectors.shape[1]), view.manifest.words
    for change in changes:
        found = change.codes.shape[1], change.vectors.shape[1]
        if len(change.documents) and (found != fitting or int(change.codes.max()) >= words):
            raise IndexFolderError(
                f"{view.generation}: the log holds codes and vectors of {found} numbers, expected {fitting}, or other "
                f"codes than the {words} there are; {REBUILD}"
            )
    parts = list(view.parts)
    for number, part in enumerate(parts):
        rows = [row for change in changes for row in change.deleted.get(part.open.segment.name, ())]
        if rows and not all(0 <= row < part.count for row in rows):
            raise IndexFolderError(f"{view.generation}: the log deletes rows that {part.open.segment.name} has not")
        parts[number] = part.after(rows) if rows else part
    memory = view.memory.after(changes)
    return LiveView(view.folder, view.generation.name, view.state, tuple(parts), memory)
