"""Vectors on disk: read many random rows at once, without loading other pages."""

import mmap
import os
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from bidr.errors import REBUILD, ConfigError, DataError, IndexFolderError
from bidr.index.vectors.direct_reader import ALL_MAPPED, DirectReader, FetchedRows
from bidr.index.vectors.mmap_guard import MmapGuard
from bidr.index.vectors.npy_header import BLOCK, read_npy_header
from bidr.index.vectors.row_layout import CHECKSUM_DTYPE, get_checksum_path, make_checksum_keys, read_layout
from bidr.utils.array_types import Floats, Rows

ReadMode = Literal["auto", "io_uring", "advice"]
ROWS_PER_FETCH = 16_384
MAX_PREFETCHED_BYTES = 1 << 28
"""Checksum files up to this size are prefetched completely."""
Fp16Vectors = npt.NDArray[np.float16]

_NO_BYTES: npt.NDArray[np.uint8] = np.frombuffer(b"", dtype=np.uint8)
_NO_CHECKSUMS: npt.NDArray[np.uint32] = np.frombuffer(b"", dtype=CHECKSUM_DTYPE)


def score_fp16(vectors: Fp16Vectors, query: Floats, *, by_distance: bool = False) -> Floats:
    """Score vectors in RAM; the results equal those of a file of the same vectors."""
    from bidr.index.vectors.scoring_kernels import score_rows

    scores, stored = np.empty(len(vectors), dtype=np.float32), np.ascontiguousarray(vectors, dtype="<f2").view("<u2")
    query = np.ascontiguousarray(query, dtype=np.float32)
    score_rows(stored.ravel(), vectors.shape[1], np.arange(len(vectors)), query, scores, 0, False, by_distance)
    return scores


