"""Asymmetric distance computation (ADC): the score of a code is the sum of one table entry per book."""

from typing import Any

import numpy as np
from numba.cpython.unsafe.numbers import trailing_zeros

from bidr.index.engines.adc_tables import quantize_table
from bidr.index.engines.fast_scan import build_block_mask, scan_top_k
from bidr.index.engines.topk import LAST_ROW, find_kth_largest, keep_above, make_key, split_keys
from bidr.index.vectors.scoring_kernels import CACHE_LINE, prefetch
from bidr.utils.jit import njit_cached

INITIAL_SIZE = 1_024
PREFETCH_ROWS = 4

# Unsigned indices: numba wraps negative ones, which takes half of the time.
U64 = np.uint64
ZERO, LOW_NIBBLE, UPPER_HALF, BLOCK_BITS = np.uint64(0), np.uint8(15), np.uint64(16), np.uint64(5)
HALF_MASK, TWO_PAIRS = np.uint64(15), np.uint64(64)


@njit_cached()
def score_row(flat: Any, entries: Any, books: Any, row: Any) -> Any:
    """Score a row of (n, bytes) codes with a flat table of 256 entries per byte."""
    at, total = U64(row) * books, np.float32(0)
    for book in range(books):
        total += entries[(U64(book) << U64(8)) + U64(flat[at + U64(book)])]
    return total


@njit_cached()
def _score_blocked_rows(flat: Any, entries: Any, size: Any, rows: Any, scores: Any) -> None:
    """Score rows of 4-bit codes in blocks of 32 documents, `size` bytes each; the table has 16 entries per book.

    Four accumulators, so that an addition need not wait for the previous one. All rows in one loop: a function per row
    would count references to its arrays each time, a third of the time.
    """
    unrolled = size & ~(TWO_PAIRS - U64(1))
    for number in range(len(rows)):
        if number + PREFETCH_ROWS < len(rows):
            start = (U64(rows[number + PREFETCH_ROWS]) >> BLOCK_BITS) * size
            for line in range(ZERO, size, U64(CACHE_LINE)):
                prefetch(flat, start + line)
        row = U64(rows[number])
        at, shift = (row >> BLOCK_BITS) * size + (row & HALF_MASK), np.uint8((row & UPPER_HALF) >> U64(2))
        first, second, third, fourth = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
        for pair in range(ZERO, unrolled, TWO_PAIRS):
            first += entries[pair + U64((flat[at + pair] >> shift) & LOW_NIBBLE)]
            second += entries[pair + U64(16) + U64((flat[at + pair + U64(16)] >> shift) & LOW_NIBBLE)]
            third += entries[pair + U64(32) + U64((flat[at + pair + U64(32)] >> shift) & LOW_NIBBLE)]
            fourth += entries[pair + U64(48) + U64((flat[at + pair + U64(48)] >> shift) & LOW_NIBBLE)]
        if unrolled < size:
            first += entries[unrolled + U64((flat[at + unrolled] >> shift) & LOW_NIBBLE)]
            second += entries[unrolled + U64(16) + U64((flat[at + unrolled + U64(16)] >> shift) & LOW_NIBBLE)]
        scores[number] = (first + second) + (third + fourth)


@njit_cached()
def scan_rows(codes: Any, table: Any, starts: Any, stops: Any, allowed: Any, k: int) -> Any:
    """Return keys of the k best rows within ranges, unsorted.

    allowed: a bit per row as uint32 words; empty: every row.
    """
    flat, entries, books = codes.reshape(-1), table.reshape(-1), U64(codes.shape[1])
    score = np.empty(1, dtype=np.float32)
    bits = score.view(np.uint32)
    keys, count = np.empty(4 * k + INITIAL_SIZE, dtype=np.uint64), 0
    min_score, bound = np.float32(-np.inf), np.uint64(0)
    for part in range(len(starts)):
        for block in range(starts[part] >> 5, (stops[part] + 31) >> 5):
            mask = build_block_mask(block, starts[part], stops[part], allowed)
            while mask:
                row = U64(block << 5) + U64(trailing_zeros(mask))
                mask &= mask - np.uint32(1)
                total = score_row(flat, entries, books, row)
                if total >= min_score:
                    score[0] = total
                    key = make_key(bits[0], row)
                    if key >= bound:
                        keys[count] = key
                        count += 1
                        if count == len(keys):
                            bound = find_kth_largest(keys, count, k)
                            count = keep_above(keys, count, bound)
                            min_score = split_keys(np.full(1, bound), 1)[0][0]
    if count > k:
        count = keep_above(keys, count, find_kth_largest(keys, count, k))
    return keys[:count]


@njit_cached()
def rank_rows(codes: Any, table: Any, rows: Any, k: int) -> Any:
    """Score rows and return keys of the k best, unsorted; up to 2k keys where selecting would not save time.

    Two-dimensional codes are rows, three-dimensional codes blocks of 32.
    """
    flat, entries, size = codes.reshape(-1), table.reshape(-1), U64(codes.shape[1])
    scores = np.empty(len(rows), dtype=np.float32)
    if codes.ndim == 3:
        _score_blocked_rows(flat, entries, U64(32) * size, rows, scores)
    else:
        for place in range(len(rows)):
            scores[place] = score_row(flat, entries, size, rows[place])
    bits = scores.view(np.uint32)
    keys, count = np.empty(len(rows), dtype=np.uint64), len(rows)
    for place in range(len(rows)):
        keys[place] = make_key(bits[place], rows[place])
    if count > 2 * k:
        count = keep_above(keys, count, find_kth_largest(keys, count, k))
    return keys[:count]


@njit_cached()
def scan_blocks(
    codes: Any, table: Any, starts: Any, stops: Any, allowed: Any, k: int, margin: int, shuffle: Any
) -> Any:
    """Scan ranges of 4-bit codes with the quantized table, then rank candidates by exact scores."""
    keys = scan_top_k(codes, quantize_table(table), starts, stops, allowed, k, margin, shuffle)
    return rank_rows(codes, table, extract_rows(keys), k)


@njit_cached()
def extract_rows(keys: Any) -> Any:
    """Extract the rows from keys."""
    rows = np.empty(len(keys), dtype=np.int64)
    for place in range(len(keys)):
        rows[place] = np.int64(LAST_ROW - (keys[place] & LAST_ROW))
    return rows


@njit_cached()
def collect_allowed_rows(allowed: Any, starts: Any, stops: Any) -> Any:
    """Collect the allowed rows within ranges."""
    rows, count = np.empty(INITIAL_SIZE, dtype=np.int64), 0
    for part in range(len(starts)):
        for block in range(starts[part] >> 5, (stops[part] + 31) >> 5):
            if not allowed[block]:
                continue
            if count + 32 > len(rows):
                grown = np.empty(2 * len(rows), dtype=np.int64)
                grown[:count] = rows[:count]
                rows = grown
            mask = build_block_mask(block, starts[part], stops[part], allowed)
            while mask:
                rows[count] = (block << 5) + trailing_zeros(mask)
                mask &= mask - np.uint32(1)
                count += 1
    return rows[:count]
