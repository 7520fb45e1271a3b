"""Block checksums of index files: write them, and verify memory-mapped files by them, block by block.

NAME          an index file that stays on disk
NAME.checks   of files above WHOLE_FILE_BYTES: a uint32 for every block of 4,096 bytes, computed as those of vectors are

Smaller files are compared with the checksum in the manifest when they are opened. Blocks are verified when they are
first read; a bitmap holds which ones were. Larger files of indexes that were built before there were block checksums
are not verified.
"""

import mmap
import os
import re
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bidr.errors import REBUILD, DataError, IndexFolderError
from bidr.index.storage.manifest import HasFiles, check_content
from bidr.index.vectors.mmap_guard import MmapGuard
from bidr.index.vectors.npy_header import BLOCK, BinaryWriter, read_npy_header
from bidr.index.vectors.row_layout import CHECKSUM_DTYPE, make_checksum_keys
from bidr.utils.files import check_regular

Blocks = npt.NDArray[np.int64]
CHECKSUM_FILE_SUFFIX = ".checks"
WHOLE_FILE_BYTES = 1 << 18
"""Files up to this size are verified as a whole when opened, and have no block checksums."""
# Files that a search reads in parts. Attribute columns are read as a whole, and verified so.
CHECKED_BY_BLOCK = re.compile(
    r"order\.npy|(ids|documents|attributes)\.(blob|offsets\.npy)|ids\.(hashes|rows)\.npy|words\.\w+\.npy"
)
# Those that cannot be rebuilt from other files: if small, they have their block checksums in the manifest.
BLOCKS_IN_MANIFEST = re.compile(r"order\.npy|(ids|documents|attributes)\.(blob|offsets\.npy)")
SHIFT = BLOCK.bit_length() - 1
BLOCKS_PER_READ = 1 << 16
NO_CHECKSUMS: npt.NDArray[np.uint32] = np.frombuffer(b"", dtype=CHECKSUM_DTYPE)
NO_BYTES: npt.NDArray[np.uint8] = np.frombuffer(b"", dtype=np.uint8)


