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
    Words,
    ascending,
    by_place,
    by_row,
    found,
    hashed,
    listed,
    new_words,
    within,
)

Bounds = tuple[tuple[str, Any], ...]
SMALLEST, LARGEST = -(1 << 63) + 1, (1 << 63) - 1
"""Of whole numbers in a column; the one below them stands for none."""
NO_WHOLE, NO_FRACTION = np.uint64(1 << 63), np.float64(np.nan).view(np.uint64)
# A byte for each number between the smallest and the largest that are wanted, where it stays in the processor's cache.
LARGEST_TABLE = 65_536


def mark_whole_range(values: npt.NDArray[Any], bounds: Bounds, words: Words) -> None:
    """Whole numbers within all bounds."""
    low, high = SMALLEST, LARGEST
    for key, bound in bounds:
        if key in ("gt", "gte"):
            low = max(low, math.floor(bound) + 1 if key == "gt" else math.ceil(bound))
        else:
            high = min(high, math.ceil(bound) - 1 if key == "lt" else math.floor(bound))
    if low <= high:
        within(values, low, high, words)


def mark_fraction_range(values: npt.NDArray[Any], bounds: Bounds, words: Words) -> None:
    """Numbers within all bounds. NaN, which stands for none, is within no range."""
    low, high = -math.inf, math.inf
    for key, given in bounds:
        bound = _rounded(given)
        if key in ("gt", "gte"):
            low = max(low, math.nextafter(bound, math.inf) if key == "gt" else bound)
        else:
            high = min(high, math.nextafter(bound, -math.inf) if key == "lt" else bound)
    within(values, low, high, words)


def mark_wholes(values: npt.NDArray[Any], wanted: Iterable[float], words: Words) -> None:
    """Whole numbers that are among those wanted."""
    numbers = sorted({int(each) for each in wanted if SMALLEST <= each <= LARGEST and each == int(each)})
    if not numbers:
        return
    low, high = numbers[0], numbers[-1]
    if high - low + 1 == len(numbers):
        within(values, low, high, words)
    elif high - low < LARGEST_TABLE:
        table = np.zeros(high - low + 2, dtype=np.uint8)
        table[np.array(numbers) - low] = 1
        listed(values, low, table, words)
    else:
        keys = np.array(numbers, dtype=np.int64).view(np.uint64)
        found(values.view(f"u{values.itemsize}"), hashed(keys, NO_WHOLE), NO_WHOLE, words)


def mark_fractions(values: npt.NDArray[Any], wanted: Iterable[float], words: Words) -> None:
    """Numbers that are among those wanted."""
    numbers = {_rounded(each) for each in wanted}
    if len(numbers) == 1:
        (only,) = numbers
        within(values, only, only, words)
    elif numbers:
        zeros = [0.0, -0.0] if 0.0 in numbers else []  # equal, in other bytes
        keys = np.array([*numbers, *zeros]).view(np.uint64)
        found(values.view(np.uint64), hashed(keys, NO_FRACTION), NO_FRACTION, words)


def _rounded(number: float) -> float:
    try:
        return float(number)
    except OverflowError:  # a whole number beyond all fractions
        return math.inf if number > 0 else -math.inf


def warm_up() -> None:
    """Have compiled what filters take. Columns are mapped for reading alone, which to numba is a type of its own."""
    row, order, words = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int32), new_words(1)
    for kind in ("i8", "u4", "i1", "f8"):
        values = np.zeros(1, dtype=kind)
        for array in (values, row, order):
            array.flags.writeable = False
        if kind == "f8":
            mark_fractions(values, (0, 1), words)
            mark_fraction_range(values, (), words)
            continue
        mark_whole_range(values, (), words)
        if kind != "i1":
            mark_wholes(values, (0, 2), words)
            mark_wholes(values, (0, 2 * LARGEST_TABLE), words)
    ascending(row, 1)
    by_row(words, row, new_words(1))
    by_place(words, order, new_words(1))
