"""Records sorted by hash in bounded memory: sorted runs in a file without a name, read back one range at a time."""

import os
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
import numpy.typing as npt

from bidr.utils.files import storage_errors

Records = npt.NDArray[Any]
RANGES = 256


class Spill:
    """Takes records with a field "hash" (64 bits) and gives them back by ranges of it, lowest first.

    held: records that wait in memory; what is more goes to disk, in the first folder above `near` that is there.
    """

    def __init__(self, dtype: np.dtype[Any], near: Path, held: int) -> None:
        self.dtype, self.near, self.held = dtype, near, held
        self.count = self._waits = 0
        self._parts: list[Records] = []
        self._file: IO[bytes] | None = None
        self._runs: list[npt.NDArray[np.int64]] = []
        """Where each range begins in each run, and where the last one ends: in records from the file's start."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, records: Records) -> None:
        self._parts.append(records)
        self._waits += len(records)
        self.count += len(records)
        if self._waits >= self.held:
            self._write()

    def ranges(self) -> Iterator[Records]:
        """All records, once: each time those whose hash has the next first byte, in the order in which they came."""
        if self._file is None:
            records, edges = self._divided()
            yield from (records[low:high] for low, high in pairwise(edges))
            return
        if self._waits:
            self._write()
        for number in range(RANGES):
            parts = [self._read(int(edges[number]), int(edges[number + 1])) for edges in self._runs]
            yield np.concatenate(parts)

    def _divided(self) -> tuple[Records, npt.NDArray[np.int64]]:
        """What waits and then waits no more, by the first byte of the hash, and where each of these begins."""
        records = np.concatenate([np.empty(0, self.dtype), *self._parts])
        self._parts, self._waits = [], 0
        first = (records["hash"] >> np.uint64(56)).astype(np.uint8)
        edges = np.concatenate(([0], np.cumsum(np.bincount(first, minlength=RANGES))))
        return records[np.argsort(first, kind="stable")], edges

    def _write(self) -> None:
        before = self.count - self._waits
        records, edges = self._divided()
        with storage_errors(self.near):
            if self._file is None:
                folder = next(each for each in (self.near, *self.near.absolute().parents) if each.is_dir())
                self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
            left = records.view(np.uint8).data
            while len(left):
                left = left[self._file.write(left) :]
        self._runs.append(before + edges)

    def _read(self, low: int, high: int) -> Records:
        assert self._file is not None
        size = self.dtype.itemsize
        with storage_errors(self.near):
            content = os.pread(self._file.fileno(), (high - low) * size, low * size)
            if len(content) != (high - low) * size:
                raise OSError(f"{len(content)} bytes where {(high - low) * size} were written")
        return np.frombuffer(content, dtype=self.dtype)
