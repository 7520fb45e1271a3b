"""Buffers for O_DIRECT reads, each with its own Linux AIO context, in a pool per process."""

import ctypes
import mmap
import os
import sys

import numpy as np

from bidr.index.vectors.direct_io import IO_SETUP, QUEUE_DEPTH, AioRequests, read_direct
from bidr.index.vectors.page_cache_io import BLOCK, Array, BlockData, coalesce_blocks
from bidr.index.vectors.resource_pool import ResourcePool
from bidr.index.vectors.row_layout import make_checksum_keys

BUFFER_BLOCKS = 4_096
MAX_BUFFERS = 8
MACHINES = ("x86_64", "aarch64", "riscv64")


class ReadBuffer:
    """A buffer of BUFFER_BLOCKS blocks; only pages that were ever read into take RAM."""

    def __init__(self) -> None:
        self.process, self.size = os.getpid(), BUFFER_BLOCKS
        # Shared, not private: a child forked while reads are in flight must not take their pages along.
        self._memory = mmap.mmap(-1, self.size * BLOCK)
        memory = np.frombuffer(self._memory, dtype=np.uint8)
        iocbs = np.zeros((QUEUE_DEPTH, 8), dtype=np.uint64)
        pointers = iocbs.ctypes.data + iocbs.strides[0] * np.arange(QUEUE_DEPTH)
        events = np.zeros((QUEUE_DEPTH, 4), dtype=np.int64)
        self._requests = AioRequests(_create_aio_context(QUEUE_DEPTH), iocbs, pointers, events, memory)
        self._content = memory.view()
        self._content.flags.writeable = False  # like mapped files, so that kernels are compiled for one type only

    def release(self) -> None:
        """Return the buffer to the pool."""
        read_buffers.release(self)

    def view_like(self, stored: Array) -> Array:
        """View the buffer with the dtype of a file's values."""
        return self._content.view(stored.dtype)

    def read(self, file: int, size: int, blocks: Array, expected: Array, verified: Array) -> int:
        """Read and verify sorted blocks, stored contiguously; returns a state of `read_direct`.

        Args:
            file: Descriptor opened with O_DIRECT.
            size: Bytes of the file.
            expected: Checksums of the file's blocks; empty to skip verification.
            verified: Bitmap over blocks in which the verified ones are set.
        """
        data = BlockData(self._content.view("<u8"), self._content[:0], make_checksum_keys(), expected, verified)
        return int(read_direct(self._requests, file, size, coalesce_blocks(blocks), data))


def _create_aio_context(depth: int) -> int:
    if sys.platform != "linux" or os.uname().machine not in MACHINES:
        raise OSError(0, f"unknown on {sys.platform}")
    context = np.zeros(1, dtype=np.uint64)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(IO_SETUP), ctypes.c_long(depth), ctypes.c_void_p(context.ctypes.data)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(context[0])


read_buffers = ResourcePool(ReadBuffer, MAX_BUFFERS)