class VectorFile:
    """A memory-mapped file of vectors that any number of threads may read.

    Each block of the file is verified when it is first read and whenever it enters the page cache again. RAM: two bits
    per block, arrays of at most ROWS_PER_FETCH rows, and the read buffers that all files of a process share.
    """

    by_distance = False
    """Whether scores are negative squared distances instead of inner products."""

    def __init__(self, path: Path, reads: ReadMode = "auto") -> None:
        self.path = path
        self.kind, self.count, self.dim, self._start = read_layout(path)
        self._row_bytes = 2 * self.dim if self.kind == "fp16" else self.dim + 4
        self._stride = self.dim if self.kind == "fp16" else self._row_bytes
        self._checksums, self._expected = _open_checksums(get_checksum_path(path), -(-path.stat().st_size // BLOCK))
        self._handle = os.open(path, os.O_RDONLY)
        os.posix_fadvise(self._handle, 0, 0, os.POSIX_FADV_RANDOM)
        self._map = mmap.mmap(self._handle, 0, prot=mmap.PROT_READ)
        # Without both hints every read loads its surroundings: 1,000 cold rows take 2,000 ms instead of 60.
        self._map.madvise(mmap.MADV_RANDOM)
        size = len(self._map)
        self._stored = np.frombuffer(self._map, "<u2" if self.kind == "fp16" else "i1", offset=self._start)
        self._words = np.frombuffer(self._map, "<u8", count=size // 8)
        self._tail = np.frombuffer(self._map, np.uint8, offset=size - size % 8) if size % 8 else _NO_BYTES
        # Two bitmaps over blocks: verified in mapped memory; read directly once.
        self._block_flags = np.zeros((2, -(-size // BLOCK) // 8 + 1), dtype=np.uint8)
        self._verified = self._block_flags[0]
        self._guard = MmapGuard((path, self._map), (get_checksum_path(path), self._checksums))
        self._reads = reads
        use_direct = reads == "auto" and self._start % self._stored.itemsize == 0
        self._direct_reader = DirectReader.open(path, size) if use_direct else None

    @classmethod
    def open(cls, path: Path, reads: ReadMode = "auto") -> Self:
        """Open an .npy file of rows.

        Args:
            path: The file; its checksums, if any, are beside it.
            reads: How new rows enter the page cache: "io_uring", or "advice" (madvise). "auto" takes io_uring where
                it is allowed, and reads rows with O_DIRECT the first time.
        """
        return cls(path, reads)

    @property
    def reads(self) -> str:
        """How rows that are not in memory are read on this machine."""
        direct = self._direct_reader is not None and self._direct_reader.is_usable()
        return f"direct, then {self._cached_reads}" if direct else self._cached_reads

    @property
    def _cached_reads(self) -> str:
        from bidr.index.vectors.io_uring import ring_pool

        if self._reads == "advice":
            return "advice"
        if ring_pool.is_usable():
            return "io_uring"
        if self._reads == "io_uring":
            raise ConfigError(f"reads: 'io_uring' is not available here ({ring_pool.refusal}); use 'auto'")
        return "advice"

    @property
    def has_checksums(self) -> bool:
        """Whether blocks are verified when they are read."""
        return self._expected is not _NO_CHECKSUMS

    @property
    def ram_bytes(self) -> dict[str, int]:
        """Bytes in RAM by purpose; of the checksums those that are prefetched."""
        checksums = int(self._expected.nbytes)
        return {
            "seen blocks": int(self._block_flags.nbytes),
            "checksums": checksums if checksums <= MAX_PREFETCHED_BYTES else 0,
        }

    def fetch(self, rows: Rows) -> FetchedRows:
        """Read and verify rows together; -1 is skipped. Returns quickly where they are in memory."""
        return self._fetch(_as_rows(rows))

    def score(self, rows: Rows, query: Floats, fetched: FetchedRows | None = None) -> Floats:
        """Compute the score of a query with rows; -inf for a row of -1.

        The score is the inner product, or minus the squared distance if `by_distance` is set.

        A score depends on its row and the query alone, so equal vectors tie wherever they are.

        Args:
            rows: Row numbers.
            query: A vector of `dim` numbers.
            fetched: Result of `fetch` for these rows; without it they are fetched now.
        """
        rows, query = _as_rows(rows), np.ascontiguousarray(query, dtype=np.float32)
        if query.shape != (self.dim,):
            raise DataError(f"query: given shape {query.shape}, expected ({self.dim},)")
        return self._score(rows, query, self._fetch(rows) if fetched is None else fetched, sys.platform == "linux")

    def _score(self, rows: Rows, query: Floats, fetched: FetchedRows, stop_on_fault: bool) -> Floats:
        from bidr.index.vectors.scoring_kernels import score_rows

        scores = np.empty(len(rows), dtype=np.float32)
        if fetched.buffer is not None:
            score_rows(
                fetched.buffer.view_like(self._stored), 1, fetched.offsets, query, scores, 0, False, self.by_distance
            )
            others = np.flatnonzero(fetched.offsets < 0)
            if len(others):
                scores[others] = self._score(rows[others], query, ALL_MAPPED, stop_on_fault)
            return scores
        count = score_rows(self._stored, self._stride, rows, query, scores, 0, stop_on_fault, self.by_distance)
        if count < len(rows):  # rows that were read and have been evicted since
            rest = rows[count:]
            scores[count:] = self._score(rest, query, self._fetch(rest, reread=True), False)
        return scores

    def read(self, rows: Rows) -> Floats:
        """Read rows as float32, in the order of `rows`: (rows, dim)."""
        from bidr.index.vectors.scoring_kernels import decode_rows

        rows = _as_rows(rows)
        if len(rows) and rows.min() < 0:
            raise self._make_row_error(int(rows.min()))
        vectors = np.empty((len(rows), self.dim), dtype=np.float32)
        for start in range(0, len(rows), ROWS_PER_FETCH):
            part, out = rows[start : start + ROWS_PER_FETCH], vectors[start : start + ROWS_PER_FETCH]
            fetched = self._fetch(part)
            if fetched.buffer is not None:
                decode_rows(fetched.buffer.view_like(self._stored), 1, fetched.offsets, out)
                part = np.where(fetched.offsets < 0, part, -1)
            decode_rows(self._stored, self._stride, part, out)
        return vectors

    def _fetch(self, rows: Rows, *, reread: bool = False) -> FetchedRows:
        """Read unverified blocks of rows (all with `reread`), ROWS_PER_FETCH rows at a time."""
        from bidr.index.vectors.page_cache_io import coalesce_blocks, is_verified

        self._guard.check_sizes()
        fetched = ALL_MAPPED
        for start in range(0, len(rows), ROWS_PER_FETCH):
            part = rows[start : start + ROWS_PER_FETCH]
            if not reread and is_verified(part, self.count, self._start, self._row_bytes, self._verified):
                continue
            blocks = self._find_blocks(part, reread)
            if len(blocks) and len(part) == len(rows):
                fetched = self._fetch_direct(part, blocks, reread)
                if fetched.buffer is not None:
                    blocks = self._find_blocks(part[fetched.offsets < 0], reread)
            if len(blocks):
                self._read_spans(coalesce_blocks(blocks))
        return fetched

    def _find_blocks(self, rows: Rows, reread: bool) -> Rows:
        """Find the unverified blocks of rows (all with `reread`), sorted."""
        from bidr.index.vectors.page_cache_io import find_unverified_blocks

        blocks: Rows
        blocks, invalid = find_unverified_blocks(rows, self.count, self._start, self._row_bytes, self._verified, reread)
        if invalid >= 0:
            raise self._make_row_error(int(rows[invalid]))
        blocks.sort()
        return blocks

    def _fetch_direct(self, rows: Rows, blocks: Rows, reread: bool) -> FetchedRows:
        """Read blocks with O_DIRECT if they are read for the first time."""
        from bidr.index.vectors.direct_io import locate_rows

        if self._direct_reader is None:
            return ALL_MAPPED
        buffer, in_buffer = self._direct_reader.read(blocks, self._block_flags, self._words, self._expected, reread)
        if buffer is None:
            return ALL_MAPPED
        return FetchedRows(buffer, locate_rows(rows, in_buffer, self._start, self._row_bytes, self._stored.itemsize))

    def _read_spans(self, spans: npt.NDArray[np.int64]) -> None:
        """Bring spans of blocks into the page cache and verify them."""
        from bidr.index.vectors import io_uring
        from bidr.index.vectors.page_cache_io import BlockData, read_with_madvise

        data = BlockData(self._words, self._tail, make_checksum_keys(), self._expected, self._verified)
        result = io_uring.read_spans(self._handle, spans, data) if self._cached_reads == "io_uring" else None
        if result is None:
            result = read_with_madvise(self._words.ctypes.data, self._handle, spans, mmap.PAGESIZE, data)
        bad, error, damaged = result
        if bad >= 0:
            reason = os.strerror(-error) if error else "the file ends before them"
            raise IndexFolderError(f"{self.path}: {self._name_rows(*spans[bad])} cannot be read ({reason}); {REBUILD}")
        if damaged >= 0:
            rows, checksums = self._name_rows(damaged, damaged), get_checksum_path(self.path).name
            raise IndexFolderError(f"{self.path}: {rows} are damaged, or {checksums} is; {REBUILD}")

    def _name_rows(self, first: int, last: int) -> str:
        """Name the rows in a span of blocks, for error messages."""
        low = max((int(first) * BLOCK - self._start) // self._row_bytes, 0)
        high = min(((int(last) + 1) * BLOCK - 1 - self._start) // self._row_bytes, self.count - 1)
        return f"rows {low:,} to {max(high, 0):,}"

    def _make_row_error(self, row: int) -> DataError:
        return DataError(f"invalid row: {row}, expected 0 to {self.count - 1}")

    def close(self) -> None:
        """Close the file and unmap it; the object cannot be used afterwards."""
        if self._handle >= 0:
            del self._stored, self._words, self._tail, self._expected
            self._guard = MmapGuard()
            for mapped in (self._map, self._checksums):
                # Another thread or a traceback may still reference it: then it is unmapped with the last reference.
                with suppress(BufferError):
                    if mapped is not None:
                        mapped.close()
            os.close(self._handle)
            self._handle = -1
            if self._direct_reader is not None:
                self._direct_reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _as_rows(rows: Rows) -> Rows:
    return np.ascontiguousarray(rows, dtype=np.int64)


def _open_checksums(path: Path, blocks: int) -> tuple[mmap.mmap | None, npt.NDArray[Any]]:
    """Map the checksums if there are any: 4 bytes per block, prefetched so that no query waits for them."""
    if not path.exists():
        return None, _NO_CHECKSUMS
    shape, start = read_npy_header(path, CHECKSUM_DTYPE, dimensions=1)
    if shape[0] != blocks:
        raise IndexFolderError(f"{path}: checksums of {shape[0]:,} blocks, expected {blocks:,}; {REBUILD}")
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    mapped.madvise(mmap.MADV_WILLNEED if len(mapped) <= MAX_PREFETCHED_BYTES else mmap.MADV_RANDOM)
    return mapped, np.frombuffer(mapped, CHECKSUM_DTYPE, offset=start)
