"""Memory to read past the page cache into, each piece with its own queue of reads: a few for a process, lent out."""

import ctypes
import mmap
import os
import sys
from contextlib import suppress

import numpy as np

from bidr.index.vectors.direct_io import IO_SETUP, QUEUE_DEPTH, AioRequests, read_direct
from bidr.index.vectors.page_cache_io import BLOCK, Array, BlockData, coalesce_blocks
from bidr.index.vectors.row_layout import make_checksum_keys

BUFFER_BLOCKS = 4_096  # blocks in a lane
MAX_BUFFERS = 8
MACHINES = ("x86_64", "aarch64", "riscv64")


class ReadBuffer:
    """Memory of HELD blocks, of which only what was ever used takes RAM."""

    def __init__(self) -> None:
        self.process, self.held = os.getpid(), BUFFER_BLOCKS
        # Shared, not private: a child that is made while reads are on their way must not take their pages with it.
        self._memory = mmap.mmap(-1, self.held * BLOCK)
        content = np.frombuffer(self._memory, dtype=np.uint8)
        asked = np.zeros((QUEUE_DEPTH, 8), dtype=np.uint64)
        pointers = asked.ctypes.data + asked.strides[0] * np.arange(QUEUE_DEPTH)
        self._requests = AioRequests(
            _setup(QUEUE_DEPTH), asked, pointers, np.zeros((QUEUE_DEPTH, 4), dtype=np.int64), content
        )
        self._content = content.view()
        self._content.flags.writeable = False  # as mapped files are, so that functions are compiled only once

    def give_back(self) -> None:
        """Free for the next answer."""
        read_buffers.take_back(self)

    def stored(self, like: Array) -> Array:
        """What was read, as numbers of the type of a file's."""
        return self._content.view(like.dtype)

    def read(self, file: int, size: int, blocks: Array, expected: Array, read: Array) -> int:
        """Sorted blocks one behind the other; the bits of whole ones are set in `read`. See `read_past`."""
        content = BlockData(self._content.view("<u8"), self._content[:0], make_checksum_keys(), expected, read)
        return int(read_direct(self._requests, file, size, coalesce_blocks(blocks), content))


class ReadBufferPool:
    """The lanes of a process; a child process makes its own."""

    def __init__(self) -> None:
        self._process, self._free, self._made = 0, list[ReadBuffer](), 0
        self._stuck = list[ReadBuffer]()
        self.refused = ""

    def borrow(self) -> ReadBuffer | None:
        """A lane for one answer, to be given back; None where there is none to be had."""
        if self._process != os.getpid():
            self._process, self._free, self._made, self._stuck = os.getpid(), [], 0, []
        if self.refused:
            return None
        with suppress(IndexError):
            return self._free.pop()
        if self._made >= MAX_BUFFERS:
            return None
        self._made += 1
        try:
            return ReadBuffer()
        except OSError as error:
            self.refused = str(error.strerror or error)
            return None

    def take_back(self, lane: ReadBuffer) -> None:
        if lane.process == os.getpid() == self._process:
            self._free.append(lane)

    def retire(self, lane: ReadBuffer) -> None:
        """Never lend any again: the kernel does not answer, and may still write into this one, which is kept."""
        self._stuck.append(lane)
        self.refused = "reads stopped being answered"

    def usable(self) -> bool:
        """Whether this process may read so; `refused` says why not."""
        lane = self.borrow()
        if lane is not None:
            self.take_back(lane)
        return not self.refused


read_buffers = ReadBufferPool()


def _setup(depth: int) -> int:
    if sys.platform != "linux" or os.uname().machine not in MACHINES:
        raise OSError(0, f"unknown on {sys.platform}")
    context = np.zeros(1, dtype=np.uint64)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(IO_SETUP), ctypes.c_long(depth), ctypes.c_void_p(context.ctypes.data)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(context[0])
