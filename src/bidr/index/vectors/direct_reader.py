"""O_DIRECT reader: rows that are not in memory are read past the page cache and scored from a buffer."""

import os
from pathlib import Path
from typing import Any, Self

from bidr.index.vectors.row_cache import CacheMemory
from bidr.utils.array_types import Floats, Rows

MAX_SYNCHRONOUS_READS = 8


class DirectReader:
    """A second descriptor of a vector file (O_DIRECT), and whether reading through it pays."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self._synchronous_reads, self._disabled = 0, False

    @classmethod
    def open(cls, path: Path) -> Self | None:
        """Open a file; None where the system or the file system has no O_DIRECT."""
        try:
            return cls(os.open(path, os.O_RDONLY | os.O_DIRECT))
        except (AttributeError, OSError):
            return None

    def is_usable(self) -> bool:
        """Tell whether reads bypass the page cache."""
        from bidr.index.vectors.read_buffers import read_buffers

        return not self._disabled and read_buffers.is_usable()

    def score(self, file: Any, keys: Rows, cache: CacheMemory, query: Floats, scores: Floats, counts: Rows) -> bool:
        """Read and score rows (see `score_direct`), waiting for a free buffer.

        Returns:
            False on any failure: the page-cache path reads the rows again and reports the error.
        """
        from bidr.index.vectors import direct_io
        from bidr.index.vectors.read_buffers import read_buffers

        buffer = None if self._disabled else read_buffers.borrow(wait=True)
        if buffer is None:
            return False
        state = direct_io.STUCK
        try:
            state = buffer.score(file, keys, cache, query, scores, counts)
        finally:
            if state == direct_io.STUCK:
                read_buffers.retire(buffer, "reads stopped being answered")
            else:
                read_buffers.release(buffer)
        # Where every read is waited for (a file system that ignores O_DIRECT), the page cache is faster.
        if state == direct_io.SYNCHRONOUS:
            self._synchronous_reads += 1
        elif state == direct_io.OK and counts[direct_io.READS] > direct_io.QUEUE_DEPTH:
            self._synchronous_reads = 0
        if state == direct_io.UNSUPPORTED or self._synchronous_reads == MAX_SYNCHRONOUS_READS:
            self._disabled = True
        return state < direct_io.FAILED

    def close(self) -> None:
        os.close(self.handle)
