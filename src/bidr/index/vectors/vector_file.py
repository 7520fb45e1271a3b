"""Vectors on disk: many random rows at a time, no page but those they lie in, and all of these asked for at once."""

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


Fp16Vectors = npt.NDArray[np.float16]


def score_fp16(halves: Fp16Vectors, query: Floats) -> Floats:
    """Inner product of a query with vectors in RAM: the numbers that a file of the same vectors gives."""
    from bidr.index.vectors import scoring_kernels as kernels

    scores, stored = np.empty(len(halves), dtype=np.float32), np.ascontiguousarray(halves, dtype="<f2").view("<u2")
    asked = np.ascontiguousarray(query, dtype=np.float32)
    kernels.score_rows(stored.ravel(), halves.shape[1], np.arange(len(halves)), asked, scores, 0, False)
    return scores


class VectorFile:
    """Vectors that stay on disk: only the rows that are asked for are read. Any number of threads may use one.

    A block of the file is checked when it is first read, and again when it enters the page cache. The memory it takes
    is two bits a block, lists of at most FETCHED_ROWS rows, and the lanes that all files of a process share.
    """

    def __init__(self, path: Path, reads: ReadMode = "auto") -> None:
        self.path = path
        self.kind, self.count, self.dim, self._start = read_layout(path)
        self._row_bytes = 2 * self.dim if self.kind == "fp16" else self.dim + 4
        self._stride = self.dim if self.kind == "fp16" else self._row_bytes
        self._checks, self._expected = _open_checksums(get_checksum_path(path), -(-path.stat().st_size // BLOCK))
        self._handle = os.open(path, os.O_RDONLY)
        os.posix_fadvise(self._handle, 0, 0, os.POSIX_FADV_RANDOM)
        self._map = mmap.mmap(self._handle, 0, prot=mmap.PROT_READ)
        # Without these two every read takes a large piece around the row: 1,000 cold rows 2,000 ms instead of 60.
        self._map.madvise(mmap.MADV_RANDOM)
        size = len(self._map)
        self._stored = np.frombuffer(self._map, "<u2" if self.kind == "fp16" else "i1", offset=self._start)
        self._words = np.frombuffer(self._map, "<u8", count=size // 8)
        self._tail = np.frombuffer(self._map, np.uint8, offset=size - size % 8) if size % 8 else _NO_BYTES
        # A bit a block: found whole in mapped memory; and read once, past the page cache.
        self._seen = np.zeros((2, -(-size // BLOCK) // 8 + 1), dtype=np.uint8)
        self._whole = self._seen[0]
        self._watched = MmapGuard((path, self._map), (get_checksum_path(path), self._checks))
        self._reads = reads
        self._past = (
            DirectReader.open(path, size) if reads == "auto" and self._start % self._stored.itemsize == 0 else None
        )

    @classmethod
    def open(cls, path: Path, reads: ReadMode = "auto") -> Self:
        """Open an .npy file of rows.

        reads: how new rows are brought into the page cache: by io_uring, or by advice to the system. "auto" takes the
            former where it is allowed, and reads what is asked for the first time past the page cache.
        """
        return cls(path, reads)

    @property
    def reads(self) -> str:
        """How rows that are not in memory are read on this machine."""
        past = self._past is not None and self._past.usable()
        return f"direct, then {self._into_cache}" if past else self._into_cache

    @property
    def _into_cache(self) -> str:
        from bidr.index.vectors.io_uring import ring_pool

        if self._reads == "advice":
            return "advice"
        if ring_pool.usable():
            return "io_uring"
        if self._reads == "io_uring":
            raise ConfigError(f"reads: given 'io_uring', which is refused here ({ring_pool.refused}); use 'auto'")
        return "advice"

    @property
    def checked(self) -> bool:
        """Whether blocks are checked when they are read."""
        return self._expected is not _NO_CHECKSUMS

    @property
    def ram_bytes(self) -> dict[str, int]:
        """What stays in RAM of it, by what it is; of checksums what is asked for at once."""
        checks = int(self._expected.nbytes)
        return {"seen blocks": int(self._seen.nbytes), "checksums": checks if checks <= MAX_PREFETCHED_BYTES else 0}

    def fetch(self, rows: Rows) -> FetchedRows:
        """Bring rows, read together and checked; a row of -1 is nobody. Quick where they are in memory."""
        return self._fetch(_as_rows(rows))

    def score(self, rows: Rows, query: Floats, fetched: FetchedRows | None = None) -> Floats:
        """Inner product of a query with each of the rows; -inf for a row of -1.

        Each depends on its row and the query alone, so equal vectors tie wherever they are.
        fetched: what `fetch` gave for these rows, so that they need not be looked for again.
        """
        wanted, asked = _as_rows(rows), np.ascontiguousarray(query, dtype=np.float32)
        if asked.shape != (self.dim,):
            raise DataError(f"query: given shape {asked.shape}, expected ({self.dim},)")
        return self._score(wanted, asked, self._fetch(wanted) if fetched is None else fetched, sys.platform == "linux")

    def _score(self, rows: Rows, query: Floats, fetched: FetchedRows, watch: bool) -> Floats:
        from bidr.index.vectors import scoring_kernels as kernels

        scores = np.empty(len(rows), dtype=np.float32)
        if fetched.lane is not None:
            kernels.score_rows(fetched.lane.stored(self._stored), 1, fetched.places, query, scores, 0, False)
            others = np.flatnonzero(fetched.places < 0)
            if len(others):
                scores[others] = self._score(rows[others], query, ALL_MAPPED, watch)
            return scores
        done = kernels.score_rows(self._stored, self._stride, rows, query, scores, 0, watch)
        if done < len(rows):  # read before, but no longer in memory
            rest = rows[done:]
            scores[done:] = self._score(rest, query, self._fetch(rest, again=True), False)
        return scores

    def read(self, rows: Rows) -> Floats:
        """Rows as float32, in the order asked for: (rows, dim)."""
        from bidr.index.vectors import scoring_kernels as kernels

        wanted = _as_rows(rows)
        if len(wanted) and wanted.min() < 0:
            raise self._no_such_row(int(wanted.min()))
        vectors = np.empty((len(wanted), self.dim), dtype=np.float32)
        for at in range(0, len(wanted), ROWS_PER_FETCH):
            part, out = wanted[at : at + ROWS_PER_FETCH], vectors[at : at + ROWS_PER_FETCH]
            fetched = self._fetch(part)
            if fetched.lane is not None:
                kernels.decode_rows(fetched.lane.stored(self._stored), 1, fetched.places, out)
                part = np.where(fetched.places < 0, part, -1)
            kernels.decode_rows(self._stored, self._stride, part, out)
        return vectors

    def _fetch(self, rows: Rows, *, again: bool = False) -> FetchedRows:
        """Bring the blocks of rows that were never read, or all `again`; many rows a part at a time."""
        from bidr.index.vectors import page_cache_io as fetching

        self._watched.look()
        fetched = ALL_MAPPED
        for at in range(0, len(rows), ROWS_PER_FETCH):
            part = rows[at : at + ROWS_PER_FETCH]
            if not again and fetching.is_verified(part, self.count, self._start, self._row_bytes, self._whole):
                continue
            blocks = self._blocks(part, again)
            if len(blocks) and len(part) == len(rows):
                fetched = self._fetch_past(part, blocks, again)
                if fetched.lane is not None:
                    blocks = self._blocks(part[fetched.places < 0], again)
            if len(blocks):
                self._bring(fetching.coalesce_blocks(blocks))
        return fetched

    def _blocks(self, rows: Rows, again: bool) -> Rows:
        """Sorted blocks of rows that were never read, or all."""
        from bidr.index.vectors.page_cache_io import find_unverified_blocks

        blocks: Rows
        blocks, wrong = find_unverified_blocks(rows, self.count, self._start, self._row_bytes, self._whole, again)
        if wrong >= 0:
            raise self._no_such_row(int(rows[wrong]))
        blocks.sort()
        return blocks

    def _fetch_past(self, rows: Rows, blocks: Rows, again: bool) -> FetchedRows:
        """Read what of the blocks is asked for the first time past the page cache."""
        from bidr.index.vectors.direct_io import locate_rows

        if self._past is None:
            return ALL_MAPPED
        lane, held = self._past.read(blocks, self._seen, self._words, self._expected, again)
        if lane is None:
            return ALL_MAPPED
        return FetchedRows(lane, locate_rows(rows, held, self._start, self._row_bytes, self._stored.itemsize))

    def _bring(self, spans: npt.NDArray[np.int64]) -> None:
        """Read and check blocks, all at once."""
        from bidr.index.vectors.io_uring import ring_pool
        from bidr.index.vectors.page_cache_io import BlockData, read_with_madvise

        content = BlockData(self._words, self._tail, make_checksum_keys(), self._expected, self._whole)
        found = ring_pool.read(self._handle, spans, content) if self._into_cache == "io_uring" else None
        if found is None:
            found = read_with_madvise(self._words.ctypes.data, self._handle, spans, mmap.PAGESIZE, content)
        bad, error, damaged = found
        if bad >= 0:
            why = os.strerror(-error) if error else "the file ends before them"
            raise IndexFolderError(f"{self.path}: {self._rows_of(*spans[bad])} cannot be read ({why}); {REBUILD}")
        if damaged >= 0:
            named, checks = self._rows_of(damaged, damaged), get_checksum_path(self.path).name
            raise IndexFolderError(f"{self.path}: {named} are damaged, or {checks} is; {REBUILD}")

    def _rows_of(self, first: int, last: int) -> str:
        """The rows that lie in blocks, for a message."""
        low = max((int(first) * BLOCK - self._start) // self._row_bytes, 0)
        high = min(((int(last) + 1) * BLOCK - 1 - self._start) // self._row_bytes, self.count - 1)
        return f"rows {low:,} to {max(high, 0):,}"

    def _no_such_row(self, row: int) -> DataError:
        return DataError(f"row {row} asked for, expected 0 to {self.count - 1}")

    def close(self) -> None:
        """Give file and address space back; the object is of no use afterwards."""
        if self._handle >= 0:
            del self._stored, self._words, self._tail, self._expected
            self._watched = MmapGuard()
            for mapped in (self._map, self._checks):
                # Another thread, or the traceback of an error, may still hold it: then it goes with its last holder.
                with suppress(BufferError):
                    if mapped is not None:
                        mapped.close()
            os.close(self._handle)
            self._handle = -1
            if self._past is not None:
                self._past.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


_NO_BYTES: npt.NDArray[np.uint8] = np.frombuffer(b"", dtype=np.uint8)
_NO_CHECKSUMS: npt.NDArray[np.uint32] = np.frombuffer(b"", dtype=CHECKSUM_DTYPE)


def _as_rows(rows: Rows) -> Rows:
    return np.ascontiguousarray(rows, dtype=np.int64)


def _open_checksums(path: Path, blocks: int) -> tuple[mmap.mmap | None, npt.NDArray[Any]]:
    """The checksums, if the file has any: 4 bytes for 4 KiB, asked for now so that no query waits for them."""
    if not path.exists():
        return None, _NO_CHECKSUMS
    shape, start = read_npy_header(path, CHECKSUM_DTYPE, dimensions=1)
    if shape[0] != blocks:
        raise IndexFolderError(f"{path}: checksums of {shape[0]:,} blocks, expected {blocks:,}; {REBUILD}")
    with path.open("rb") as opened:
        mapped = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
    mapped.madvise(mmap.MADV_WILLNEED if len(mapped) <= MAX_PREFETCHED_BYTES else mmap.MADV_RANDOM)
    return mapped, np.frombuffer(mapped, CHECKSUM_DTYPE, offset=start)
