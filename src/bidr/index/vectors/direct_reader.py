"""O_DIRECT reader. One-off reads bypass the page cache so that they do not evict hot pages."""

import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from bidr.index.vectors.npy_header import BLOCK
from bidr.utils.array_types import Rows

if TYPE_CHECKING:
    from bidr.index.vectors.read_buffers import ReadBuffer

MAX_SYNCHRONOUS_READS = 8


class FetchedRows:
    """Rows brought by `VectorFile.fetch`: the offset of each in a buffer, -1 where it is in mapped memory.

    The buffer returns to its pool when this object is dropped.
    """

    def __init__(self, buffer: "ReadBuffer | None", offsets: Rows) -> None:
        self.buffer, self.offsets = buffer, offsets

    def __del__(self) -> None:
        if self.buffer is not None:
            self.buffer.release()


ALL_MAPPED = FetchedRows(None, np.empty(0, dtype=np.int64))


class DirectReader:
    """A second descriptor of a vector file (O_DIRECT), and whether reading through it pays."""

    def __init__(self, handle: int, size: int) -> None:
        self._handle, self._size = handle, size
        self._synchronous_reads, self._disabled = 0, False
        # First reads are forgotten after as many blocks as fit in memory: only blocks read twice within that time
        # belong in the page cache. A smaller file never gets there.
        self._history_blocks = self._blocks_until_reset = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE // BLOCK

    @classmethod
    def open(cls, path: Path, size: int) -> Self | None:
        """Open a file; None where the system or the file system has no O_DIRECT."""
        try:
            return cls(os.open(path, os.O_RDONLY | os.O_DIRECT), size)
        except (AttributeError, OSError):
            return None

    def is_usable(self) -> bool:
        """Tell whether reads bypass the page cache."""
        from bidr.index.vectors.read_buffers import read_buffers

        return not self._disabled and read_buffers.is_usable()

    def read(
        self, blocks: Rows, flags: Any, words: Any, expected: Any, reread: bool
    ) -> "tuple[ReadBuffer | None, Rows]":
        """Read those of sorted blocks that are read for the first time (all of them with `reread`).

        Args:
            flags: Two bitmaps over blocks: verified in mapped memory; read directly once.
            words: The mapped file.
            expected: Checksums of its blocks.

        Returns:
            The buffer and the blocks in it. On any failure no buffer: the page-cache path reads the blocks and
            reports the error.
        """
        from bidr.index.vectors import direct_io
        from bidr.index.vectors.read_buffers import read_buffers

        buffer = None if self._disabled else read_buffers.borrow()
        if buffer is None:
            return None, blocks
        selected = direct_io.select_direct_blocks(blocks, flags, reread, buffer.size, words.ctypes.data, mmap.PAGESIZE)
        state = direct_io.FAILED
        if len(selected):
            state = buffer.read(self._handle, self._size, selected, expected, flags[1])
        if state == direct_io.STUCK:
            read_buffers.retire(buffer, "reads stopped being answered")
        elif state >= direct_io.FAILED:
            buffer.release()
        # Where every read is waited for (a file system that ignores O_DIRECT), the page cache is faster.
        if state == direct_io.SYNCHRONOUS:
            self._synchronous_reads += 1
        elif state == direct_io.OK and len(selected) > direct_io.QUEUE_DEPTH:
            self._synchronous_reads = 0
        if state == direct_io.UNSUPPORTED or self._synchronous_reads == MAX_SYNCHRONOUS_READS:
            self._disabled = True
        self._blocks_until_reset -= len(selected)
        if self._blocks_until_reset < 0:
            flags[1], self._blocks_until_reset = 0, self._history_blocks
        return (None, blocks) if state >= direct_io.FAILED else (buffer, selected)

    def close(self) -> None:
        os.close(self._handle)
