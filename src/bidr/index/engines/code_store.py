"""Codes in RAM, in the layout that scans fastest: scan ranges of rows, or rank single rows."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from bidr.index.candidate_source import BitmaskWords
from bidr.index.code_packing import unpack
from bidr.index.engines.adc_kernels import collect_allowed_rows, rank_rows, scan_blocks, scan_rows
from bidr.index.engines.adc_tables import AdcTables, compute_margin, merge_pairs, pad_books
from bidr.index.engines.fast_scan_kernels import BLOCK, CACHE_LINE, detect_pshufb
from bidr.index.engines.topk import sort_keys
from bidr.quantization.codebooks import Codebooks
from bidr.utils.array_types import Codes, Floats, Rows
from bidr.utils.cpu_and_heap import count_available_cpus

Allocate = Callable[[Callable[[], npt.NDArray[np.uint8]]], npt.NDArray[np.uint8]]
ALL_ROWS: BitmaskWords = np.empty(0, dtype=np.uint32)
# Below this share most blocks of 32 contain at most one allowed document, and single rows are scored. At 1 % that takes
# .5 to .9 of the time of scanning those blocks, at 3 % as long or twice as long.
FEW_ALLOWED_SHARE = 0.02


class CodeStore:
    """Codes of a corpus, packed by `pack`: a byte per book, or two 4-bit codes per byte.

    Args:
        blocks: Store 4-bit codes in blocks of 32 documents for `find_next_block`; otherwise by document.
        allocate: Where the codes are stored; default: private memory (see `load_shared`).
    """

    def __init__(
        self, codebooks: Codebooks, rows: Codes, *, blocks: bool = True, allocate: Allocate = lambda make: make()
    ) -> None:
        self.codebooks, self.count, self.shuffle = codebooks, len(rows), detect_pshufb()
        self.blocked = blocks and codebooks.bits == 4
        self.codes: Any = allocate(lambda: to_blocks(rows) if self.blocked else np.array(rows))
        self._tables, self._margin = AdcTables(codebooks), compute_margin(codebooks.books)

    @property
    def nbytes(self) -> int:
        return int(self.codes.nbytes)

    @property
    def codebook_bytes(self) -> int:
        return self._tables.nbytes

    def compute_tables(self, queries: Floats) -> Floats:
        """Compute lookup tables (queries, books, codewords); the methods below take one of them."""
        return self._tables.compute(queries)

    def make_row_table(self, table: Floats) -> Floats:
        """Reshape a table for scoring single rows."""
        if self.blocked:
            return pad_books(table)
        return merge_pairs(table) if self.codebooks.bits == 4 else table

    def scan(
        self, table: Floats, starts: Rows, stops: Rows, k: int, allowed: BitmaskWords = ALL_ROWS
    ) -> tuple[Floats, Rows]:
        """Find the k best rows within ranges, by the exact scores of their codes."""
        if not self.blocked:
            return sort_keys(scan_rows(self.codes, self.make_row_table(table), starts, stops, allowed, k), k)
        even = pad_books(table)
        return sort_keys(scan_blocks(self.codes, even, starts, stops, allowed, k, self._margin, self.shuffle), k)

    def scan_sparse(
        self, table: Floats, starts: Rows, stops: Rows, k: int, allowed: BitmaskWords
    ) -> tuple[Floats, Rows]:
        """Do the same where few rows are allowed."""
        return self.rank(table, collect_allowed_rows(allowed, starts, stops), k)

    def rank(self, table: Floats, rows: Rows, k: int) -> tuple[Floats, Rows]:
        """Find the k best of these rows."""
        return sort_keys(rank_rows(self.codes, self.make_row_table(table), rows, k), k)

    def unpack_codes(self, rows: Rows | None = None) -> Codes:
        """Unpack codes of all rows or of some, a byte per codeword: (n, books)."""
        if not self.blocked:
            packed = self.codes.copy() if rows is None else self.codes[rows]
        elif rows is None:
            packed = from_blocks(self.codes)[: self.count]
        else:
            packed = from_blocks(self.codes[rows // BLOCK])[BLOCK * np.arange(len(rows)) + rows % BLOCK]
        return unpack(packed, self.codebooks.books, self.codebooks.bits)


def to_blocks(rows: Codes, batch_rows: int = 65_536) -> npt.NDArray[np.uint8]:
    """Arrange packed rows as (blocks, pairs, 32) for `find_next_block`; code 0 pads the last block."""
    count, pairs = rows.shape
    blocks = _allocate_aligned((-(-count // BLOCK), pairs, 32))
    for start in range(0, count, batch_rows):
        part = np.asarray(rows[start : start + batch_rows])
        part = np.pad(part, ((0, -len(part) % BLOCK), (0, 0))).reshape(-1, 2, 16, pairs).transpose(0, 3, 1, 2)
        part_blocks = blocks[start // BLOCK : start // BLOCK + len(part)]
        for book, half in enumerate((part & 15, part >> 4)):
            part_blocks[:, :, 16 * book : 16 * book + 16] = half[:, :, 0] | (half[:, :, 1] << 4)
    return blocks


def _allocate_aligned(shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Allocate zeros at a cache line: an unaligned block spans one more line, which is not prefetched."""
    size = math.prod(shape)
    memory = np.zeros(size + CACHE_LINE, dtype=np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + size].reshape(shape)


def from_blocks(blocks: npt.NDArray[np.uint8]) -> Codes:
    """Convert blocks back to packed rows."""
    first, second = blocks[:, :, :16], blocks[:, :, 16:]
    halves = [(first >> shift) & 15 | ((second >> shift) & 15) << 4 for shift in (0, 4)]
    packed = np.concatenate(halves, axis=2).transpose(0, 2, 1)
    return np.ascontiguousarray(packed).reshape(-1, blocks.shape[1])


class CodeEngine:
    """Base class of the engines: everything that only needs the codes."""

    def __init__(self, store: CodeStore) -> None:
        self.store, self.threads = store, count_available_cpus()

    @property
    def count(self) -> int:
        return self.store.count

    @property
    def codebooks(self) -> Codebooks:
        return self.store.codebooks

    @property
    def codebook_bytes(self) -> int:
        """Bytes of codebooks in RAM, as `Candidates.codebook_bytes`."""
        return self.store.codebook_bytes

    def compute_tables(self, queries: Floats) -> Floats:
        """Compute tables as `Candidates.compute_tables`."""
        return self.store.compute_tables(queries)

    def unpack_codes(self, rows: Rows | None = None) -> Codes:
        """Unpack codes as `Candidates.unpack_codes`."""
        return self.store.unpack_codes(rows)
