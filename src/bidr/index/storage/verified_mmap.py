"""Files in mapped memory of which no byte is believed before its block was compared with its checksum.

NAME          a file of an index that stays on disk
NAME.checks   of a file larger than WHOLE: a uint32 for every 4,096 bytes of it, made as those of vectors are

A smaller file is compared whole with the manifest when it is opened. What was compared is believed from then on: a
bit for each block says so. Larger files of an index that was built before there were checksums are not compared.
"""

import mmap
import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bidr.errors import REBUILD, DataError, IndexFolderError
from bidr.index.storage import checksums as checks
from bidr.index.storage.checksums import SUFFIX
from bidr.index.storage.manifest import HasFiles, check_content
from bidr.index.vectors.mmap_guard import MmapGuard
from bidr.index.vectors.npy_header import BLOCK, read_npy_header
from bidr.index.vectors.row_layout import CHECKSUM_DTYPE, make_checksum_keys
from bidr.utils.files import check_regular

Blocks = npt.NDArray[np.int64]
SHIFT = BLOCK.bit_length() - 1
AT_ONCE = 1 << 16
"""Blocks of a file that is compared whole."""
NO_CHECKS: npt.NDArray[np.uint32] = np.frombuffer(b"", dtype=CHECKSUM_DTYPE)
NO_BYTES: npt.NDArray[np.uint8] = np.frombuffer(b"", dtype=np.uint8)


