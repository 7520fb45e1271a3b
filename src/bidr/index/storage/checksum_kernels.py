"""Whether what is about to be looked at was compared with its checksums, compiled (see `checked`)."""

from typing import Any

import numpy as np

from bidr.index.vectors.page_cache_io import SHIFT
from bidr.index.vectors.row_layout import make_checksum_keys
from bidr.utils.jit import njit_cached


@njit_cached()
def spans_seen(starts: Any, ends: Any, size: int, seen: Any) -> int:
    """1: all blocks of these ranges of bytes were; 0: some were not; -1: a range is none of a file of this size."""
    told = 1
    for number in range(len(starts)):
        start, end = starts[number], ends[number]
        if start < 0 or end < start or end > size:
            return -1
        if told == 1 and end > start:
            for block in range(start >> SHIFT, ((end - 1) >> SHIFT) + 1):
                if not (seen[block >> 3] >> (block & 7)) & 1:
                    told = 0
                    break
    return told


@njit_cached()
def first_places(values: Any, wanted: Any, start: int, seen: Any, found: Any) -> Any:
    """By bisection where each of the wanted stands in ascending values; or the first block on the way that was not.

    start: the byte of the file at which the values begin.
    """
    size = values.itemsize
    for number in range(len(wanted)):
        low, high = 0, len(values)
        while low < high:
            middle = (low + high) >> 1
            block = (start + middle * size) >> SHIFT
            if not (seen[block >> 3] >> (block & 7)) & 1:
                return block
            low, high = (middle + 1, high) if values[middle] < wanted[number] else (low, middle)
        found[number] = low
    return -1


def warm_up() -> None:
    """Have compiled what files on disk are looked at by."""
    from bidr.index.vectors.page_cache_io import (
        BlockData,
        coalesce_blocks,
        find_unverified_blocks,
        is_verified,
        read_with_madvise,
    )

    none, bits = np.empty(0, dtype=np.int64), np.zeros(1, dtype=np.uint8)
    words, checks, tail = (np.frombuffer(b"", dtype=kind) for kind in ("<u8", "<u4", np.uint8))
    spans_seen(none, none, 0, bits)
    first_places(words, np.empty(0, dtype=np.uint64), 0, bits, none)
    is_verified(none, 0, 0, 8, bits)
    find_unverified_blocks(none, 0, 0, 8, bits, False)
    read_with_madvise(0, -1, coalesce_blocks(none), 4_096, BlockData(words, tail, make_checksum_keys(), checks, bits))
