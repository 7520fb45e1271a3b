"""What of a damaged file is whole, told by the checksums of its blocks."""

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
READ_BLOCKS = 1_024
LONGEST_HEALED = 16_384
"""Bytes of a file of which every single changed byte is looked for: four million checksums, a few seconds."""


class DamagedFile:
    """A file of which some blocks may be damaged, missing or unreadable. It is read, and nothing else.

    entry: what it must be; None: nobody knows, so it is taken as it is.
    sums:  the expected checksum of each block, as far as they are known; fewer than blocks: the others are not.
    """

    def __init__(self, path: Path, entry: FileEntry | None, sums: npt.NDArray[np.uint32] | None = None) -> None:
        self.path, self.entry = path, entry
        self._handle = _open(path)
        actual = os.fstat(self._handle).st_size if self._handle >= 0 else 0
        self.size = actual if entry is None or not entry.xxh3 else entry.size
        if sums is None and entry is not None and entry.blocks:
            with suppress(ValueError):  # a manifest that bidr did not write
                sums = np.frombuffer(bytes.fromhex(entry.blocks), dtype=">u4").astype(CHECKSUM_DTYPE)
        self.by_block = sums is not None
        """Whether it can be told which blocks are damaged."""
        self.bad = self._compare(sums, actual)
        self._before = np.concatenate([[0], np.cumsum(self.bad)]) if self.bad.any() else None

    @property
    def blocks(self) -> int:
        return -(-self.size // BLOCK)

    @property
    def is_there(self) -> bool:
        """Whether there is a file that can be opened."""
        return self._handle >= 0

    @property
    def is_whole(self) -> bool:
        return self._before is None

    def are_whole(self, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> Mask:
        """Whether each range of bytes lies in the file, in blocks that are whole."""
        inside = (starts >= 0) & (starts <= ends) & (ends <= self.size)
        if self._before is None:
            return inside
        firsts, lasts = np.where(inside, starts, 0) // BLOCK, np.where(inside, np.maximum(ends - 1, starts), 0) // BLOCK
        lasts = np.minimum(lasts, self.blocks - 1)
        none: Mask = inside & ((starts == ends) | (self._before[lasts + 1] == self._before[firsts]))
        return none

    def read(self, start: int, size: int) -> bytes:
        """Bytes as they are, whole or not; fewer where the file ends or the disk does not give them."""
        parts, end = [], start + size
        while self._handle >= 0 and start < end:
            try:
                part = os.pread(self._handle, end - start, start)
            except OSError:
                break
            if not part:
                break
            parts.append(part)
            start += len(part)
        return b"".join(parts)

    def read_array(self, dtype: Any, count: int, start: int) -> npt.NDArray[Any]:
        """Numbers as they are; zeros where bytes are missing."""
        size = np.dtype(dtype).itemsize * count
        return np.frombuffer(self.read(start, size).ljust(size, b"\0"), dtype=dtype)

    def _compare(self, sums: npt.NDArray[np.uint32] | None, actual: int) -> Mask:
        """Which blocks are not as they were written: one pass over the file."""
        from xxhash import xxh3_128

        bad, digest = np.zeros(self.blocks, dtype=bool), xxh3_128()
        for first in range(0, self.blocks, READ_BLOCKS):
            count = min(READ_BLOCKS, self.blocks - first)
            content = self._read_blocks(first, count, bad)
            digest.update(content)
            if sums is not None:
                actual_sums, expected = checksum_blocks(content), sums[first : first + count]
                bad[first : first + count] |= np.arange(count) >= len(expected)
                bad[first : first + len(expected)] |= actual_sums[: len(expected)] != expected
        if self._handle < 0:
            bad[:] = True
        known = self.entry is not None and bool(self.entry.xxh3)
        if known and self.entry is not None and actual >= self.size and digest.hexdigest() == self.entry.xxh3:
            bad[:] = False  # then it is the checksums of blocks that are damaged
        elif known and sums is None:
            bad[:] = True
        return bad

    def _read_blocks(self, first: int, count: int, bad: Mask) -> bytes:
        """Some blocks; zeros for what cannot be read, which is noted."""
        size = min(count * BLOCK, self.size - first * BLOCK)
        content = self.read(first * BLOCK, size)
        if len(content) == size:
            return content
        padded = bytearray(size)
        for block in range(count):
            start, length = block * BLOCK, min(BLOCK, size - block * BLOCK)
            part = self.read(first * BLOCK + start, length)
            padded[start : start + len(part)] = part
            bad[first + block] |= len(part) < length
        return bytes(padded)

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def read_small(path: Path, most: int = 1 << 26) -> bytes:
    """The first bytes of a regular file, of one that is all holes no more than it has on the disk; none where it cannot
    be read."""
    handle = _open(path)
    if handle < 0:
        return b""
    try:
        with os.fdopen(handle, "rb") as opened:
            about = os.fstat(opened.fileno())
            return opened.read(min(most, 512 * about.st_blocks if is_sparse(about) else about.st_size))
    except OSError:
        return b""


def heal_byte(content: bytes, xxh3: str) -> bytes | None:
    """What a small file was before one byte of it changed; its checksum proves it. None: it is none of these."""
    from xxhash import xxh3_128_hexdigest

    if xxh3_128_hexdigest(content) == xxh3:
        return content
    if len(content) > LONGEST_HEALED:
        return None
    changed, bits = bytearray(content), [1 << bit for bit in range(8)]
    for flips in (bits, [flip for flip in range(1, 256) if flip not in bits]):  # a single bit is the likeliest
        for offset, before in enumerate(content):
            for flip in flips:
                changed[offset] = before ^ flip
                if xxh3_128_hexdigest(changed) == xxh3:
                    return bytes(changed)
            changed[offset] = before
    return None


def _open(path: Path) -> int:
    """A handle of a regular file, or -1; a FIFO is not waited for."""
    try:
        return open_regular(path, os.O_RDONLY, follow=True)
    except OSError:
        return -1