def get_checksum_file(name: str, size: int) -> dict[str, int]:
    """Return name and size of the checksum file of a file; empty if it has none."""
    has_checksums = CHECKED_BY_BLOCK.fullmatch(name) and size > WHOLE_FILE_BYTES
    return {name + CHECKSUM_FILE_SUFFIX: CHECKSUM_DTYPE.itemsize * -(-size // BLOCK)} if has_checksums else {}


def add_checksum_files(files: dict[str, int]) -> dict[str, int]:
    """Add the checksum files to a table of file sizes."""
    return files | {key: value for name, size in files.items() for key, value in get_checksum_file(name, size).items()}


def list_unverified_files(files: HasFiles) -> list[str]:
    """List large files without block checksums, which only `bidr verify` compares with the manifest."""
    entries = files.files.items()
    return [name for name, entry in entries if get_checksum_file(name, entry.size).keys() - files.files.keys()]


@contextmanager
def write_with_checksums(
    out: BinaryWriter, create: Callable[[], AbstractContextManager[BinaryWriter]], *, described: bool = False
) -> Iterator["ChecksumWriter"]:
    """Write a file and its block checksums.

    Args:
        out: The file.
        create: Opens the checksum file; called only if the file gets one.
        described: Compute the block checksums of a file too small for a checksum file as well.
    """
    with ExitStack() as stack:
        writer = ChecksumWriter(out, lambda: stack.enter_context(create()), described)
        yield writer
        writer.finish()


class ChecksumWriter:
    """File writer that computes block checksums.

    blocks: those of a small file once it is finished (see `FileEntry`).
    """

    def __init__(self, out: BinaryWriter, begin: Callable[[], BinaryWriter], described: bool) -> None:
        self._out, self._begin, self._described = out, begin, described
        self.blocks = ""
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._checksum_file: BinaryWriter | None = None

    def write(self, content: bytes | memoryview) -> int:
        self._pending.append(bytes(content))
        self._pending_bytes += len(content)
        if self._pending_bytes > WHOLE_FILE_BYTES:
            self._write_checksums(last=False)
        return self._out.write(content)

    def finish(self) -> None:
        if self._checksum_file is not None:
            self._write_checksums(last=True)
        elif self._described and self._pending_bytes > BLOCK:  # of one block the checksum of the file is enough
            self.blocks = checksum_blocks(b"".join(self._pending)).astype(">u4").tobytes().hex()

    def _write_checksums(self, *, last: bool) -> None:
        content = b"".join(self._pending)
        if last:
            content += bytes(-len(content) % BLOCK)
        end = len(content) // BLOCK * BLOCK
        self._pending, self._pending_bytes = [content[end:]], len(content) - end
        if self._checksum_file is None:
            self._checksum_file = self._begin()
        self._checksum_file.write(checksum_blocks(content[:end]).tobytes())


def checksum_blocks(content: bytes) -> npt.NDArray[np.uint32]:
    """Compute block checksums; the last block is padded with zeros."""
    from bidr.index.vectors.page_cache_io import compute_checksums

    padded = np.frombuffer(content + bytes(-len(content) % BLOCK), dtype="<u8")
    return compute_checksums(padded, np.empty(0, dtype=np.uint8), make_checksum_keys()).astype(CHECKSUM_DTYPE)


class VerifiedMmap:
    """Read-only memory map whose blocks are verified before they are read. Thread-safe.

    Args:
        folder: Folder of the file.
        name: File name.
        files: Manifest with the file's checksum; None: do not verify.
        verify_whole_file: Verify the file as a whole, whatever its size, if it has no block checksums.
        scattered: Reads are small and random: turn read-ahead off.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        files: HasFiles | None = None,
        *,
        verify_whole_file: bool = False,
        scattered: bool = False,
    ) -> None:
        self.path, by_block = folder / name, files is not None and name + CHECKSUM_FILE_SUFFIX in files.files
        if (
            files is not None
            and not by_block
            and (name not in files.files or verify_whole_file or files.files[name].size <= WHOLE_FILE_BYTES)
        ):
            check_content(folder, files, name)
            verify_whole_file = True
        self._handle, self.mapped = _map(self.path)
        self._close = weakref.finalize(self, os.close, self._handle)
        if scattered:
            self.mapped.madvise(mmap.MADV_RANDOM)
        self.size = len(self.mapped)
        self.is_verified = verify_whole_file and not by_block
        """Whether every block was verified."""
        if self.is_verified:
            self._close()  # the map has a handle of its own
        # The same bitmap twice: as a bytearray for single lookups, as an array for many.
        self._verified = bytearray(-(-self.size // BLOCK) // 8 + 1)
        self.verified_bits = np.frombuffer(self._verified, dtype=np.uint8)
        self._checksum_map: mmap.mmap | None = None
        self._expected = NO_CHECKSUMS
        if by_block:
            self._open_checksums()
        self.guarded_maps = (self.path, self.mapped), (self._checksum_path, self._checksum_map)
        self.check_sizes = MmapGuard(*self.guarded_maps).check_sizes
        """Raises IndexFolderError if a file was truncated; must precede reads of mapped memory."""
        self.validate: Callable[[int, int], None] | None = None
        """Called with each verified range of bytes; raises IndexFolderError if the values are invalid."""

    def _open_checksums(self) -> None:
        path, blocks = self._checksum_path, -(-self.size // BLOCK)
        handle, self._checksum_map = _map(path)
        os.close(handle)
        size = len(self._checksum_map)
        if size != CHECKSUM_DTYPE.itemsize * blocks:
            raise IndexFolderError(f"{path}: {size:,} bytes, expected 4 for each of {blocks:,} blocks; {REBUILD}")
        self._expected = np.frombuffer(self._checksum_map, dtype=CHECKSUM_DTYPE)

    @property
    def _checksum_path(self) -> Path:
        return self.path.with_name(self.path.name + CHECKSUM_FILE_SUFFIX)

    def view_array(self, dtype: np.dtype[Any], count: int, start: int) -> npt.NDArray[Any]:
        """Return mapped memory as an array, without verifying it."""
        return np.frombuffer(self.mapped, dtype=dtype, count=count, offset=start)

    def verify_range(self, start: int, end: int) -> None:
        """Verify the blocks of a range of bytes. Call `check_sizes` before reading mapped memory."""
        if self.is_verified or start >= end:
            return
        first, last, verified = start >> SHIFT, (end - 1) >> SHIFT, self._verified
        while first <= last:
            if not verified[first >> 3] >> (first & 7) & 1:
                self.verify_blocks(np.arange(first, last + 1))
                return
            first += 1

    def verify_ranges(self, starts: npt.NDArray[Any], ends: npt.NDArray[Any]) -> bool:
        """Verify the blocks of many ranges; False if a range is not within the file."""
        from bidr.index.storage.checksum_kernels import check_ranges_verified

        state = check_ranges_verified(starts.astype(np.int64), ends.astype(np.int64), self.size, self.verified_bits)
        if state < 0:
            return False
        if not state and not self.is_verified:
            spans = zip((starts >> SHIFT).tolist(), ((ends - 1) >> SHIFT).tolist(), strict=True)
            for first, last in spans:
                self.verify_blocks(np.arange(first, last + 1))
        self.check_sizes()
        return True

    def verify_all(self) -> None:
        """Verify all blocks."""
        if not self.is_verified:
            blocks = -(-self.size // BLOCK)
            for first in range(0, blocks, BLOCKS_PER_READ):
                self.verify_blocks(np.arange(first, min(first + BLOCKS_PER_READ, blocks)))
            self.is_verified = True
        self.check_sizes()

    def verify_blocks(self, blocks: Blocks) -> None:
        """Read and verify sorted blocks, except those that were verified before."""
        from bidr.index.vectors.page_cache_io import BlockData, coalesce_blocks, read_with_madvise

        blocks = blocks[(self.verified_bits[blocks >> 3] >> (blocks & 7).astype(np.uint8)) & 1 == 0]
        if not len(blocks):
            return
        self.check_sizes()
        words, spans = self.view_array(np.dtype("<u8"), self.size // 8, 0), coalesce_blocks(blocks)
        tail = self.view_array(np.dtype(np.uint8), self.size % 8, self.size // 8 * 8) if self.size % 8 else NO_BYTES
        content = BlockData(words, tail, make_checksum_keys(), self._expected, self.verified_bits)
        unreadable, error, damaged = read_with_madvise(words.ctypes.data, self._handle, spans, mmap.PAGESIZE, content)
        if unreadable >= 0:
            reason = os.strerror(-error) if error else "unexpected end of file"
            raise IndexFolderError(f"{self.path}: cannot be read ({reason}); {REBUILD}")
        if damaged >= 0:
            where = f"block {damaged:,} (bytes {damaged * BLOCK:,} to {min((damaged + 1) * BLOCK, self.size):,})"
            raise IndexFolderError(f"{self.path}: {where} is damaged, or {self._checksum_path.name} is; {REBUILD}")
        if self.validate is not None:
            try:
                for first, last in spans.tolist():
                    self.validate(first * BLOCK, min((last + 1) * BLOCK, self.size))
            except IndexFolderError:  # later reads of these blocks must fail as well
                np.bitwise_and.at(self.verified_bits, blocks >> 3, ~np.left_shift(1, blocks & 7).astype(np.uint8))
                raise

    def close(self) -> None:
        """Close the files and unmap them; the object must not be used afterwards."""
        self._expected = NO_CHECKSUMS
        self._close()
        for mapped in (self.mapped, self._checksum_map):
            # A map with exported arrays is unmapped when the last of them is released.
            with suppress(BufferError):
                if mapped is not None:
                    mapped.close()


class VerifiedArray:
    """One-dimensional .npy file on disk, verified as `VerifiedMmap` does; arguments are the same.

    below: every value must be below this and not negative, checked with the checksums: values may then be used as
           positions without a bounds check.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        dtype: Any,
        files: HasFiles | None = None,
        *,
        below: int | None = None,
        **options: bool,
    ) -> None:
        self.file, self.dtype = VerifiedMmap(folder, name, files, **options), np.dtype(dtype)
        self.path = self.file.path
        (self.count,), self.start = read_npy_header(self.path, self.dtype, dimensions=1)
        self.unverified = self.file.view_array(self.dtype, self.count, self.start)
        """All values; for callers that verify what they read."""
        if below is not None:
            # Not a bound method: that would be a reference cycle, which only the garbage collector frees.
            self.file.validate = partial(_check_values, self.path, self.unverified, self.start, below)
            if self.file.is_verified:
                self.file.validate(0, self.file.size)

    def __len__(self) -> int:
        return self.count

    def take(self, positions: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Values at positions, in the shape of `positions`; arbitrary values at -1."""
        from bidr.index.vectors.page_cache_io import find_unverified_blocks, is_verified

        file = self.file
        if not file.is_verified:
            flat = np.ascontiguousarray(positions, dtype=np.int64).ravel()
            if not is_verified(flat, self.count, self.start, self.dtype.itemsize, file.verified_bits):
                blocks, wrong = find_unverified_blocks(
                    flat, self.count, self.start, self.dtype.itemsize, file.verified_bits, False
                )
                if wrong >= 0:
                    raise DataError(f"{self.path}: invalid position {flat[wrong]} (allowed: 0 to {self.count - 1})")
                file.verify_blocks(np.unique(blocks))
        file.check_sizes()
        values: npt.NDArray[Any] = self.unverified[positions]
        return values

    def read_slice(self, first: int, count: int) -> list[int]:
        """Read `count` values from position `first` on."""
        size = self.dtype.itemsize
        self.file.verify_range(self.start + first * size, self.start + (first + count) * size)
        self.file.check_sizes()
        values: list[int] = self.unverified[first : first + count].tolist()
        return values

    def verify_ranges(self, firsts: npt.NDArray[Any], ends: npt.NDArray[Any]) -> bool:
        """Verify ranges of positions; False if one is not within the file."""
        size = self.dtype.itemsize
        return self.file.verify_ranges(self.start + firsts * size, self.start + ends * size)

    def read_all(self) -> npt.NDArray[Any]:
        """Verify and return all values; the same object each time."""
        self.file.verify_all()
        return self.unverified

    def find(self, values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Binary search in ascending values, as np.searchsorted; verifies only the blocks that it visits."""
        from bidr.index.storage.checksum_kernels import search_verified

        positions, values = np.empty(len(values), dtype=np.int64), np.ascontiguousarray(values, dtype=self.dtype)
        self.file.check_sizes()
        if self.file.is_verified:
            return np.searchsorted(self.unverified, values)
        bits = self.file.verified_bits
        while (block := search_verified(self.unverified, values, self.start, bits, positions)) >= 0:
            self.file.verify_blocks(np.array([block]))
        return positions

    def close(self) -> None:
        self.unverified = np.empty(0, dtype=self.dtype)
        self.file.close()


def _check_values(path: Path, values: npt.NDArray[Any], start: int, below: int, first: int, last: int) -> None:
    """Raise IndexFolderError if values in a range of bytes are negative or not below `below`."""
    size = values.itemsize
    selected = values[max(0, first - start) // size : -(-max(0, last - start) // size)]
    # As unsigned integers, negative values are far above the bound.
    if len(selected) and int(selected.view(f"u{size}").max()) >= below:
        raise IndexFolderError(f"{path}: holds a number that is not below {below:,}; {REBUILD}")


def _map(path: Path) -> tuple[int, mmap.mmap]:
    """Map a file into memory; return its handle too."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            check_regular(os.fstat(handle))
            mapped = mmap.mmap(handle, 0, prot=mmap.PROT_READ)
        except BaseException:
            os.close(handle)
            raise
    except (OSError, ValueError) as error:
        raise IndexFolderError(f"{path}: cannot be read ({error}); {REBUILD}") from error
    return handle, mapped
