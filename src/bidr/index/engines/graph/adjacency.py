"""Adjacency lists as bits: ascending numbers, delta-coded with a variable length.

From the lowest bit of a word upwards: a difference takes as many pieces of 3 bits as it needs, preceded by a 1 for each
piece but the first and then a 0. The first difference is from -1; a difference of 0 ends the list if bits remain.
"""

from typing import Any

import numpy as np
from numba.cpython.unsafe.numbers import trailing_zeros

from bidr.utils.jit import njit_cached

# Half of the differences are below 10, a tenth above 1,000: 7 bits per byte took a quarter more space, Golomb coding
# half as much again; pieces of 2 or 4 bits take about as much as 3.
PIECE_BITS = 3

U = np.uint64
STEP, WORD, LAST_BIT, WORD_BITS = np.uint64(PIECE_BITS + 1), np.uint64(6), np.uint64(63), np.uint64(64)
PIECE, FIRST, ONE = np.uint64(PIECE_BITS), np.uint64((2 << PIECE_BITS) - 1), np.uint64(1)


def compute_max_links(words: int) -> int:
    """Return the maximum number of links in `words` words."""
    return 64 * words // (PIECE_BITS + 1)


@njit_cached()
def count_link_bits(difference: int) -> int:
    """Count the bits that a difference takes."""
    bits = PIECE_BITS + 1
    while difference >> PIECE_BITS:
        difference >>= PIECE_BITS
        bits += PIECE_BITS + 1
    return bits


@njit_cached()
def write_links(groups: Any, words: Any) -> None:
    """Write ascending numbers into zeroed words, which must be large enough."""
    previous, at = -1, U(0)
    for group in groups:
        size = U(count_link_bits(group - previous))
        extra_pieces = size // STEP - ONE
        code = (U(group - previous) << (extra_pieces + ONE)) | ((ONE << extra_pieces) - ONE)
        words[at >> WORD] |= code << (at & LAST_BIT)
        if (at & LAST_BIT) + size > WORD_BITS:
            words[(at >> WORD) + ONE] |= code >> (WORD_BITS - (at & LAST_BIT))
        previous, at = group, at + size


@njit_cached()
def read_links(words: Any, start: int, width: int, groups: Any) -> int:
    """Read the numbers in `width` words from `start` into `groups`; returns how many they are."""
    first, at, end, group, count = U(start), U(0), U(64 * width), np.int64(-1), 0
    while at + STEP <= end:
        word, shift = first + (at >> WORD), at & LAST_BIT
        code = words[word] >> shift
        if shift and (at | LAST_BIT) + ONE < end:
            code |= words[word + ONE] << (WORD_BITS - shift)
        if not code & FIRST:
            break
        pieces = U(trailing_zeros(~code)) + ONE
        group += np.int64((code >> pieces) & ((ONE << (PIECE * pieces)) - ONE))
        at += STEP * pieces
        groups[count] = group
        count += 1
    return count
