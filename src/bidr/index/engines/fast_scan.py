"""Fast scan of 4-bit codes: collect rows that may be among the k best, by quantized tables and a margin."""

from typing import Any

import numpy as np
from numba.cpython.unsafe.numbers import trailing_zeros

from bidr.index.engines.fast_scan_kernels import BLOCK, BYTE_SUMS, find_next_block
from bidr.index.engines.topk import LAST_ROW, ROW_BITS, grow_keys, keep_above
from bidr.utils.jit import njit_cached

# A sample of the blocks estimates the threshold. Documents are ordered by cluster, so good ones share blocks and their
# number in a sample varies more than by chance. At a million documents with 100 and 200 candidates, 6 deviations set
# the threshold too high for up to 3 of 100 queries, which were scanned twice; 12 were enough for all. The additional
# keys cost less than the variation between runs.
SAMPLE_EVERY, SAMPLE_DEVIATIONS = 32, 12
ALL_BITS = np.uint32(0xFFFFFFFF)
MAX_GAP_BLOCKS = 2
# Prefetch distance: with half of it a scan from memory takes a third longer. In ranges of few blocks the first block of
# a later range is prefetched.
PREFETCH_BYTES, FEW_BLOCKS, PREFETCH_RANGES = 4_096, 4, 4


@njit_cached()
def scan_top_k(
    blocks: Any, table: Any, starts: Any, stops: Any, allowed: Any, k: int, margin: int, shuffle: Any
) -> Any:
    """Return keys of rows within ranges whose sum is at most `margin` below the k-th largest, unsorted.

    blocks:  (blocks, pairs, 32) uint8; table: (pairs, 32) uint8.
    allowed: a bit per row, as uint32 words; empty: every row.
    """
    if len(allowed):
        starts, stops = find_allowed_ranges(starts, stops, allowed)
    threshold = _estimate_threshold(blocks, table, starts, stops, allowed, k, margin, shuffle)
    keys = _collect_above(blocks, table, starts, stops, allowed, k, margin, threshold, shuffle)
    bound = find_kth_sum(keys, len(keys), k) - margin if len(keys) > k else 0
    if bound < threshold:  # the estimate was too high
        keys = _collect_above(blocks, table, starts, stops, allowed, k, margin, 0, shuffle)
        bound = find_kth_sum(keys, len(keys), k) - margin if len(keys) > k else 0
    return keys[: keep_above(keys, len(keys), _make_sum_key(bound))]


@njit_cached()
def _estimate_threshold(
    blocks: Any, table: Any, starts: Any, stops: Any, allowed: Any, k: int, margin: int, shuffle: Any
) -> int:
    """Estimate from a sample of blocks a sum that the k best reach and few others; 0 if there are too few rows."""
    total = 0
    for part in range(len(starts)):
        total += stops[part] - starts[part]
    if total < 4 * SAMPLE_EVERY * k // 3:
        return 0
    pairs, size = blocks.shape[1], blocks.shape[1] * BLOCK
    base, entries, sums = blocks.ctypes.data, table.ctypes.data, np.empty(BLOCK, dtype=np.uint16)
    histogram = np.zeros(compute_max_sum(pairs) + 1, dtype=np.int32)
    count, largest = 0, np.uint16(min(len(histogram) - 1, 0xFFFF))
    sampled, masks = _sample_blocks(starts, stops, allowed, total)
    for number in range(len(sampled)):
        block, mask = sampled[number], masks[number]
        # Prefetch the next sample: the distance is too large for the hardware prefetcher.
        ahead = (sampled[min(number + 1, len(sampled) - 1)] - block) * size
        find_next_block(base, entries, pairs, block, block + 1, sums.ctypes.data, ahead, np.uint16(0), shuffle)
        while mask:
            histogram[min(sums[trailing_zeros(mask)], largest)] += 1
            mask &= mask - np.uint32(1)
            count += 1
    expected = k / SAMPLE_EVERY
    rank = int(expected + SAMPLE_DEVIATIONS * expected**0.5) + 1
    return max(rank_in_histogram(histogram, rank) - margin, 0) if rank <= count else 0


