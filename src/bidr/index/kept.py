"""Long steps that change what they made before, kept now and then as a whole: rounds of k-means, a graph that grows."""

import time
from typing import Any

import numpy as np

from bidr.codes.codebooks import Floats
from bidr.errors import StorageError
from bidr.files import remove, sync_file
from bidr.index import work as marks
from bidr.index.engines.clusters import ROUNDS, Rounds
from bidr.index.engines.files import open_array
from bidr.index.faissfile import faiss_module
from bidr.index.folder import FileEntry, file_checksum
from bidr.index.work import Work, write_array

# Keeping may take so much of the time.
SHARE = 1 / 20


class KeptRounds(Rounds):
    """The centroids after every round."""

    def __init__(self, work: Work, made_from: Any) -> None:
        self.work, self.made_from = work, made_from

    def last(self) -> tuple[int, Floats | None]:
        for done in range(ROUNDS, 0, -1):
            name = f"centroids.{done}.npy"
            if self.work.there(name, self.made_from):
                return done, np.array(open_array(self.work.folder / name, np.dtype("<f4"), 2))
        return 0, None

    def keep(self, done: int, centroids: Floats) -> None:
        if self.work.kept:
            name, shape, dtype = f"centroids.{done}.npy", centroids.shape, np.dtype("<f4")
            self.work.run(name, self.made_from, lambda step: write_array(step, name, dtype, shape, [centroids]))


class KeptGraph:
    """A Faiss index that is added to, in one of two files: the other one is written while this one counts."""

    NAME = "links"

    def __init__(self, work: Work, made_from: Any) -> None:
        self.work, self.made_from = work, made_from
        self._number, self._took, self._kept = 0, 0.0, time.monotonic()

    def last(self) -> Any:
        """The index as it was kept last, or None."""
        found = self.work.there(self.NAME, self.made_from)
        if not found:
            return None
        (name,) = found
        self._number = int(name.split(".")[1])
        return faiss_module().read_index(str(self.work.folder / name))

    def keep(self, index: Any) -> None:
        """Keep it, if that does not take too much of the time."""
        started = time.monotonic()
        if not self.work.kept or started - self._kept < max(marks.MARK_SECONDS, self._took / SHARE):
            return
        old, self._number = self._name(), 1 - self._number
        path = self.work.folder / self._name()
        try:
            faiss_module().write_index(index, str(path))
        except RuntimeError as error:  # Faiss does not say which refusal it was
            raise StorageError(f"cannot write {path}: {str(error).splitlines()[0]}; is the disk full?") from error
        sync_file(path)
        self.work.put(self.NAME, self.made_from, {path.name: FileEntry(path.stat().st_size, file_checksum(path))})
        remove(self.work.folder / old)
        self._kept = time.monotonic()
        self._took = self._kept - started

    def _name(self) -> str:
        return f"links.{self._number}.faiss"
