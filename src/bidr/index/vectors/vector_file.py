"""Vectors on disk: read many random rows at once, without loading other pages."""

import mmap
import os
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from bidr.errors import REBUILD, ConfigError, DataError, IndexFolderError
from bidr.index.vectors.direct_reader import DirectReader
from bidr.index.vectors.mmap_guard import MmapGuard
from bidr.index.vectors.npy_header import BLOCK, read_npy_header
from bidr.index.vectors.row_cache import CacheMemory, get_empty_cache
from bidr.index.vectors.row_layout import CHECKSUM_DTYPE, get_checksum_path, make_checksum_keys, read_layout
from bidr.index.vectors.vector_memory import VectorMemory
from bidr.utils.array_types import Floats, Rows
from bidr.utils.read_stats import ReadStats

ReadMode = Literal["auto", "io_uring", "advice"]
ROWS_PER_FETCH = 16_384
MAX_DIRECT_BLOCKS = 4_096
"""Queries that need more new blocks bring them into the page cache at once, if that is where vectors stay."""
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


class FetchedRows(NamedTuple):
    """Rows brought by `VectorFile.fetch`: the scores of those that were read past the page cache.

    stats:  What it took.
    scores: -inf at the other rows; None: no row was read so.
    mapped: Places of the other rows, which are in mapped memory; None: none, or all without scores.
    """

    stats: ReadStats
    scores: Floats | None = None
    mapped: Rows | None = None


