"""Scores of codes, compiled: a document's score is the sum of one table entry a book."""

from typing import Any

import numpy as np
from numba.cpython.unsafe.numbers import trailing_zeros

from bidr.index.engines.adc_tables import round_table
from bidr.index.engines.fast_scan import near_keys, wanted_of
from bidr.index.engines.topk import LAST_ROW, keep_from, key_of, kth_largest, split_keys
from bidr.index.vectors.scoring_kernels import LINE, prefetch
from bidr.utils.jit import njit_cached

ROOM = 1_024
AHEAD = 4

# Positions are unsigned throughout: numba lets signed ones count from the end, which takes half of the time.
U = np.uint64
NONE, LOW, HALF, BLOCK_BITS = np.uint64(0), np.uint8(15), np.uint64(16), np.uint64(5)
IN_HALF, TWO_PAIRS = np.uint64(15), np.uint64(64)


@njit_cached()
def row_score(flat: Any, entries: Any, books: Any, row: Any) -> Any:
    """Score of a row of (n, bytes) codes by a table of 256 entries a byte, both flat."""
    at, total = U(row) * books, np.float32(0)
    for book in range(books):
        total += entries[(U(book) << U(8)) + U(flat[at + U(book)])]
    return total


@njit_cached()
def _block_scores(flat: Any, entries: Any, size: Any, rows: Any, scores: Any) -> None:
    """Fill `scores` with those of rows of 4-bit codes in blocks of 32 documents, `size` bytes each.

    The table has 16 entries a book. Four sums, so that an addition need not wait for the one before. All rows in one
    loop: a function for a single one would count references to its arrays each time, a third of the time.
    """
    whole = size & ~(TWO_PAIRS - U(1))
    for place in range(len(rows)):
        if place + AHEAD < len(rows):
            start = (U(rows[place + AHEAD]) >> BLOCK_BITS) * size
            for line in range(NONE, size, U(LINE)):
                prefetch(flat, start + line)
        row = U(rows[place])
        at, shift = (row >> BLOCK_BITS) * size + (row & IN_HALF), np.uint8((row & HALF) >> U(2))
        first, second, third, fourth = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
        for pair in range(NONE, whole, TWO_PAIRS):
            first += entries[pair + U((flat[at + pair] >> shift) & LOW)]
            second += entries[pair + U(16) + U((flat[at + pair + U(16)] >> shift) & LOW)]
            third += entries[pair + U(32) + U((flat[at + pair + U(32)] >> shift) & LOW)]
            fourth += entries[pair + U(48) + U((flat[at + pair + U(48)] >> shift) & LOW)]
        if whole < size:
            first += entries[whole + U((flat[at + whole] >> shift) & LOW)]
            second += entries[whole + U(16) + U((flat[at + whole + U(16)] >> shift) & LOW)]
        scores[place] = (first + second) + (third + fourth)


@njit_cached()
def scan_rows(codes: Any, table: Any, starts: Any, stops: Any, allowed: Any, k: int) -> Any:
    """Keys of the k best rows within ranges, unsorted. `allowed`: a bit a row as uint32 words; empty: every row."""
    flat, entries, books = codes.reshape(-1), table.reshape(-1), U(codes.shape[1])
    score = np.empty(1, dtype=np.float32)
    bits = score.view(np.uint32)
    keys, count = np.empty(4 * k + ROOM, dtype=np.uint64), 0
    least, bound = np.float32(-np.inf), np.uint64(0)
    for part in range(len(starts)):
        for block in range(starts[part] >> 5, (stops[part] + 31) >> 5):
            wanted = wanted_of(block, starts[part], stops[part], allowed)
            while wanted:
                row = U(block << 5) + U(trailing_zeros(wanted))
                wanted &= wanted - np.uint32(1)
                total = row_score(flat, entries, books, row)
                if total >= least:
                    score[0] = total
                    key = key_of(bits[0], row)
                    if key >= bound:
                        keys[count] = key
                        count += 1
                        if count == len(keys):
                            bound = kth_largest(keys, count, k)
                            count = keep_from(keys, count, bound)
                            least = split_keys(np.full(1, bound), 1)[0][0]
    if count > k:
        count = keep_from(keys, count, kth_largest(keys, count, k))
    return keys[:count]


@njit_cached()
def best_rows(codes: Any, table: Any, rows: Any, k: int) -> Any:
    """Keys of the k best of given rows, unsorted, and of others where that saves no time to who sorts them.

    Codes of two dimensions are rows, of three blocks of 32.
    """
    flat, entries, size = codes.reshape(-1), table.reshape(-1), U(codes.shape[1])
    scores = np.empty(len(rows), dtype=np.float32)
    if codes.ndim == 3:
        _block_scores(flat, entries, U(32) * size, rows, scores)
    else:
        for place in range(len(rows)):
            scores[place] = row_score(flat, entries, size, rows[place])
    bits = scores.view(np.uint32)
    keys, count = np.empty(len(rows), dtype=np.uint64), len(rows)
    for place in range(len(rows)):
        keys[place] = key_of(bits[place], rows[place])
    if count > 2 * k:
        count = keep_from(keys, count, kth_largest(keys, count, k))
    return keys[:count]


@njit_cached()
def best_near(codes: Any, table: Any, starts: Any, stops: Any, allowed: Any, k: int, margin: int, shuffle: Any) -> Any:
    """`best_rows` of 4-bit codes within ranges: near ones by the rounded table, then scored."""
    near = near_keys(codes, round_table(table), starts, stops, allowed, k, margin, shuffle)
    return best_rows(codes, table, rows_of(near), k)


@njit_cached()
def rows_of(keys: Any) -> Any:
    """The rows that keys are of."""
    rows = np.empty(len(keys), dtype=np.int64)
    for place in range(len(keys)):
        rows[place] = np.int64(LAST_ROW - (keys[place] & LAST_ROW))
    return rows


@njit_cached()
def allowed_rows(allowed: Any, starts: Any, stops: Any) -> Any:
    """Rows within ranges whose bit is set."""
    rows, count = np.empty(ROOM, dtype=np.int64), 0
    for part in range(len(starts)):
        for block in range(starts[part] >> 5, (stops[part] + 31) >> 5):
            if not allowed[block]:
                continue
            if count + 32 > len(rows):
                more = np.empty(2 * len(rows), dtype=np.int64)
                more[:count] = rows[:count]
                rows = more
            wanted = wanted_of(block, starts[part], stops[part], allowed)
            while wanted:
                rows[count] = (block << 5) + trailing_zeros(wanted)
                wanted &= wanted - np.uint32(1)
                count += 1
    return rows[:count]
