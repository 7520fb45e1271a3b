"""The engine protocol (`Candidates`), and helpers that all engines share."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np
import numpy.typing as npt

from bidr.errors import DataError
from bidr.quantization.codebooks import Codebooks
from bidr.utils.array_types import Bitmap, Codes, Floats, Rows

BitmaskWords = npt.NDArray[np.uint32]

EF_CONSTRUCTION = 200
QUERIES_PER_THREAD = 8


class Candidates(Protocol):
    """An engine: finds documents by the inner product of a query with their codes."""

    @property
    def name(self) -> str: ...

    @property
    def count(self) -> int: ...

    @property
    def codebooks(self) -> Codebooks: ...

    @property
    def ram_bytes(self) -> dict[str, int]:
        """Bytes in RAM for the documents, by purpose."""

    @property
    def codebook_bytes(self) -> int:
        """Bytes of codebooks in RAM, independent of the number of documents."""

    def compute_tables(self, queries: Floats) -> Floats:
        """Compute scores of all codewords, (queries, books, codewords); a document's score sums its entries."""

    def unpack_codes(self, rows: Rows | None = None) -> Codes:
        """Unpack a copy of the codes of all rows or of some, a byte per codeword: (n, books)."""

    def search(
        self, queries: Floats, k: int, ef: int | None = None, allowed: Bitmap | None = None
    ) -> tuple[Floats, Rows]:
        """Find k documents per query: scores and rows (queries, k), best first, equal scores by row.

        Args:
            ef: Search width: ef_search of a graph, nprobe of lists; a scan ignores it.
            allowed: A bit per row, as made by `numpy.packbits(..., bitorder="little")`; only rows with their bit set
                are found. Where there are fewer than k, the rest has row -1 and score -inf.
        """


def to_bitmask_words(allowed: Bitmap | None, count: int) -> BitmaskWords:
    """Convert a bitmap over rows to 32-bit words, with bits beyond the last row cleared; empty for None."""
    if allowed is None:
        return np.empty(0, dtype=np.uint32)
    expected = (count + 7) // 8
    if allowed.dtype != np.uint8 or allowed.shape != (expected,):
        raise DataError(
            f"allowed: given {allowed.dtype} of shape {allowed.shape}, expected uint8 of ({expected},), a bit for "
            f'each of {count:,} rows; make it with numpy.packbits(..., bitorder="little")'
        )
    padded = np.zeros((count + 31) // 32 * 4, dtype=np.uint8)
    padded[:expected] = allowed
    if count % 8:
        padded[expected - 1] &= (1 << count % 8) - 1
    return padded.view("<u4").astype(np.uint32, copy=False)


def count_bits(bitmask: BitmaskWords) -> int:
    """Count the set bits."""
    return int(np.bitwise_count(bitmask).sum())


def search_each(count: int, k: int, search: Callable[[int], tuple[Floats, Rows]], threads: int) -> tuple[Floats, Rows]:
    """Search `count` queries, on several threads if there are enough of them."""
    if count == 1:
        scores, rows = search(0)
        return scores[None], rows[None]
    scores, rows = np.empty((count, k), dtype=np.float32), np.empty((count, k), dtype=np.int64)

    def search_into(number: int) -> None:
        scores[number], rows[number] = search(number)

    threads = min(threads, count // QUERIES_PER_THREAD)
    if threads < 2:
        for number in range(count):
            search_into(number)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(search_into, range(count)))
    return scores, rows


def as_queries(queries: Floats) -> Floats:
    """Convert queries to contiguous float32."""
    return np.ascontiguousarray(queries, dtype=np.float32)
