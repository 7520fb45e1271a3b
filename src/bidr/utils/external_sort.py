"""Sort records by hash in bounded memory: bucketed runs in an anonymous temporary file, read back by bucket."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from bidr.utils.spill_file import SpillFile

Records = npt.NDArray[Any]
BUCKETS = 256


class ExternalSorter:
    """Bucket sort of records with a 64-bit field "hash" by its first byte.

    Args:
        dtype: the type of a record.
        folder: where the temporary file goes, or in the nearest existing parent.
        buffer_records: records to hold in memory before they are written as a run.
    """

    def __init__(self, dtype: np.dtype[Any], folder: Path, buffer_records: int) -> None:
        self.dtype, self.buffer_records = dtype, buffer_records
        self.count = self._buffered = 0
        self._buffer: list[Records] = []
        self._file = SpillFile(folder)
        self._run_offsets: list[npt.NDArray[np.int64]] = []
        """For each run: where each bucket starts and the last one ends, in records from the start of the file."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, records: Records) -> None:
        self._buffer.append(records)
        self._buffered += len(records)
        self.count += len(records)
        if self._buffered >= self.buffer_records:
            self._write_run()

    def iter_buckets(self) -> Iterator[Records]:
        """Yield the records of each bucket, in order of insertion; to be called once."""
        if not self._run_offsets:
            records, offsets = self._sort_buffer()
            yield from (records[start:end] for start, end in pairwise(offsets))
            return
        if self._buffered:
            self._write_run()
        for bucket in range(BUCKETS):
            parts = [self._read(int(offsets[bucket]), int(offsets[bucket + 1])) for offsets in self._run_offsets]
            yield np.concatenate(parts)

    def _sort_buffer(self) -> tuple[Records, npt.NDArray[np.int64]]:
        """Empty the buffer: return its records sorted by bucket, and where each bucket starts."""
        records = np.concatenate([np.empty(0, self.dtype), *self._buffer])
        self._buffer, self._buffered = [], 0
        buckets = (records["hash"] >> np.uint64(56)).astype(np.uint8)
        offsets = np.concatenate(([0], np.cumsum(np.bincount(buckets, minlength=BUCKETS))))
        return records[np.argsort(buckets, kind="stable")], offsets

    def _write_run(self) -> None:
        start = self.count - self._buffered
        records, offsets = self._sort_buffer()
        self._file.append(records.view(np.uint8).data)
        self._run_offsets.append(start + offsets)

    def _read(self, start: int, end: int) -> Records:
        size = self.dtype.itemsize
        return np.frombuffer(self._file.read(start * size, (end - start) * size), dtype=self.dtype)
