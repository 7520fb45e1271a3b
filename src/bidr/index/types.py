"""What every engine is and takes."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np
import numpy.typing as npt

from bidr.errors import DataError
from bidr.quantization.codebooks import Codebooks
from bidr.utils.array_types import Bitmap, Codes, Floats, Rows

Words = npt.NDArray[np.uint32]

EF_CONSTRUCTION = 200
QUERIES_A_THREAD = 8


class Candidates(Protocol):
    """Finds documents by inner product of the query with their codes."""

    @property
    def name(self) -> str: ...

    @property
    def count(self) -> int: ...

    @property
    def codebooks(self) -> Codebooks: ...

    @property
    def ram_bytes(self) -> dict[str, int]:
        """Bytes held in RAM for the documents, by what they are."""

    @property
    def codebook_bytes(self) -> int:
        """Bytes of codebooks held in RAM, however many documents there are."""

    def compute_tables(self, queries: Floats) -> Floats:
        """Scores of all codewords, (queries, M, words): what a document's score is the sum of."""

    def unpack_codes(self, rows: Rows | None = None) -> Codes:
        """Codes (n, M) of all rows or of some, a byte a codeword: a copy, to be taken elsewhere."""

    def search(
        self, queries: Floats, k: int, ef: int | None = None, allowed: Bitmap | None = None
    ) -> tuple[Floats, Rows]:
        """Scores and rows of k documents a query, best first, equal ones by row: (queries, k) each.

        ef:      how widely is searched: documents that a graph visits, lists that are visited; a scan does not use it.
        allowed: a bit for every row, as `numpy.packbits(..., bitorder="little")` makes them; only rows with their bit
                 set are found. Where there are fewer than k, the rest has row -1 and score -inf.
        """


def as_words(allowed: Bitmap | None, count: int) -> Words:
    """A bitmap over rows as 32-bit words, bits beyond the last row off; empty where every row is allowed."""
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


def count_bits(words: Words) -> int:
    return int(np.bitwise_count(words).sum())


def each_query(count: int, k: int, search: Callable[[int], tuple[Floats, Rows]], threads: int) -> tuple[Floats, Rows]:
    """Search many queries, on several threads where there are enough of them."""
    if count == 1:
        one_scores, one_rows = search(0)
        return one_scores[None], one_rows[None]
    scores, rows = np.empty((count, k), dtype=np.float32), np.empty((count, k), dtype=np.int64)

    def one(number: int) -> None:
        scores[number], rows[number] = search(number)

    threads = min(threads, count // QUERIES_A_THREAD)
    if threads < 2:
        for number in range(count):
            one(number)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(one, range(count)))
    return scores, rows


def as_queries(queries: Floats) -> Floats:
    return np.ascontiguousarray(queries, dtype=np.float32)