class CheckedFile:
    """Bytes on disk. Any number of threads may use one.

    files: where the file's checksum stands, and whether it has one for each block; None: it is not compared.
    whole: compare a file whole, however large it is, that has none for each block.
    scattered: little of it is asked for at a time, so the system need not read ahead.
    """

    def __init__(
        self, folder: Path, name: str, files: HasFiles | None = None, *, whole: bool = False, scattered: bool = False
    ) -> None:
        self.path, by_block = folder / name, files is not None and name + SUFFIX in files.files
        if (
            files is not None
            and not by_block
            and (name not in files.files or whole or files.files[name].size <= checks.WHOLE)
        ):
            check_content(folder, files, name)
            whole = True
        self._handle, self.map = _map(self.path)
        self._close = weakref.finalize(self, os.close, self._handle)
        if scattered:
            self.map.madvise(mmap.MADV_RANDOM)
        self.size = len(self.map)
        self.done = whole and not by_block
        """Whether all of it was compared."""
        if self.done:
            self._close()  # what is mapped has a handle of its own
        # The same bits twice: as bytes for one look, as an array for many.
        self._seen = bytearray(-(-self.size // BLOCK) // 8 + 1)
        self.bits = np.frombuffer(self._seen, dtype=np.uint8)
        self._checks: mmap.mmap | None = None
        self._expected = NO_CHECKS
        if by_block:
            self._open_checks()
        self.watched = (self.path, self.map), (self._checks_path, self._checks)
        self.still_there = MmapGuard(*self.watched).check_sizes
        self.judge: Callable[[int, int], None] | None = None
        """Told of each range of bytes that was compared; refuses what they say."""

    def _open_checks(self) -> None:
        path, blocks = self._checks_path, -(-self.size // BLOCK)
        handle, self._checks = _map(path)
        os.close(handle)
        if len(self._checks) != CHECKSUM_DTYPE.itemsize * blocks:
            raise IndexFolderError(f"{path}: {len(self._checks):,} bytes, expected 4 for each of {blocks:,}; {REBUILD}")
        self._expected = np.frombuffer(self._checks, dtype=CHECKSUM_DTYPE)

    @property
    def _checks_path(self) -> Path:
        return self.path.with_name(self.path.name + SUFFIX)

    def array(self, dtype: np.dtype[Any], count: int, start: int) -> npt.NDArray[Any]:
        """What is mapped as numbers, none of them compared yet."""
        return np.frombuffer(self.map, dtype=dtype, count=count, offset=start)

    def need(self, start: int, end: int) -> None:
        """Compare the blocks of a range that were not yet. Of mapped memory what is `still_there` may be looked at."""
        if self.done or start >= end:
            return
        first, last, seen = start >> SHIFT, (end - 1) >> SHIFT, self._seen
        while first <= last:
            if not seen[first >> 3] >> (first & 7) & 1:
                self.bring(np.arange(first, last + 1))
                return
            first += 1

    def need_spans(self, starts: npt.NDArray[Any], ends: npt.NDArray[Any]) -> bool:
        """The same for many ranges; False where one is none of the file."""
        from bidr.index.storage.checksum_kernels import spans_seen

        told = spans_seen(starts.astype(np.int64), ends.astype(np.int64), self.size, self.bits)
        if told < 0:
            return False
        if not told and not self.done:
            spans = zip((starts >> SHIFT).tolist(), ((ends - 1) >> SHIFT).tolist(), strict=True)
            for first, last in spans:
                self.bring(np.arange(first, last + 1))
        self.still_there()
        return True

    def need_all(self) -> None:
        """Compare what was not yet of all of it."""
        if not self.done:
            blocks = -(-self.size // BLOCK)
            for first in range(0, blocks, AT_ONCE):
                self.bring(np.arange(first, min(first + AT_ONCE, blocks)))
            self.done = True
        self.still_there()

    def bring(self, blocks: Blocks) -> None:
        """Read and compare sorted blocks, those that were not yet."""
        from bidr.index.vectors.page_cache_io import BlockData, coalesce_blocks, read_with_madvise

        blocks = blocks[(self.bits[blocks >> 3] >> (blocks & 7).astype(np.uint8)) & 1 == 0]
        if not len(blocks):
            return
        self.still_there()
        words, spans = self.array(np.dtype("<u8"), self.size // 8, 0), coalesce_blocks(blocks)
        tail = self.array(np.dtype(np.uint8), self.size % 8, self.size // 8 * 8) if self.size % 8 else NO_BYTES
        content = BlockData(words, tail, make_checksum_keys(), self._expected, self.bits)
        bad, error, damaged = read_with_madvise(words.ctypes.data, self._handle, spans, mmap.PAGESIZE, content)
        if bad >= 0:
            raise self._unreadable(os.strerror(-error) if error else "it ends too early")
        if damaged >= 0:
            where = f"block {damaged:,} (bytes {damaged * BLOCK:,} to {min((damaged + 1) * BLOCK, self.size):,})"
            raise IndexFolderError(f"{self.path}: {where} is damaged, or {self._checks_path.name} is; {REBUILD}")
        if self.judge is not None:
            try:
                for first, last in spans.tolist():
                    self.judge(first * BLOCK, min((last + 1) * BLOCK, self.size))
            except IndexFolderError:  # whoever looks again is told again
                np.bitwise_and.at(self.bits, blocks >> 3, ~np.left_shift(1, blocks & 7).astype(np.uint8))
                raise

    def _unreadable(self, why: str) -> IndexFolderError:
        return IndexFolderError(f"{self.path}: cannot be read ({why}); {REBUILD}")

    def close(self) -> None:
        """Give files and address space back; the object is of no use afterwards."""
        self._expected = NO_CHECKS
        self._close()
        for mapped in (self.map, self._checks):
            # Whoever took an array may still hold it: then it goes with its last holder.
            with suppress(BufferError):
                if mapped is not None:
                    mapped.close()


class CheckedArray:
    """Numbers of an .npy file that stays on disk; arguments as those of `CheckedFile`.

    below: none of them is that large, or negative. They are looked at when they are compared, so that whoever is given
           one may take it for a place in something of this size.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        dtype: Any,
        files: HasFiles | None = None,
        *,
        below: int | None = None,
        **how: bool,
    ) -> None:
        self.file, self.dtype = CheckedFile(folder, name, files, **how), np.dtype(dtype)
        self.path = self.file.path
        (self.count,), self.start = read_npy_header(self.path, self.dtype, dimensions=1)
        self.unchecked = self.file.array(self.dtype, self.count, self.start)
        """All of them, for who has had compared what it takes."""
        if below is not None:
            # Not a method: the file would hold what holds it, and be let go by a garbage collection alone.
            self.file.judge = partial(_check_numbers, self.path, self.unchecked, self.start, below)
            if self.file.done:
                self.file.judge(0, self.file.size)

    def __len__(self) -> int:
        return self.count

    def take(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Those at places, in an array of any shape; at -1 stands any."""
        from bidr.index.vectors.page_cache_io import find_unverified_blocks, is_verified

        file = self.file
        if not file.done:
            flat = np.ascontiguousarray(rows, dtype=np.int64).ravel()
            if not is_verified(flat, self.count, self.start, self.dtype.itemsize, file.bits):
                blocks, wrong = find_unverified_blocks(
                    flat, self.count, self.start, self.dtype.itemsize, file.bits, False
                )
                if wrong >= 0:
                    raise DataError(f"{self.path}: number {flat[wrong]} asked for, expected 0 to {self.count - 1}")
                file.bring(np.unique(blocks))
        file.still_there()
        taken: npt.NDArray[Any] = self.unchecked[rows]
        return taken

    def some(self, first: int, count: int) -> list[int]:
        """A few that stand side by side."""
        size = self.dtype.itemsize
        self.file.need(self.start + first * size, self.start + (first + count) * size)
        self.file.still_there()
        found: list[int] = self.unchecked[first : first + count].tolist()
        return found

    def need_ranges(self, firsts: npt.NDArray[Any], ends: npt.NDArray[Any]) -> bool:
        """Have compared what lies between; False where that is not in the file."""
        size = self.dtype.itemsize
        return self.file.need_spans(self.start + firsts * size, self.start + ends * size)

    def whole(self) -> npt.NDArray[Any]:
        """All of them; the same object each time."""
        self.file.need_all()
        return self.unchecked

    def find(self, wanted: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Where each of the wanted stands, or would, in numbers that ascend: the first place (as np.searchsorted)."""
        from bidr.index.storage.checksum_kernels import first_places

        found, values = np.empty(len(wanted), dtype=np.int64), np.ascontiguousarray(wanted, dtype=self.dtype)
        self.file.still_there()
        if self.file.done:
            return np.searchsorted(self.unchecked, values)
        while (block := first_places(self.unchecked, values, self.start, self.file.bits, found)) >= 0:
            self.file.bring(np.array([block]))
        return found

    def close(self) -> None:
        self.unchecked = np.empty(0, dtype=self.dtype)
        self.file.close()


def _check_numbers(path: Path, numbers: npt.NDArray[Any], start: int, below: int, first: int, last: int) -> None:
    """Refuse numbers, from `start` on in a file, that lie in a range of bytes and are negative or not below."""
    size = numbers.itemsize
    some = numbers[max(0, first - start) // size : -(-max(0, last - start) // size)]
    # What is negative is far above, unsigned.
    if len(some) and int(some.view(f"u{size}").max()) >= below:
        raise IndexFolderError(f"{path}: holds a number that is not below {below:,}; {REBUILD}")


def _map(path: Path) -> tuple[int, mmap.mmap]:
    """A file as memory that is read page by page, only where it is looked at; and its handle."""
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
