"""Read damaged files and find out which of their blocks match their checksums."""

import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from bidr.index.storage.checksums import checksum_blocks
from bidr.index.storage.manifest import FileEntry
from bidr.index.vectors.npy_header import BLOCK
from bidr.index.vectors.row_layout import CHECKSUM_DTYPE
from bidr.utils.files import is_sparse, open_regular

Mask = npt.NDArray[np.bool_]
BLOCKS_PER_READ = 1_024
MAX_REPAIRED_BYTES = 16_384
"""Longer files are not repaired: at this size, trying all single-byte changes takes four million checksums, seconds."""
MAX_SMALL_BYTES = 1 << 26


class DamagedFile:
    """A file of which some blocks may be damaged, missing or unreadable.

    entry:     expected size and checksum; None: unknown, so the content is trusted.
    checksums: expected block checksums; blocks without one count as damaged.
    """

    def __init__(self, path: Path, entry: FileEntry | None, checksums: npt.NDArray[np.uint32] | None = None) -> None:
        self.path, self.entry = path, entry
        self._handle = _open_file(path)
        actual_size = os.fstat(self._handle).st_size if self._handle >= 0 else 0
        self.size = actual_size if entry is None or not entry.xxh3 else entry.size
        if checksums is None and entry is not None and entry.blocks:
            with suppress(ValueError):  # not written by bidr
                checksums = np.frombuffer(bytes.fromhex(entry.blocks), dtype=">u4").astype(CHECKSUM_DTYPE)
        self.has_block_checksums = checksums is not None
        self.is_bad_block = self._verify(checksums, actual_size)
        bad_counts = np.concatenate([[0], np.cumsum(self.is_bad_block)])
        self._bad_counts = bad_counts if self.is_bad_block.any() else None
        """Number of bad blocks before each block; None: there are none."""

    @property
    def blocks(self) -> int:
        return -(-self.size // BLOCK)

    @property
    def exists(self) -> bool:
        """Whether the file could be opened."""
        return self._handle >= 0

    @property
    def is_intact(self) -> bool:
        return self._bad_counts is None

    def are_intact(self, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> Mask:
        """Whether each range of bytes lies in the file, in undamaged blocks."""
        is_inside = (starts >= 0) & (starts <= ends) & (ends <= self.size)
        if self._bad_counts is None:
            return is_inside
        first_blocks = np.where(is_inside, starts, 0) // BLOCK
        last_blocks = np.where(is_inside, np.maximum(ends - 1, starts), 0) // BLOCK
        last_blocks = np.minimum(last_blocks, self.blocks - 1)
        has_no_bad_block = self._bad_counts[last_blocks + 1] == self._bad_counts[first_blocks]
        intact: Mask = is_inside & ((starts == ends) | has_no_bad_block)
        return intact

    def read(self, start: int, size: int) -> bytes:
        """Read bytes, damaged or not; fewer at the end of the file or on a read error."""
        pieces, end = [], start + size
        while self._handle >= 0 and start < end:
            try:
                piece = os.pread(self._handle, end - start, start)
            except OSError:
                break
            if not piece:
                break
            pieces.append(piece)
            start += len(piece)
        return b"".join(pieces)

    def read_array(self, dtype: Any, count: int, start: int) -> npt.NDArray[Any]:
        """Read numbers, damaged or not; zeros for missing bytes."""
        size = np.dtype(dtype).itemsize * count
        return np.frombuffer(self.read(start, size).ljust(size, b"\0"), dtype=dtype)

    def _verify(self, checksums: npt.NDArray[np.uint32] | None, actual_size: int) -> Mask:
        """Return which blocks are damaged, after one pass over the file."""
        from xxhash import xxh3_128

        is_bad, digest = np.zeros(self.blocks, dtype=bool), xxh3_128()
        for first in range(0, self.blocks, BLOCKS_PER_READ):
            count = min(BLOCKS_PER_READ, self.blocks - first)
            content = self._read_blocks(first, count, is_bad)
            digest.update(content)
            if checksums is not None:
                actual, expected = checksum_blocks(content), checksums[first : first + count]
                is_bad[first : first + count] |= np.arange(count) >= len(expected)
                is_bad[first : first + len(expected)] |= actual[: len(expected)] != expected
        if self._handle < 0:
            is_bad[:] = True
        xxh3 = "" if self.entry is None else self.entry.xxh3
        if xxh3 and actual_size >= self.size and digest.hexdigest() == xxh3:
            is_bad[:] = False  # the block checksums are damaged instead
        elif xxh3 and checksums is None:
            is_bad[:] = True
        return is_bad

    def _read_blocks(self, first: int, count: int, is_bad: Mask) -> bytes:
        """Read blocks; unreadable ones become zeros and are marked in `is_bad`."""
        size = min(count * BLOCK, self.size - first * BLOCK)
        content = self.read(first * BLOCK, size)
        if len(content) == size:
            return content
        padded = bytearray(size)
        for block in range(count):
            start, length = block * BLOCK, min(BLOCK, size - block * BLOCK)
            piece = self.read(first * BLOCK + start, length)
            padded[start : start + len(piece)] = piece
            is_bad[first + block] |= len(piece) < length
        return bytes(padded)

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def read_small(path: Path, limit: int = MAX_SMALL_BYTES) -> bytes:
    """Read the first `limit` bytes of a file, of a sparse one no more than is allocated; empty if unreadable."""
    handle = _open_file(path)
    if handle < 0:
        return b""
    try:
        with os.fdopen(handle, "rb") as opened:
            status = os.fstat(opened.fileno())
            return opened.read(min(limit, 512 * status.st_blocks if is_sparse(status) else status.st_size))
    except OSError:
        return b""


def repair_byte(content: bytes, xxh3: str) -> bytes | None:
    """Restore a file in which at most one byte changed, proved by its checksum; None if there is no such change."""
    from xxhash import xxh3_128_hexdigest

    if xxh3_128_hexdigest(content) == xxh3:
        return content
    if len(content) > MAX_REPAIRED_BYTES:
        return None
    changed, bit_flips = bytearray(content), [1 << bit for bit in range(8)]
    for flips in (bit_flips, [flip for flip in range(1, 256) if flip not in bit_flips]):  # likeliest first
        for offset, original in enumerate(content):
            for flip in flips:
                changed[offset] = original ^ flip
                if xxh3_128_hexdigest(changed) == xxh3:
                    return bytes(changed)
            changed[offset] = original
    return None


def _open_file(path: Path) -> int:
    """Open a regular file without waiting for a FIFO; -1 if that fails."""
    try:
        return open_regular(path, os.O_RDONLY, follow=True)
    except OSError:
        return -1
