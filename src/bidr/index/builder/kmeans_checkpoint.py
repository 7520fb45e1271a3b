"""Snapshots of k-means, a step whose state changes in place and is saved as a whole."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bidr.index.builder import journal
from bidr.index.builder.coarse_clustering import KMeansCheckpoint, KMeansState
from bidr.index.builder.journal import WorkFolder
from bidr.index.storage.manifest import FileEntry, hash_file
from bidr.utils.files import remove, sync_file

# Largest share of the time to spend on saving.
MAX_TIME_SHARE = 1 / 20


class DoubleBufferedFile:
    """A snapshot in one of two files: the other one is written while this one is valid."""

    def __init__(self, work: WorkFolder, name: str, inputs: Any) -> None:
        self.work, self.name, self.inputs = work, name, inputs
        self._number, self._save_seconds, self._saved_at = 0, 0.0, time.monotonic()

    def find(self) -> Path | None:
        """Return the file that was saved last."""
        files = self.work.find_complete_step(self.name, self.inputs)
        if not files:
            return None
        (name,) = files
        self._number = int(name.rsplit(".", 1)[1])
        return self.work.folder / name

    @property
    def is_due(self) -> bool:
        """Whether enough time has passed since the last save."""
        elapsed = time.monotonic() - self._saved_at
        return self.work.resumable and elapsed >= max(journal.CHECKPOINT_SECONDS, self._save_seconds / MAX_TIME_SHARE)

    def save(self, write: Callable[[Path], object]) -> None:
        if not self.work.resumable:
            return
        start, previous = time.monotonic(), self._get_path()
        self._number = 1 - self._number
        path = self._get_path()
        write(path)
        sync_file(path)
        entry = FileEntry(path.stat().st_size, hash_file(path))
        self.work.save_complete_step(self.name, self.inputs, {path.name: entry})
        remove(previous)
        self._saved_at = time.monotonic()
        self._save_seconds = self._saved_at - start

    def _get_path(self) -> Path:
        return self.work.folder / f"{self.name}.{self._number}"


class SavedKMeansCheckpoint(KMeansCheckpoint):
    """Checkpoint of k-means in the work folder of a build."""

    def __init__(self, work: WorkFolder, inputs: Any) -> None:
        # Not "means": the step of block centroids has this name in the same folder and would overwrite the mark.
        self._file = DoubleBufferedFile(work, "kmeans", inputs)

    def load(self) -> KMeansState | None:
        from safetensors.numpy import load_file

        path = self._file.find()
        if path is None:
            return None
        arrays = load_file(path)
        rounds, rows = arrays.pop("position").tolist()
        return KMeansState(rounds, rows, **arrays)

    def save(self, state: KMeansState, *, force: bool = False) -> None:
        from safetensors.numpy import save

        if force or self._file.is_due:
            position = np.array([state.rounds, state.rows], dtype=np.int64)
            arrays: dict[str, Any] = {"centroids": state.centroids, "sums": state.sums, "sizes": state.sizes}
            self._file.save(lambda path: path.write_bytes(save({**arrays, "position": position})))
