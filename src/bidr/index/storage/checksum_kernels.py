"""Numba kernels of `checksums`, apart from it so that opening an index does not import numba."""

from typing import Any

import numpy as np

from bidr.index.vectors.page_cache_io import SHIFT
from bidr.index.vectors.row_layout import make_checksum_keys
from bidr.utils.jit import njit_cached


@njit_cached()
def check_ranges_verified(starts: Any, ends: Any, size: int, verified: Any) -> int:
    """Return 1 if all blocks of the ranges are verified, 0 if not, -1 if a range is not within the file."""
    state = 1
    for number in range(len(starts)):
        start, end = starts[number], ends[number]
        if start < 0 or end < start or end > size:
            return -1
        if state == 1 and end > start:
            for block in range(start >> SHIFT, ((end - 1) >> SHIFT) + 1):
                if not (verified[block >> 3] >> (block & 7)) & 1:
                    state = 0
                    break
    return state


@njit_cached()
def search_verified(array: Any, values: Any, start: int, verified: Any, positions: Any) -> Any:
    """Binary search that stops at the first unverified block and returns it; -1 when done.

    start: byte offset of the array in its file.
    """
    size = array.itemsize
    for number in range(len(values)):
        low, high = 0, len(array)
        while low < high:
            middle = (low + high) >> 1
            block = (start + middle * size) >> SHIFT
            if not (verified[block >> 3] >> (block & 7)) & 1:
                return block
            low, high = (middle + 1, high) if array[middle] < values[number] else (low, middle)
        positions[number] = low
    return -1


def compile_read_kernels() -> None:
    """Compile the kernels that reading index files needs."""
    from bidr.index.vectors.page_cache_io import (
        BlockData,
        coalesce_blocks,
        find_unverified_blocks,
        is_verified,
        read_with_madvise,
    )

    no_ints, bits = np.empty(0, dtype=np.int64), np.zeros(1, dtype=np.uint8)
    words, checksums, tail = (np.frombuffer(b"", dtype=kind) for kind in ("<u8", "<u4", np.uint8))
    check_ranges_verified(no_ints, no_ints, 0, bits)
    search_verified(words, np.empty(0, dtype=np.uint64), 0, bits, no_ints)
    is_verified(no_ints, 0, 0, 8, bits)
    find_unverified_blocks(no_ints, 0, 0, 8, bits, False)
    read_with_madvise(
        0, -1, coalesce_blocks(no_ints), 4_096, BlockData(words, tail, make_checksum_keys(), checksums, bits)
    )
