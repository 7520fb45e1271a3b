"""Buffers for O_DIRECT reads, each with its own Linux AIO context, in a pool per process."""

import ctypes
import mmap
import os
import sys

import numpy as np

from bidr.index.vectors.direct_io import IO_SETUP, QUEUE_DEPTH, AioRequests, FileLayout, score_direct
from bidr.index.vectors.page_cache_io import Array
from bidr.index.vectors.resource_pool import ResourcePool
from bidr.index.vectors.row_cache import CacheMemory

BUFFER_BYTES = 2 << 20
MAX_BUFFERS = 16
"""Queries that read at the same time; others wait. More do not make a disk faster."""
MACHINES = ("x86_64", "aarch64", "riscv64")


class ReadBuffer:
    """Memory for the reads of a query that are in flight; only pages that were ever read into take RAM."""

    def __init__(self) -> None:
        self.process, self.size = os.getpid(), BUFFER_BYTES
        # Shared, not private: a child forked while reads are in flight must not take their pages along.
        self._memory = mmap.mmap(-1, self.size)
        memory = np.frombuffer(self._memory, dtype=np.uint8)
        iocbs = np.zeros((QUEUE_DEPTH, 8), dtype=np.uint64)
        pointers = iocbs.ctypes.data + iocbs.strides[0] * np.arange(QUEUE_DEPTH)
        events = np.zeros((QUEUE_DEPTH, 4), dtype=np.int64)
        self._content = memory.view()
        self._content.flags.writeable = False  # like mapped files, so that kernels are compiled for one type only
        content, tail = self._content.view("<u8"), self._content[:0]
        context = _create_aio_context(QUEUE_DEPTH)
        self._requests = AioRequests(context, iocbs, pointers, events, memory, content, tail)

    def score(
        self, file: FileLayout, keys: Array, cache: CacheMemory, query: Array, scores: Array, counts: Array
    ) -> int:
        """Read and score rows; arguments and result as of `score_direct`."""
        stored = self._content.view(cache.stored.dtype)
        return int(score_direct(self._requests, file, keys, cache, stored, query, scores, counts))


def _create_aio_context(depth: int) -> int:
    if sys.platform != "linux" or os.uname().machine not in MACHINES:
        raise OSError(0, f"unknown on {sys.platform}")
    context = np.zeros(1, dtype=np.uint64)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(IO_SETUP), ctypes.c_long(depth), ctypes.c_void_p(context.ctypes.data)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(context[0])


read_buffers = ResourcePool(ReadBuffer, MAX_BUFFERS)
