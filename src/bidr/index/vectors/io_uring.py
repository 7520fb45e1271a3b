"""io_uring by its three system calls: no library, no compiler. Where it is forbidden or too old, there is none."""

import ctypes
import mmap
import os
import sys
from contextlib import suppress
from typing import Any

import numpy as np

from bidr.index.vectors.page_cache_io import BLOCK, BROKEN, MAX_READ_BLOCKS, BlockData, UringQueue, read_with_io_uring
from bidr.index.vectors.row_layout import make_checksum_keys

IO_URING_SETUP = 425
COOPERATIVE = 1 << 8  # completions wait for the next call instead of interrupting the thread
SINGLE_MMAP = 1
ENTRIES_AT = 0x10000000
QUEUE_DEPTH = 128
MAX_RINGS = 16
ReadResult = tuple[int, int, int]


class IoUring:
    """One io_uring, used by one thread at a time."""

    def __init__(self, depth: int = QUEUE_DEPTH) -> None:
        self.handle, given = _setup(depth)
        try:
            length = max(int(given[16]) + 4 * int(given[0]), int(given[25]) + 16 * int(given[1]))
            self._shared = _map_shared(self.handle, length, 0)
            self._entries = _map_shared(self.handle, 64 * int(given[0]), ENTRIES_AT)
        except BaseException:
            os.close(self.handle)
            raise
        shared = np.frombuffer(self._shared, dtype=np.uint32, count=length // 4)
        places = np.array([*given[10:13], *given[20:23]], dtype=np.int64) // 4
        first = int(given[16]) // 4
        shared[first : first + int(given[0])] = np.arange(given[0])
        answered = np.frombuffer(self._shared, dtype=np.int64, count=2 * int(given[1]), offset=int(given[25]))
        self.queue = UringQueue(
            self.handle,
            depth,
            shared,
            np.frombuffer(self._entries, dtype=np.uint64).reshape(-1, 8),
            answered.reshape(-1, 2),
            places,
            np.empty(MAX_READ_BLOCKS * BLOCK, dtype=np.uint8),
        )

    def read(self, file: int, spans: Any, content: BlockData) -> ReadResult:
        """Bring spans of blocks into the page cache and check them; see `read_by_ring`."""
        found: ReadResult = read_with_io_uring(self.queue, file, spans, content)
        return found


class IoUringPool:
    """The rings of a process: each thread borrows one, a child process makes its own."""

    def __init__(self) -> None:
        self._process, self._free, self._made = 0, list[IoUring](), 0
        self._broken = list[IoUring]()
        self.refused = ""

    def read(self, file: int, spans: Any, content: BlockData) -> ReadResult | None:
        """As `Ring.read`; None where there is no ring to be had."""
        ring = self._borrow()
        if ring is None:
            return None
        found = ring.read(file, spans, content)
        if found[0] == BROKEN:
            self._broken.append(ring)  # the kernel may still write into its memory
            self.refused = "a ring stopped answering"
            return None
        self._free.append(ring)
        return found

    def usable(self) -> bool:
        """Whether this process may use io_uring; `refused` says why not."""
        ring = self._borrow()
        if ring is None:
            return False
        self._free.append(ring)
        return True

    def _borrow(self) -> IoUring | None:
        if self._process != os.getpid():
            self._process, self._free, self._made, self._broken = os.getpid(), [], 0, []
        if self.refused:
            return None
        with suppress(IndexError):
            return self._free.pop()
        if self._made >= MAX_RINGS:
            return None
        self._made += 1
        try:
            return _probe_ring(IoUring())
        except OSError as error:
            self.refused = self.refused or str(error.strerror or error)
            return None


ring_pool = IoUringPool()


def _probe_ring(ring: IoUring) -> IoUring:
    """A ring that has read a byte: kernels before 5.6 have rings that cannot."""
    words, none = np.zeros(BLOCK // 8, dtype=np.uint64), np.empty(0, dtype=np.uint8)
    for array in (words, none):
        array.flags.writeable = False  # as mapped files are, so that this is compiled only once
    content = BlockData(words, none, make_checksum_keys(), none.view(np.uint32), np.zeros(1, dtype=np.uint8))
    with open(__file__, "rb") as opened:
        bad, error, _ = ring.read(opened.fileno(), np.zeros((1, 2), dtype=np.int64), content)
    if bad != -1:
        raise OSError(-error, os.strerror(-error))
    return ring


def _setup(depth: int) -> tuple[int, Any]:
    if sys.platform != "linux":
        raise OSError(0, f"no io_uring on {sys.platform}")
    libc = ctypes.CDLL(None, use_errno=True)
    for flags in (COOPERATIVE, 0):
        given = np.zeros(30, dtype=np.uint32)  # struct io_uring_params
        given[2] = flags
        handle = libc.syscall(ctypes.c_long(IO_URING_SETUP), ctypes.c_long(depth), ctypes.c_void_p(given.ctypes.data))
        if handle >= 0:
            break
    else:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    if not given[5] & SINGLE_MMAP:
        os.close(handle)
        raise OSError(0, "io_uring of an old kernel")
    return handle, given


def _map_shared(handle: int, length: int, offset: int) -> mmap.mmap:
    flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
    return mmap.mmap(handle, length, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE, offset=offset)
