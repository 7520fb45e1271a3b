"""A file read past the page cache: what is asked for once does not push out what is asked for often."""

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
    """Rows that `VectorFile.fetch` has brought: where each begins in a lane, or -1 where it is in mapped memory.

    The lane goes back when this is dropped.
    """

    def __init__(self, lane: "ReadBuffer | None", places: Rows) -> None:
        self.lane, self.places = lane, places

    def __del__(self) -> None:
        if self.lane is not None:
            self.lane.give_back()


ALL_MAPPED = FetchedRows(None, np.empty(0, dtype=np.int64))


class DirectReader:
    """A second handle of a file of vectors (O_DIRECT), and whether it is of use."""

    def __init__(self, handle: int, size: int) -> None:
        self._handle, self._size = handle, size
        self._at_once, self._refused = 0, False
        # What was read once is forgotten after as many blocks as memory could hold: only what is asked for twice within
        # that time belongs into the page cache. A file that is smaller never gets there.
        self._remembered = self._left = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE // BLOCK

    @classmethod
    def open(cls, path: Path, size: int) -> Self | None:
        """None where the system or the file system knows no such thing."""
        try:
            return cls(os.open(path, os.O_RDONLY | os.O_DIRECT), size)
        except (AttributeError, OSError):
            return None

    def usable(self) -> bool:
        """Whether anything is read past the page cache."""
        from bidr.index.vectors.read_buffers import read_buffers

        return not self._refused and read_buffers.usable()

    def read(self, blocks: Rows, seen: Any, words: Any, expected: Any, again: bool) -> "tuple[ReadBuffer | None, Rows]":
        """Read what of sorted blocks is asked for the first time, or `again`: a lane that holds it, and which it is.

        Whatever goes wrong, nothing is held: the blocks are left to the page cache, where it is told what it was.
        """
        from bidr.index.vectors import direct_io as direct
        from bidr.index.vectors.read_buffers import read_buffers

        lane = None if self._refused else read_buffers.borrow()
        if lane is None:
            return None, blocks
        held = direct.select_direct_blocks(blocks, seen, again, lane.held, words.ctypes.data, mmap.PAGESIZE)
        state = lane.read(self._handle, self._size, held, expected, seen[1]) if len(held) else direct.FAILED
        if state == direct.STUCK:
            read_buffers.retire(lane)
        elif state >= direct.FAILED:
            lane.give_back()
        # Where each read is waited for (a file system that takes O_DIRECT for a hint), the page cache is quicker.
        if state == direct.SYNCHRONOUS:
            self._at_once += 1
        elif state == direct.OK and len(held) > direct.QUEUE_DEPTH:
            self._at_once = 0
        self._refused = self._refused or state == direct.UNSUPPORTED or self._at_once == MAX_SYNCHRONOUS_READS
        self._left -= len(held)
        if self._left < 0:
            seen[1], self._left = 0, self._remembered
        return (None, blocks) if state >= direct.FAILED else (lane, held)

    def close(self) -> None:
        os.close(self._handle)
