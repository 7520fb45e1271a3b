"""io_uring through its three system calls, without liburing or a compiler."""

import ctypes
import mmap
import os
import sys
from typing import Any

import numpy as np

from bidr.index.vectors.page_cache_io import BLOCK, BROKEN, MAX_READ_BLOCKS, BlockData, UringQueue, read_with_io_uring
from bidr.index.vectors.resource_pool import ResourcePool
from bidr.index.vectors.row_layout import make_checksum_keys

IO_URING_SETUP = 425
IORING_SETUP_COOP_TASKRUN = 1 << 8  # completions wait for the next call instead of interrupting the thread
IORING_FEAT_SINGLE_MMAP = 1
IORING_OFF_SQES = 0x10000000
QUEUE_DEPTH = 128
MAX_RINGS = 16
ReadResult = tuple[int, int, int]


class IoUring:
    """One io_uring, used by one thread at a time."""

    def __init__(self, depth: int = QUEUE_DEPTH) -> None:
        self.process = os.getpid()
        self.handle, params = _set_up_ring(depth)
        entries, completions = int(params[0]), int(params[1])
        entries_at, completions_at = int(params[16]), int(params[25])
        try:
            length = max(entries_at + 4 * entries, completions_at + 16 * completions)
            self._shared = _map_shared(self.handle, length, 0)
            self._entries = _map_shared(self.handle, 64 * entries, IORING_OFF_SQES)
        except BaseException:
            os.close(self.handle)
            raise
        shared = np.frombuffer(self._shared, dtype=np.uint32, count=length // 4)
        shared[entries_at // 4 : entries_at // 4 + entries] = np.arange(params[0])
        completed = np.frombuffer(self._shared, dtype=np.int64, count=2 * completions, offset=completions_at)
        self.queue = UringQueue(
            self.handle,
            depth,
            shared,
            np.frombuffer(self._entries, dtype=np.uint64).reshape(-1, 8),
            completed.reshape(-1, 2),
            np.array([*params[10:13], *params[20:23]], dtype=np.int64) // 4,
            np.empty(MAX_READ_BLOCKS * BLOCK, dtype=np.uint8),
        )

    def read(self, file: int, spans: Any, data: BlockData) -> ReadResult:
        """Bring spans of blocks into the page cache and verify them; see `read_with_io_uring`."""
        result: ReadResult = read_with_io_uring(self.queue, file, spans, data)
        return result


def read_spans(file: int, spans: Any, data: BlockData) -> ReadResult | None:
    """Read with a ring of the pool; None where no ring is available."""
    ring = ring_pool.borrow()
    if ring is None:
        return None
    result = ring.read(file, spans, data)
    if result[0] == BROKEN:
        ring_pool.retire(ring, "a ring stopped answering")
        return None
    ring_pool.release(ring)
    return result


def open_ring() -> IoUring:
    """Create a ring and read a byte with it: kernels before 5.6 have rings that cannot read."""
    ring = IoUring()
    words, empty = np.zeros(BLOCK // 8, dtype=np.uint64), np.empty(0, dtype=np.uint8)
    for array in (words, empty):
        array.flags.writeable = False  # like mapped files, so that kernels are compiled for one type only
    data = BlockData(words, empty, make_checksum_keys(), empty.view(np.uint32), np.zeros(1, dtype=np.uint8))
    with open(__file__, "rb") as source:
        bad, error, _ = ring.read(source.fileno(), np.zeros((1, 2), dtype=np.int64), data)
    if bad != -1:
        raise OSError(-error, os.strerror(-error))
    return ring


ring_pool = ResourcePool(open_ring, MAX_RINGS)


def _set_up_ring(depth: int) -> tuple[int, Any]:
    if sys.platform != "linux":
        raise OSError(0, f"no io_uring on {sys.platform}")
    libc = ctypes.CDLL(None, use_errno=True)
    for flags in (IORING_SETUP_COOP_TASKRUN, 0):
        params = np.zeros(30, dtype=np.uint32)  # struct io_uring_params
        params[2] = flags
        handle = libc.syscall(ctypes.c_long(IO_URING_SETUP), ctypes.c_long(depth), ctypes.c_void_p(params.ctypes.data))
        if handle >= 0:
            break
    else:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    if not params[5] & IORING_FEAT_SINGLE_MMAP:
        os.close(handle)
        raise OSError(0, "io_uring of an old kernel")
    return handle, params


def _map_shared(handle: int, length: int, offset: int) -> mmap.mmap:
    flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
    return mmap.mmap(handle, length, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE, offset=offset)