@njit_cached()
def _sample_blocks(starts: Any, stops: Any, allowed: Any, total: int) -> Any:
    """Sample every SAMPLE_EVERY-th block of ranges, with masks of its rows; blocks without allowed rows are skipped."""
    max_blocks = total // BLOCK + 2 * len(starts)  # a range may begin and end within a block
    sampled, masks = (
        np.empty(max_blocks // SAMPLE_EVERY + 1, dtype=np.int64),
        np.empty(max_blocks // SAMPLE_EVERY + 1, np.uint32),
    )
    sample_count, position = 0, SAMPLE_EVERY - 1
    for part in range(len(starts)):
        first, last = starts[part] // BLOCK, (stops[part] + BLOCK - 1) // BLOCK
        while position < last - first:
            sampled[sample_count] = first + position
            masks[sample_count] = build_block_mask(first + position, starts[part], stops[part], allowed)
            sample_count += masks[sample_count] != 0
            position += SAMPLE_EVERY
        position -= last - first
    return sampled[:sample_count], masks[:sample_count]


@njit_cached()
def _collect_above(
    blocks: Any, table: Any, starts: Any, stops: Any, allowed: Any, k: int, margin: int, threshold: int, shuffle: Any
) -> Any:
    """Collect keys of rows whose sum reaches the threshold, which rises as keys accumulate."""
    pairs, base, entries = blocks.shape[1], blocks.ctypes.data, table.ctypes.data
    size, prefetch_blocks = pairs * BLOCK, (PREFETCH_BYTES + pairs * BLOCK - 1) // (pairs * BLOCK)
    sums = np.empty(BLOCK, dtype=np.uint16)
    keys, count = np.empty(4 * k + 4 * BLOCK, dtype=np.uint64), 0
    for part in range(len(starts)):
        block, last = starts[part] // BLOCK, (stops[part] + BLOCK - 1) // BLOCK
        # The last blocks of a range prefetch the first of the next.
        prefetch_from, next_range = max(block, last - prefetch_blocks), starts[min(part + 1, len(starts) - 1)] // BLOCK
        if last - block <= FEW_BLOCKS:
            prefetch_from, next_range = block, starts[min(part + PREFETCH_RANGES, len(starts) - 1)] // BLOCK
        while block < last:
            stop, ahead = (
                (prefetch_from, PREFETCH_BYTES)
                if block < prefetch_from
                else (last, (next_range - prefetch_from) * size)
            )
            result = find_next_block(
                base, entries, pairs, block, stop, sums.ctypes.data, ahead, np.uint16(threshold), shuffle
            )
            mask = np.uint32(result & LAST_ROW)
            if not mask:
                block = stop
                continue
            block = np.int64(result >> ROW_BITS)
            mask &= build_block_mask(block, starts[part], stops[part], allowed)
            while mask:
                place = trailing_zeros(mask)
                mask &= mask - np.uint32(1)
                row = np.uint64(block * BLOCK + place)
                keys[count] = (np.uint64(sums[place]) << ROW_BITS) | (LAST_ROW - row)
                count += 1
            if count + BLOCK > len(keys):
                threshold = max(threshold, find_kth_sum(keys, count, k) - margin)
                count = keep_above(keys, count, _make_sum_key(threshold))
                keys = grow_keys(keys, count)
            block += 1
    return keys[:count]


@njit_cached()
def find_allowed_ranges(starts: Any, stops: Any, allowed: Any) -> Any:
    """Split ranges at blocks without an allowed row.

    Gaps of up to MAX_GAP_BLOCKS remain: scanning them takes less time than starting another range.
    """
    max_ranges, count = 0, 0
    for part in range(len(starts)):
        max_ranges += (stops[part] + BLOCK - 1) // BLOCK - starts[part] // BLOCK
    range_starts, range_ends = np.empty(max_ranges, dtype=np.int64), np.empty(max_ranges, dtype=np.int64)
    for part in range(len(starts)):
        block, last = starts[part] // BLOCK, (stops[part] + BLOCK - 1) // BLOCK
        while block < last:
            if not allowed[block]:
                block += 1
                continue
            end = block + 1
            next_block = end
            while next_block < last and next_block - end <= MAX_GAP_BLOCKS:
                if allowed[next_block]:
                    end = next_block + 1
                next_block += 1
            range_starts[count] = max(block * BLOCK, starts[part])
            range_ends[count] = min(end * BLOCK, stops[part])
            block = next_block
            count += 1
    return range_starts[:count], range_ends[:count]


@njit_cached()
def build_block_mask(block: Any, start: int, stop: int, allowed: Any) -> Any:
    """Build the mask of a block's rows that are within a range and allowed."""
    mask, first = ALL_BITS, block * BLOCK
    if first < start:
        mask &= ALL_BITS << np.uint32(start - first)
    if first + BLOCK > stop:
        mask &= ALL_BITS >> np.uint32(first + BLOCK - stop)
    if len(allowed):
        mask &= allowed[block]
    return mask


@njit_cached()
def compute_max_sum(pairs: int) -> int:
    """Return an upper bound of the sums of `pairs` pairs of books."""
    return (pairs + BYTE_SUMS - 1) // BYTE_SUMS * 510


@njit_cached()
def find_kth_sum(keys: Any, count: int, k: int) -> int:
    """Find the k-th largest sum of the first `count` keys, by a histogram."""
    low = high = np.int64(keys[0] >> ROW_BITS)
    for place in range(count):
        total = np.int64(keys[place] >> ROW_BITS)
        low, high = min(low, total), max(high, total)
    histogram = np.zeros(high - low + 1, dtype=np.int32)
    for place in range(count):
        histogram[np.int64(keys[place] >> ROW_BITS) - low] += 1
    return int(low + rank_in_histogram(histogram, k))


@njit_cached()
def rank_in_histogram(histogram: Any, k: int) -> int:
    """Return the bin of the k-th largest value of a histogram."""
    for place in range(len(histogram) - 1, 0, -1):
        k -= histogram[place]
        if k <= 0:
            return place
    return 0


@njit_cached()
def _make_sum_key(total: int) -> Any:
    return np.uint64(max(total, 0)) << ROW_BITS