class VectorFile:
    """A memory-mapped file of vectors that any number of threads may read.

    Each block of the file is verified when it is first read and whenever it enters memory again. RAM: two bits per
    block, arrays of at most ROWS_PER_FETCH rows, the read buffers that all files of a process share, and the row cache.
    """

    by_distance = False
    """Whether scores are negative squared distances instead of inner products."""

    def __init__(self, path: Path, reads: ReadMode = "auto", memory: VectorMemory | None = None) -> None:
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
        self.size = size = len(self._map)
        self._stored = np.frombuffer(self._map, "<u2" if self.kind == "fp16" else "i1", offset=self._start)
        self._words = np.frombuffer(self._map, "<u8", count=size // 8)
        self._tail = np.frombuffer(self._map, np.uint8, offset=size - size % 8) if size % 8 else _NO_BYTES
        # Two bitmaps over blocks: verified in mapped memory; read directly once.
        self._block_flags = np.zeros((2, -(-size // BLOCK) // 8 + 1), dtype=np.uint8)
        self._verified = self._block_flags[0]
        self._guard = MmapGuard((path, self._map), (get_checksum_path(path), self._checksums))
        self._reads = reads
        self.memory = memory or VectorMemory()
        if memory is None:
            self.memory.vector_bytes = size
        self._number = self.memory.cache.add_file()
        use_direct = reads == "auto" and self._start % self._stored.itemsize == 0
        self._direct_reader = DirectReader.open(path) if use_direct else None

    @classmethod
    def open(cls, path: Path, reads: ReadMode = "auto", memory: VectorMemory | None = None) -> Self:
        """Open an .npy file of rows.

        Args:
            path: The file; its checksums, if any, are beside it.
            reads: How new rows enter the page cache: "io_uring", or "advice" (madvise). "auto" takes io_uring where
                it is allowed, and reads rows with O_DIRECT the first time, or always where the page cache cannot hold
                the vectors.
            memory: What the files of an index share; by default a memory of the file's own.
        """
        return cls(path, reads, memory)

    @property
    def reads(self) -> str:
        """How rows that are not in memory are read on this machine."""
        if self._direct_reader is None or not self._direct_reader.is_usable():
            return self._cached_reads
        return f"direct, then {self._cached_reads}" if self.memory.uses_page_cache() else "direct"

    @property
    def waits_for_disk(self) -> bool:
        """Whether most searches read from the disk, as the page cache cannot hold the vectors."""
        return self._direct_reader is not None and not self.memory.uses_page_cache()

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

    def fetch(self, rows: Rows, query: Floats) -> FetchedRows:
        """Read and verify rows together; -1 is skipped. Returns quickly where they are in memory.

        Rows that are read past the page cache are scored at once, as others soon need their buffer.

        Args:
            rows: Row numbers.
            query: A vector of `dim` numbers.
        """
        from bidr.index.vectors.page_cache_io import is_verified

        rows = _as_rows(rows)
        self._guard.check_sizes()
        if len(rows) <= ROWS_PER_FETCH:
            in_page_cache = self.memory.uses_page_cache()
            if in_page_cache and is_verified(rows, self.count, self._start, self._row_bytes, self._verified):
                return FetchedRows(ReadStats(len(rows), len(rows)))
            fetched = self._fetch_direct(rows, self._as_query(query), in_page_cache)
            if fetched is not None:
                return fetched
        return FetchedRows(self._fetch(rows))

    def score(self, rows: Rows, query: Floats, fetched: FetchedRows | None = None) -> Floats:
        """Compute the score of a query with rows; -inf for a row of -1.

        The score is the inner product, or minus the squared distance if `by_distance` is set.

        A score depends on its row and the query alone, so equal vectors tie wherever they are.

        Args:
            rows: Row numbers.
            query: A vector of `dim` numbers.
            fetched: Result of `fetch` for these rows and this query; without it they are fetched now.
        """
        rows, query = _as_rows(rows), self._as_query(query)
        if fetched is None:
            if len(rows) > ROWS_PER_FETCH:
                parts = range(0, len(rows), ROWS_PER_FETCH)
                return np.concatenate([self.score(rows[start : start + ROWS_PER_FETCH], query) for start in parts])
            fetched = self.fetch(rows, query)
        if fetched.scores is None:
            return self._score_mapped(rows, query)
        if fetched.mapped is not None:
            fetched.scores[fetched.mapped] = self._score_mapped(rows[fetched.mapped], query)
        return fetched.scores

    @staticmethod
    def sum_stats(fetched: FetchedRows) -> ReadStats:
        """Return what fetching took."""
        return fetched.stats

    def _as_query(self, query: Floats) -> Floats:
        query = np.ascontiguousarray(query, dtype=np.float32)
        if query.shape != (self.dim,):
            raise DataError(f"query: given shape {query.shape}, expected ({self.dim},)")
        return query

    def _score_mapped(self, rows: Rows, query: Floats) -> Floats:
        from bidr.index.vectors.scoring_kernels import score_rows

        scores, stop_on_fault = np.empty(len(rows), dtype=np.float32), sys.platform == "linux"
        count = score_rows(self._stored, self._stride, rows, query, scores, 0, stop_on_fault, self.by_distance)
        if count < len(rows):  # rows that were read and have been evicted since
            rest = rows[count:]
            self._forget_evicted(rest)
            self._fetch(rest)
            score_rows(self._stored, self._stride, rows, query, scores, count, False, self.by_distance)
        return scores

    def read(self, rows: Rows) -> Floats:
        """Read rows as float32, in the order of `rows`: (rows, dim)."""
        from bidr.index.vectors.scoring_kernels import decode_rows

        rows = _as_rows(rows)
        if len(rows) and rows.min() < 0:
            raise self._make_row_error(int(rows.min()))
        vectors = np.empty((len(rows), self.dim), dtype=np.float32)
        in_page_cache = self.memory.uses_page_cache()
        for start in range(0, len(rows), ROWS_PER_FETCH):
            part, out = rows[start : start + ROWS_PER_FETCH], vectors[start : start + ROWS_PER_FETCH]
            # What the page cache cannot hold may have been evicted and changed since it was verified.
            self._fetch(part, reread=not in_page_cache)
            decode_rows(self._stored, self._stride, part, out)
        return vectors

    def _fetch(self, rows: Rows, *, reread: bool = False) -> ReadStats:
        """Bring unverified blocks of rows (all with `reread`) into the page cache, ROWS_PER_FETCH rows at a time."""
        from bidr.index.vectors.direct_io import split_rows
        from bidr.index.vectors.page_cache_io import coalesce_blocks, is_verified

        self._guard.check_sizes()
        stats = ReadStats()
        for start in range(0, len(rows), ROWS_PER_FETCH):
            part = rows[start : start + ROWS_PER_FETCH]
            if not reread and is_verified(part, self.count, self._start, self._row_bytes, self._verified):
                stats = stats.plus(ReadStats(len(part), len(part)))
                continue
            spans = coalesce_blocks(self._find_blocks(part, reread))
            hits = 0 if reread else len(split_rows(part, self._start, self._row_bytes, self._verified)[1])
            if len(spans):
                self._read_spans(spans)
            blocks = int((spans[:, 1] - spans[:, 0] + 1).sum())
            stats = stats.plus(ReadStats(len(part), hits, len(spans), BLOCK * blocks))
        return stats

    def _find_blocks(self, rows: Rows, reread: bool) -> Rows:
        """Find the unverified blocks of rows (all with `reread`), sorted."""
        from bidr.index.vectors.page_cache_io import find_unverified_blocks

        blocks: Rows
        blocks, invalid = find_unverified_blocks(rows, self.count, self._start, self._row_bytes, self._verified, reread)
        if invalid >= 0:
            raise self._make_row_error(int(rows[invalid]))
        blocks.sort()
        return blocks

    def _fetch_direct(self, rows: Rows, query: Floats, in_page_cache: bool) -> FetchedRows | None:
        """Score rows that are read past the page cache; None where all should be in mapped memory.

        That is always so where the page cache cannot hold the vectors, otherwise for blocks that nobody read before.
        """
        from bidr.index.vectors.direct_io import make_row_keys

        direct = self._direct_reader
        if direct is None or not direct.is_usable():
            return None
        if in_page_cache:
            return self._fetch_first_reads(direct, rows, query)
        self._check_rows(rows)
        cache = self.memory.cache.get_memory(self._row_bytes, self._stored.dtype)
        fetched = self._score_direct(direct, rows, make_row_keys(rows, np.arange(len(rows))), query, cache)
        if fetched is None:
            self._forget(rows)
        return fetched

    def _fetch_first_reads(self, direct: DirectReader, rows: Rows, query: Floats) -> FetchedRows | None:
        from bidr.index.vectors.direct_io import is_first_read, make_row_keys, split_rows

        blocks = np.unique(self._find_blocks(rows, reread=False))
        if not 0 < len(blocks) <= MAX_DIRECT_BLOCKS:
            return None
        if not is_first_read(blocks, self._block_flags[1], self._words.ctypes.data, mmap.PAGESIZE):
            return None
        places, mapped = split_rows(rows, self._start, self._row_bytes, self._verified)
        no_cache = get_empty_cache(self._stored.dtype)
        fetched = self._score_direct(direct, rows, make_row_keys(rows[places], places), query, no_cache)
        if fetched is None:
            return None
        stats = fetched.stats.plus(ReadStats(len(mapped), len(mapped)))
        return FetchedRows(stats, fetched.scores, mapped if len(mapped) else None)

    def compile_kernels(self) -> None:
        """Compile what reading needs in either memory, as a search does after the policy has changed."""
        from bidr.index.vectors.direct_io import make_row_keys

        rows, query = np.empty(0, dtype=np.int64), np.zeros(self.dim, dtype=np.float32)
        self._fetch(rows)
        self._score_mapped(rows, query)
        if self._direct_reader is not None and self._direct_reader.is_usable():
            no_cache = get_empty_cache(self._stored.dtype)
            self._score_direct(self._direct_reader, rows, make_row_keys(rows, rows), query, no_cache)

    def _check_rows(self, rows: Rows) -> None:
        if len(rows) and not -1 <= rows.min() <= rows.max() < self.count:
            raise self._make_row_error(int(rows[(rows < -1) | (rows >= self.count)][0]))

    def _forget(self, rows: Rows) -> None:
        """Verify the blocks of rows again when they are read next."""
        blocks = self._find_blocks(rows, reread=True)
        np.bitwise_and.at(self._verified, blocks >> 3, ~np.left_shift(1, blocks & 7).astype(np.uint8))

    def _forget_evicted(self, rows: Rows) -> None:
        """Do the same where they have left the page cache."""
        from bidr.index.vectors.direct_io import clear_evicted

        clear_evicted(
            np.unique(self._find_blocks(rows, reread=True)), self._verified, self._words.ctypes.data, mmap.PAGESIZE
        )

    def _score_direct(
        self, direct: DirectReader, rows: Rows, keys: Rows, query: Floats, cache: CacheMemory
    ) -> FetchedRows | None:
        """Read and score the rows of `keys`."""
        from bidr.index.vectors.direct_io import CACHED_ROWS, READ_BLOCKS, READS, FileLayout

        layout = FileLayout(
            direct.handle,
            self.size,
            self._start,
            self._row_bytes,
            self._number,
            make_checksum_keys(),
            self._expected,
            self._block_flags[1],
            self.by_distance,
        )
        scores, counts = np.full(len(rows), -np.inf, dtype=np.float32), np.zeros(3, dtype=np.int64)
        if not direct.score(layout, keys, cache, query, scores, counts):
            return None
        hits, reads, blocks = int(counts[CACHED_ROWS]), int(counts[READS]), int(counts[READ_BLOCKS])
        return FetchedRows(ReadStats(len(keys), hits, reads, BLOCK * blocks), scores)

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
