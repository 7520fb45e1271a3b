"""A step that changes what it made before, kept now and then as a whole: the means of clusters."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bidr.index.builder import journal as marks
from bidr.index.builder.coarse_clustering import Moving, Rounds
from bidr.index.builder.journal import Work
from bidr.index.storage.manifest import FileEntry, file_checksum
from bidr.utils.files import remove, sync_file

# Keeping may take so much of the time.
SHARE = 1 / 20


class Slots:
    """One of two files: the other one is written while this one counts."""

    def __init__(self, work: Work, name: str, made_from: Any) -> None:
        self.work, self.name, self.made_from = work, name, made_from
        self._number, self._took, self._kept = 0, 0.0, time.monotonic()

    def last(self) -> Path | None:
        """What was kept last."""
        found = self.work.there(self.name, self.made_from)
        if not found:
            return None
        (name,) = found
        self._number = int(name.rsplit(".", 1)[1])
        return self.work.folder / name

    @property
    def due(self) -> bool:
        """Whether to keep it now does not take too much of the time."""
        since = time.monotonic() - self._kept
        return self.work.kept and since >= max(marks.MARK_SECONDS, self._took / SHARE)

    def keep(self, write: Callable[[Path], object]) -> None:
        if not self.work.kept:
            return
        started, old = time.monotonic(), self._path()
        self._number = 1 - self._number
        path = self._path()
        write(path)
        sync_file(path)
        self.work.put(self.name, self.made_from, {path.name: FileEntry(path.stat().st_size, file_checksum(path))})
        remove(old)
        self._kept = time.monotonic()
        self._took = self._kept - started

    def _path(self) -> Path:
        return self.work.folder / f"{self.name}.{self._number}"


class KeptRounds(Rounds):
    """How far k-means is."""

    def __init__(self, work: Work, made_from: Any) -> None:
        # Not "means": those of blocks are a step of the same work, whose mark would take the place of this one's.
        self._slots = Slots(work, "kmeans", made_from)

    def last(self) -> Moving | None:
        from safetensors.numpy import load_file

        path = self._slots.last()
        if path is None:
            return None
        found = load_file(path)
        rounds, rows = found.pop("position").tolist()
        return Moving(rounds, rows, **found)

    def keep(self, state: Moving, *, now: bool = False) -> None:
        from safetensors.numpy import save

        if now or self._slots.due:
            position = np.array([state.rounds, state.rows], dtype=np.int64)
            arrays: dict[str, Any] = {"centroids": state.centroids, "sums": state.sums, "sizes": state.sizes}
            self._slots.keep(lambda path: path.write_bytes(save({**arrays, "position": position})))
