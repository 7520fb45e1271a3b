"""Bits over rows, compiled: which values pass a test, and where their rows stand. 32 rows a word, the first one lowest.

One pass over a column writes the bits. With numpy each step of a test is a pass of its own, which for 200,000 documents
took longer than the search.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba.cpython.unsafe.numbers import trailing_zeros

from bidr.utils.jit import njit_cached

Bitmask = npt.NDArray[np.uint32]
WORD_BITS = 32
# Positions are unsigned: numba lets signed ones count from the end, which takes time.
U, ONE, LOW, SHIFT = np.uint64, np.uint32(1), np.uint64(31), np.uint64(5)
AT_ONCE = 2_048
# Eight bytes of 0 or 1, times this: their bits side by side in the highest byte, the first one lowest.
TO_BITS = np.uint64(0x0102040810204080)
SPREAD = np.uint64(0x9E3779B97F4A7C15)


def allocate_bitmask(count: int) -> Bitmask:
    """Room for a bit each, none set."""
    return np.zeros(-(-count // WORD_BITS), dtype=np.uint32)


@njit_cached()
def _add(flags: Any, count: int, words: Any, start: int) -> None:
    """Set the bits from `start` on, a multiple of 32, by the first `count` flags: bytes of 0 or 1."""
    flags[count:] = 0
    eights, first = flags.view(np.uint64), U(start) >> SHIFT
    for number in range(U((count + WORD_BITS - 1) // WORD_BITS)):
        word = U(0)
        for part in range(U(4)):
            word |= ((eights[U(4) * number + part] * TO_BITS) >> U(56)) << (U(8) * part)
        words[first + number] |= np.uint32(word)


@njit_cached()
def mark_range(values: Any, low: Any, high: Any, words: Any) -> None:
    """Set the bits of values from `low` to `high`, both included."""
    flags = np.empty(AT_ONCE, dtype=np.uint8)
    for start in range(0, len(values), AT_ONCE):
        part = values[start : start + AT_ONCE]
        for place in range(len(part)):
            flags[place] = (part[place] >= low) & (part[place] <= high)
        _add(flags, len(part), words, start)


@njit_cached()
def mark_by_table(values: Any, first: Any, table: Any, words: Any) -> None:
    """Set the bits of whole numbers that a table lists: a byte for each from `first` on, and a last one that is 0."""
    flags, origin, last = np.empty(AT_ONCE, dtype=np.uint8), U(first), U(len(table) - 1)
    for start in range(0, len(values), AT_ONCE):
        part = values[start : start + AT_ONCE]
        for place in range(U(len(part))):
            flags[place] = table[min(U(part[place]) - origin, last)]
        _add(flags, len(part), words, start)


@njit_cached()
def build_hash_table(keys: Any, none: Any) -> Any:
    """A table to look keys up in, so empty that a second look is seldom needed; `none` stands where no key is."""
    bits = np.uint64(4)
    while (1 << bits) < 16 * len(keys):
        bits += np.uint64(1)
    table, mask = np.full(1 << bits, none, dtype=np.uint64), (U(1) << bits) - U(1)
    for key in keys:
        at = (key * SPREAD) >> (U(64) - bits)
        while table[at] != none and table[at] != key:
            at = (at + U(1)) & mask
        table[at] = key
    return table


@njit_cached()
def mark_by_hash(values: Any, table: Any, none: Any, words: Any) -> None:
    """Set the bits of values that are keys of a table which `hashed` made."""
    flags, mask, shift = np.empty(AT_ONCE, dtype=np.uint8), U(len(table) - 1), U(64)
    while (U(1) << (U(64) - shift)) < U(len(table)):
        shift -= U(1)
    for start in range(0, len(values), AT_ONCE):
        part = values[start : start + AT_ONCE]
        for place in range(U(len(part))):
            key = U(part[place])
            at = (key * SPREAD) >> shift
            while (table[at] != none) & (table[at] != key):  # one jump, seldom taken: "and" would make two
                at = (at + U(1)) & mask
            flags[place] = (table[at] == key) & (key != none)
        _add(flags, len(part), words, start)


@njit_cached()
def map_to_rows(bits: Any, rows: Any, words: Any) -> None:
    """Set the bit of each row one of whose values has its bit set; rows were checked to be there."""
    for number in range(U(len(bits))):
        word, base = bits[number], number << SHIFT
        while word:
            row = U(rows[base + U(trailing_zeros(word))])
            word &= word - ONE
            words[row >> SHIFT] |= ONE << np.uint32(row & LOW)


@njit_cached()
def check_row_order(rows: Any, count: int) -> tuple[bool, bool]:
    """Whether rows ascend and lie below `count`, and whether they are all of these, once each."""
    right, each = True, len(rows) == count
    before = np.int64(0)
    for place in range(len(rows)):
        right &= (before <= rows[place]) & (rows[place] < count)
        each &= rows[place] == place
        before = rows[place]
    return right, each


@njit_cached()
def map_to_positions(bits: Any, order: Any, words: Any) -> None:
    """Set the bit of each place whose row has its bit set; `order` was checked to name rows that are there."""
    whole = U(len(order)) >> SHIFT
    for number in range(whole):
        base, word = number << SHIFT, np.uint32(0)
        for place in range(U(WORD_BITS)):
            row = U(order[base + place])
            word |= ((bits[row >> SHIFT] >> np.uint32(row & LOW)) & ONE) << np.uint32(place)
        words[number] = word
    for at in range(whole << SHIFT, U(len(order))):
        row = U(order[at])
        words[whole] |= ((bits[row >> SHIFT] >> np.uint32(row & LOW)) & ONE) << np.uint32(at & LOW)
