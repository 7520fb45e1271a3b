"""Bitmasks over rows: kernels that mark which values of a column match, 32 rows in each word, the lowest bit first.

A kernel writes the bits in one pass. With numpy each step of a comparison is a pass of its own, which takes longer than
a search from 200,000 documents on. Numbers compare as in Python, integers with fractions too; a column of floats rounds
the compared number as it rounded its values.
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from numba.cpython.unsafe.numbers import trailing_zeros

from bidr.utils.jit import njit_cached

Bitmask = npt.NDArray[np.uint32]
WORD_BITS = 32
# Indices are unsigned: numba wraps negative ones, which costs time.
U, ONE, LOW, SHIFT = np.uint64, np.uint32(1), np.uint64(31), np.uint64(5)
ROWS_PER_BLOCK = 2_048
# Eight bytes of 0 or 1 times this factor: their bits in the highest byte, the first one lowest.
TO_BITS = np.uint64(0x0102040810204080)
SPREAD = np.uint64(0x9E3779B97F4A7C15)
Bounds = tuple[tuple[str, Any], ...]
MIN_INT, MAX_INT = -(1 << 63) + 1, (1 << 63) - 1
"""Range of integers in a column; the number below it stands for an absent value."""
ABSENT_INT, ABSENT_FLOAT = np.uint64(1 << 63), np.float64(np.nan).view(np.uint64)
# Bytes of a lookup table that stays in the processor's cache: one for each integer from the smallest to the largest.
MAX_TABLE_BYTES = 65_536


def allocate_bitmask(count: int) -> Bitmask:
    """Return a bitmask for `count` rows with no bit set."""
    return np.zeros(-(-count // WORD_BITS), dtype=np.uint32)


@njit_cached()
def _pack_flags(flags: Any, count: int, bitmask: Any, start: int) -> None:
    """Set bits from `start` (a multiple of 32) on where the first `count` flags (bytes) are 1."""
    flags[count:] = 0
    eights, first = flags.view(np.uint64), U(start) >> SHIFT
    for number in range(U((count + WORD_BITS - 1) // WORD_BITS)):
        word = U(0)
        for byte in range(U(4)):
            word |= ((eights[U(4) * number + byte] * TO_BITS) >> U(56)) << (U(8) * byte)
        bitmask[first + number] |= np.uint32(word)


@njit_cached()
def mark_range(values: Any, low: Any, high: Any, bitmask: Any) -> None:
    """Set the bits of values from `low` to `high`, inclusive."""
    flags = np.empty(ROWS_PER_BLOCK, dtype=np.uint8)
    for start in range(0, len(values), ROWS_PER_BLOCK):
        block = values[start : start + ROWS_PER_BLOCK]
        for at in range(len(block)):
            flags[at] = (block[at] >= low) & (block[at] <= high)
        _pack_flags(flags, len(block), bitmask, start)


@njit_cached()
def mark_by_table(values: Any, first: Any, table: Any, bitmask: Any) -> None:
    """Set the bits of integers in a lookup table: one byte for each integer from `first` on, and a final 0."""
    flags, origin, last = np.empty(ROWS_PER_BLOCK, dtype=np.uint8), U(first), U(len(table) - 1)
    for start in range(0, len(values), ROWS_PER_BLOCK):
        block = values[start : start + ROWS_PER_BLOCK]
        for at in range(U(len(block))):
            flags[at] = table[min(U(block[at]) - origin, last)]
        _pack_flags(flags, len(block), bitmask, start)


@njit_cached()
def build_hash_table(keys: Any, none: Any) -> Any:
    """Build an open-addressing hash set of keys with a load of at most 1/16; `none` marks empty slots."""
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
def mark_by_hash(values: Any, table: Any, none: Any, bitmask: Any) -> None:
    """Set the bits of values that are keys of a hash set from `build_hash_table`."""
    flags, mask, shift = np.empty(ROWS_PER_BLOCK, dtype=np.uint8), U(len(table) - 1), U(64)
    while (U(1) << (U(64) - shift)) < U(len(table)):
        shift -= U(1)
    for start in range(0, len(values), ROWS_PER_BLOCK):
        block = values[start : start + ROWS_PER_BLOCK]
        for at in range(U(len(block))):
            key = U(block[at])
            slot = (key * SPREAD) >> shift
            while (table[slot] != none) & (table[slot] != key):  # one rarely taken branch: "and" would make two
                slot = (slot + U(1)) & mask
            flags[at] = (table[slot] == key) & (key != none)
        _pack_flags(flags, len(block), bitmask, start)


@njit_cached()
def map_to_rows(bits: Any, rows: Any, bitmask: Any) -> None:
    """Set the bit of each row with a value whose bit is set. `rows` must have been checked."""
    for number in range(U(len(bits))):
        word, base = bits[number], number << SHIFT
        while word:
            row = U(rows[base + U(trailing_zeros(word))])
            word &= word - ONE
            bitmask[row >> SHIFT] |= ONE << np.uint32(row & LOW)


@njit_cached()
def check_row_order(rows: Any, count: int) -> tuple[bool, bool]:
    """Return whether rows ascend and lie below `count`, and whether they are 0 to `count` - 1."""
    is_valid, is_identity = True, len(rows) == count
    previous = np.int64(0)
    for at in range(len(rows)):
        is_valid &= (previous <= rows[at]) & (rows[at] < count)
        is_identity &= rows[at] == at
        previous = rows[at]
    return is_valid, is_identity


@njit_cached()
def map_to_positions(bits: Any, order: Any, bitmask: Any) -> None:
    """Set the bit of each position whose row has its bit set. `order` (row of each position) must have been checked."""
    full_words = U(len(order)) >> SHIFT
    for number in range(full_words):
        base, word = number << SHIFT, np.uint32(0)
        for at in range(U(WORD_BITS)):
            row = U(order[base + at])
            word |= ((bits[row >> SHIFT] >> np.uint32(row & LOW)) & ONE) << np.uint32(at)
        bitmask[number] = word
    for at in range(full_words << SHIFT, U(len(order))):
        row = U(order[at])
        bitmask[full_words] |= ((bits[row >> SHIFT] >> np.uint32(row & LOW)) & ONE) << np.uint32(at & LOW)


def mark_int_range(values: npt.NDArray[Any], bounds: Bounds, bitmask: Bitmask) -> None:
    """Set the bits of integers within all bounds."""
    low, high = MIN_INT, MAX_INT
    for key, bound in bounds:
        if key in ("gt", "gte"):
            low = max(low, math.floor(bound) + 1 if key == "gt" else math.ceil(bound))
        else:
            high = min(high, math.ceil(bound) - 1 if key == "lt" else math.floor(bound))
    if low <= high:
        mark_range(values, low, high, bitmask)


def mark_float_range(values: npt.NDArray[Any], bounds: Bounds, bitmask: Bitmask) -> None:
    """Set the bits of floats within all bounds. NaN, an absent value, is within none."""
    low, high = -math.inf, math.inf
    for key, number in bounds:
        bound = _round_to_float(number)
        if key in ("gt", "gte"):
            low = max(low, math.nextafter(bound, math.inf) if key == "gt" else bound)
        else:
            high = min(high, math.nextafter(bound, -math.inf) if key == "lt" else bound)
    mark_range(values, low, high, bitmask)


def mark_ints(values: npt.NDArray[Any], numbers: Iterable[float], bitmask: Bitmask) -> None:
    """Set the bits of integers that equal one of the numbers."""
    integers = sorted({int(number) for number in numbers if MIN_INT <= number <= MAX_INT and number == int(number)})
    if not integers:
        return
    low, high = integers[0], integers[-1]
    if high - low + 1 == len(integers):
        mark_range(values, low, high, bitmask)
    elif high - low < MAX_TABLE_BYTES:
        table = np.zeros(high - low + 2, dtype=np.uint8)
        table[np.array(integers) - low] = 1
        mark_by_table(values, low, table, bitmask)
    else:
        keys = np.array(integers, dtype=np.int64).view(np.uint64)
        mark_by_hash(values.view(f"u{values.itemsize}"), build_hash_table(keys, ABSENT_INT), ABSENT_INT, bitmask)


def mark_floats(values: npt.NDArray[Any], numbers: Iterable[float], bitmask: Bitmask) -> None:
    """Set the bits of floats that equal one of the numbers."""
    floats = {_round_to_float(number) for number in numbers}
    if len(floats) == 1:
        (only,) = floats
        mark_range(values, only, only, bitmask)
    elif floats:
        zeros = [0.0, -0.0] if 0.0 in floats else []  # equal, but different bytes
        keys = np.array([*floats, *zeros]).view(np.uint64)
        mark_by_hash(values.view(np.uint64), build_hash_table(keys, ABSENT_FLOAT), ABSENT_FLOAT, bitmask)


def _round_to_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:  # an integer beyond the range of floats
        return math.inf if number > 0 else -math.inf


def warm_up() -> None:
    """Compile the kernels for the arrays of filters. Columns are read-only, which is a type of its own in numba."""
    row, order, bitmask = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int32), allocate_bitmask(1)
    for kind in ("i8", "u4", "i1", "f8"):
        values = np.zeros(1, dtype=kind)
        for array in (values, row, order):
            array.flags.writeable = False
        if kind == "f8":
            mark_floats(values, (0, 1), bitmask)
            mark_float_range(values, (), bitmask)
            continue
        mark_int_range(values, (), bitmask)
        if kind != "i1":
            mark_ints(values, (0, 2), bitmask)
            mark_ints(values, (0, 2 * MAX_TABLE_BYTES), bitmask)
    check_row_order(row, 1)
    map_to_rows(bitmask, row, allocate_bitmask(1))
    map_to_positions(bitmask, order, allocate_bitmask(1))
