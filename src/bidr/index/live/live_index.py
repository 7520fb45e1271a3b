"""An index that is followed: whoever asks gets its newest state, at most a fraction of a second old."""

import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bidr.errors import REBUILD, BidrError, IndexFolderError
from bidr.index.live.drift import check_drift
from bidr.index.live.memtable import Memory
from bidr.index.live.segment import OpenSegment, Part, read_tombstones
from bidr.index.live.verify import describe_live, verify_live
from bidr.index.live.view import LiveCandidates, LiveDocuments, LiveVectors, LiveView
from bidr.index.live.wal import LogReader
from bidr.index.live.wal_record import Change, from_bytes
from bidr.index.reader import check_model
from bidr.index.storage.live_state import State, read_state
from bidr.index.storage.manifest import Manifest, current_generation, settled
from bidr.quantization.codebooks import Codebooks
from bidr.utils.progress import say

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
                changes = self._changes(self._log)
                if self._log.unconfirmed and current_generation(self.folder) != current:
                    self._view = settled(self.folder, self._load)
                else:
                    self._view = self._view.after(changes)
        except BaseException:
            self._current = ("", "")  # whatever was half taken up, the next look begins anew
            raise

    def now(self) -> LiveView:
        """The state of this very moment."""
        with self._lock:
            self.follow()
            return self._view

    def log_end(self) -> tuple[int, int] | None:
        """Where a writer may append to the log, and its checksum there; None where it must not, or there is none."""
        log = self._log
        return (log.end, log.chain) if log is not None and log.appendable else None

    def _load(self, name: str, digest: str) -> LiveView:
        state = read_state(self.folder, name, digest)
        check_drift(state.drift, self.folder / name)
        check_model(self.folder, state.model, self.expect_model)
        parts = self._open_parts(name, state)
        manifest = parts[0].open.reader.manifest
        view = LiveView(self.folder, name, state, parts, Memory.empty(manifest.books, manifest.stored_dim))
        log = LogReader(self.folder / name) if state.live else None
        if log is not None:
            view = view.after(self._changes(log))
            if log.unconfirmed and current_generation(self.folder) != (name, digest):
                # Its writer may have refused them, and have put a state without them in force before it let go.
                raise IndexFolderError(f"{self.folder / name}: was replaced while its log was read; try again")
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
