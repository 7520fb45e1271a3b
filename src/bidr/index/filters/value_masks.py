"""The values that a test wants, marked in an array: as one range, by a table, or by hashing.

Numbers are compared as Python compares them, whole ones with fractions too; a column of fractions rounds what it is
compared with as it rounded its own values.
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from bidr.index.filters.bitmap_kernels import (
    Bitmask,
    allocate_bitmask,
    build_hash_table,
    check_row_order,
    map_to_positions,
    map_to_rows,
    mark_by_hash,
    mark_by_table,
    mark_range,
)

Bounds = tuple[tuple[str, Any], ...]
SMALLEST, LARGEST = -(1 << 63) + 1, (1 << 63) - 1
"""Of whole numbers in a column; the one below them stands for none."""
NO_WHOLE, NO_FRACTION = np.uint64(1 << 63), np.float64(np.nan).view(np.uint64)
# A byte for each number between the smallest and the largest that are wanted, where it stays in the processor's cache.
LARGEST_TABLE = 65_536


def mark_int_range(values: npt.NDArray[Any], bounds: Bounds, words: Bitmask) -> None:
    """Whole numbers within all bounds."""
    low, high = SMALLEST, LARGEST
    for key, bound in bounds:
        if key in ("gt", "gte"):
            low = max(low, math.floor(bound) + 1 if key == "gt" else math.ceil(bound))
        else:
            high = min(high, math.ceil(bound) - 1 if key == "lt" else math.floor(bound))
    if low <= high:
        mark_range(values, low, high, words)


def mark_float_range(values: npt.NDArray[Any], bounds: Bounds, words: Bitmask) -> None:
    """Numbers within all bounds. NaN, which stands for none, is within no range."""
    low, high = -math.inf, math.inf
    for key, given in bounds:
        bound = _rounded(given)
        if key in ("gt", "gte"):
            low = max(low, math.nextafter(bound, math.inf) if key == "gt" else bound)
        else:
            high = min(high, math.nextafter(bound, -math.inf) if key == "lt" else bound)
    mark_range(values, low, high, words)


def mark_ints(values: npt.NDArray[Any], wanted: Iterable[float], words: Bitmask) -> None:
    """Whole numbers that are among those wanted."""
    numbers = sorted({int(each) for each in wanted if SMALLEST <= each <= LARGEST and each == int(each)})
    if not numbers:
        return
    low, high = numbers[0], numbers[-1]
    if high - low + 1 == len(numbers):
        mark_range(values, low, high, words)
    elif high - low < LARGEST_TABLE:
        table = np.zeros(high - low + 2, dtype=np.uint8)
        table[np.array(numbers) - low] = 1
        mark_by_table(values, low, table, words)
    else:
        keys = np.array(numbers, dtype=np.int64).view(np.uint64)
        mark_by_hash(values.view(f"u{values.itemsize}"), build_hash_table(keys, NO_WHOLE), NO_WHOLE, words)


def mark_floats(values: npt.NDArray[Any], wanted: Iterable[float], words: Bitmask) -> None:
    """Numbers that are among those wanted."""
    numbers = {_rounded(each) for each in wanted}
    if len(numbers) == 1:
        (only,) = numbers
        mark_range(values, only, only, words)
    elif numbers:
        zeros = [0.0, -0.0] if 0.0 in numbers else []  # equal, in other bytes
        keys = np.array([*numbers, *zeros]).view(np.uint64)
        mark_by_hash(values.view(np.uint64), build_hash_table(keys, NO_FRACTION), NO_FRACTION, words)


def _rounded(number: float) -> float:
    try:
        return float(number)
    except OverflowError:  # a whole number beyond all fractions
        return math.inf if number > 0 else -math.inf


def warm_up() -> None:
    """Have compiled what filters take. Columns are mapped for reading alone, which to numba is a type of its own."""
    row, order, words = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int32), allocate_bitmask(1)
    for kind in ("i8", "u4", "i1", "f8"):
        values = np.zeros(1, dtype=kind)
        for array in (values, row, order):
            array.flags.writeable = False
        if kind == "f8":
            mark_floats(values, (0, 1), words)
            mark_float_range(values, (), words)
            continue
        mark_int_range(values, (), words)
        if kind != "i1":
            mark_ints(values, (0, 2), words)
            mark_ints(values, (0, 2 * LARGEST_TABLE), words)
    check_row_order(row, 1)
    map_to_rows(words, row, allocate_bitmask(1))
    map_to_positions(words, order, allocate_bitmask(1))
