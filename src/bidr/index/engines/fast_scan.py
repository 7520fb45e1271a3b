"""The rows of 4-bit codes that may be among the k best, compiled: scanned with rounded tables, a margin kept."""

from typing import Any

import numpy as np
from numba.cpython.unsafe.numbers import trailing_zeros

from bidr.index.engines.pshufb import BLOCK, BYTE_SUMS, find_next_block
from bidr.index.engines.topk import LAST_ROW, ROW_BITS, grow_keys, keep_above
from bidr.utils.jit import njit_cached

# A sample of the blocks tells which sums are worth keeping. Documents stand by cluster, so that good ones come many in
# a block: the number of them in a sample varies more than chance alone would have it. At a million, with 100 and 200
# candidates, 6 deviations made a guess that was too high for up to 3 of 100 questions, which p99 is: the codes were
# scanned twice. 12 were enough for all; keeping more at first takes less than what varies from run to run.
SAMPLE_EVERY, SAMPLE_DEVIATIONS = 32, 12
ALL_BITS = np.uint32(0xFFFFFFFF)
MAX_GAP_BLOCKS = 2
# Codes are asked for so many bytes ahead: with half of it a scan takes a third longer where they come from memory. Of
# ranges of few blocks the first block of a later one is.
PREFETCH_BYTES, FEW_BLOCKS, PREFETCH_RANGES = 4_096, 4, 4


@njit_cached()
def scan_top_k(
    blocks: Any, table: Any, starts: Any, stops: Any, allowed: Any, k: int, margin: int, shuffle: Any
) -> Any:
    """Keys of rows in the given ranges whose sum is at most `margin` below the k-th largest: unsorted.

    blocks:  (blocks, pairs, 32) uint8; table: (pairs, 32) uint8.
    allowed: a bit a row, as uint32 words; empty: every row.
    """
    if len(allowed):
        starts, stops = find_allowed_ranges(starts, stops, allowed)
    least = _estimate_threshold(blocks, table, starts, stops, allowed, k, margin, shuffle)
    keys = _collect_above(blocks, table, starts, stops, allowed, k, margin, least, shuffle)
    bound = find_kth_sum(keys, len(keys), k) - margin if len(keys) > k else 0
    if bound < least:  # the guess was too high
        keys = _collect_above(blocks, table, starts, stops, allowed, k, margin, 0, shuffle)
        bound = find_kth_sum(keys, len(keys), k) - margin if len(keys) > k else 0
    return keys[: keep_above(keys, len(keys), _make_sum_key(bound))]


@njit_cached()
def _estimate_threshold(
    blocks: Any, table: Any, starts: Any, stops: Any, allowed: Any, k: int, margin: int, shuffle: Any
) -> int:
    """A sum that the k best are likely to reach and few others, from every so many blocks; 0: cannot tell."""
    total = 0
    for part in range(len(starts)):
        total += stops[part] - starts[part]
    if total < 4 * SAMPLE_EVERY * k // 3:
        return 0
    pairs, size = blocks.shape[1], blocks.shape[1] * BLOCK
    base, entries, sums = blocks.ctypes.data, table.ctypes.data, np.empty(BLOCK, dtype=np.uint16)
    often = np.zeros(compute_max_sum(pairs) + 1, dtype=np.int32)
    count, largest = 0, np.uint16(min(len(often) - 1, 0xFFFF))
    sampled, bits = _sample_blocks(starts, stops, allowed, total)
    for number in range(len(sampled)):
        block, wanted = sampled[number], bits[number]
        # The one after is asked for meanwhile: they are too far apart for the processor to foresee.
        ahead = (sampled[min(number + 1, len(sampled) - 1)] - block) * size
        find_next_block(base, entries, pairs, block, block + 1, sums.ctypes.data, ahead, np.uint16(0), shuffle)
        while wanted:
            often[min(sums[trailing_zeros(wanted)], largest)] += 1
            wanted &= wanted - np.uint32(1)
            count += 1
    expected = k / SAMPLE_EVERY
    rank = int(expected + SAMPLE_DEVIATIONS * expected**0.5) + 1
    return max(rank_in_histogram(often, rank) - margin, 0) if rank <= count else 0


@njit_cached()
def _sample_blocks(starts: Any, stops: Any, allowed: Any, total: int) -> Any:
    """Every so many blocks of ranges, and which of their documents count; without those where none does."""
    most = total // BLOCK + 2 * len(starts)  # a range may begin and end within a block
    sampled, bits = np.empty(most // SAMPLE_EVERY + 1, dtype=np.int64), np.empty(most // SAMPLE_EVERY + 1, np.uint32)
    found, following = 0, SAMPLE_EVERY - 1
    for part in range(len(starts)):
        first, last = starts[part] // BLOCK, (stops[part] + BLOCK - 1) // BLOCK
        while following < last - first:
            sampled[found] = first + following
            bits[found] = build_block_mask(first + following, starts[part], stops[part], allowed)
            found += bits[found] != 0
            following += SAMPLE_EVERY
        following -= last - first
    return sampled[:found], bits[:found]


@njit_cached()
def _collect_above(
    blocks: Any, table: Any, starts: Any, stops: Any, allowed: Any, k: int, margin: int, least: int, shuffle: Any
) -> Any:
    """Keys of rows whose sum reaches `least`; where these are many, of the better ones as `near_keys` wants them."""
    pairs, base, entries = blocks.shape[1], blocks.ctypes.data, table.ctypes.data
    size, back = pairs * BLOCK, (PREFETCH_BYTES + pairs * BLOCK - 1) // (pairs * BLOCK)
    sums = np.empty(BLOCK, dtype=np.uint16)
    keys, count = np.empty(4 * k + 4 * BLOCK, dtype=np.uint64), 0
    for part in range(len(starts)):
        block, last = starts[part] // BLOCK, (stops[part] + BLOCK - 1) // BLOCK
        # The last blocks of a range ask for the first of the next: beyond the range nothing is looked at.
        turn, beyond = max(block, last - back), starts[min(part + 1, len(starts) - 1)] // BLOCK
        if last - block <= FEW_BLOCKS:
            turn, beyond = block, starts[min(part + PREFETCH_RANGES, len(starts) - 1)] // BLOCK
        while block < last:
            stop, ahead = (turn, PREFETCH_BYTES) if block < turn else (last, (beyond - turn) * size)
            found = find_next_block(
                base, entries, pairs, block, stop, sums.ctypes.data, ahead, np.uint16(least), shuffle
            )
            reached = np.uint32(found & LAST_ROW)
            if not reached:
                block = stop
                continue
            block = np.int64(found >> ROW_BITS)
            reached &= build_block_mask(block, starts[part], stops[part], allowed)
            while reached:
                place = trailing_zeros(reached)
                reached &= reached - np.uint32(1)
                row = np.uint64(block * BLOCK + place)
                keys[count] = (np.uint64(sums[place]) << ROW_BITS) | (LAST_ROW - row)
                count += 1
            if count + BLOCK > len(keys):
                least = max(least, find_kth_sum(keys, count, k) - margin)
                count = keep_above(keys, count, _make_sum_key(least))
                keys = grow_keys(keys, count)
            block += 1
    return keys[:count]


@njit_cached()
def find_allowed_ranges(starts: Any, stops: Any, allowed: Any) -> Any:
    """What of ranges is left without blocks in which nothing is allowed: where each part begins and ends.

    Blocks between two parts that are few stay: scanning on takes less time than to begin elsewhere.
    """
    most, count = 0, 0
    for part in range(len(starts)):
        most += (stops[part] + BLOCK - 1) // BLOCK - starts[part] // BLOCK
    begins, ends = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64)
    for part in range(len(starts)):
        block, last = starts[part] // BLOCK, (stops[part] + BLOCK - 1) // BLOCK
        while block < last:
            if not allowed[block]:
                block += 1
                continue
            end = block + 1
            following = end
            while following < last and following - end <= MAX_GAP_BLOCKS:
                if allowed[following]:
                    end = following + 1
                following += 1
            begins[count] = max(block * BLOCK, starts[part])
            ends[count] = min(end * BLOCK, stops[part])
            block = following
            count += 1
    return begins[:count], ends[:count]


@njit_cached()
def build_block_mask(block: Any, start: int, stop: int, allowed: Any) -> Any:
    """Which of a block's documents are in a range and allowed: a bit each."""
    wanted, first = ALL_BITS, block * BLOCK
    if first < start:
        wanted &= ALL_BITS << np.uint32(start - first)
    if first + BLOCK > stop:
        wanted &= ALL_BITS >> np.uint32(first + BLOCK - stop)
    if len(allowed):
        wanted &= allowed[block]
    return wanted


@njit_cached()
def compute_max_sum(pairs: int) -> int:
    """What sums of so many pairs of books stay within."""
    return (pairs + BYTE_SUMS - 1) // BYTE_SUMS * 510


@njit_cached()
def find_kth_sum(keys: Any, count: int, k: int) -> int:
    """The k-th largest sum of the first `count` keys, by counting how often each occurs."""
    low = high = np.int64(keys[0] >> ROW_BITS)
    for place in range(count):
        here = np.int64(keys[place] >> ROW_BITS)
        low, high = min(low, here), max(high, here)
    often = np.zeros(high - low + 1, dtype=np.int32)
    for place in range(count):
        often[np.int64(keys[place] >> ROW_BITS) - low] += 1
    return int(low + rank_in_histogram(often, k))


@njit_cached()
def rank_in_histogram(often: Any, k: int) -> int:
    """The place of the k-th, counted from the last place on."""
    for place in range(len(often) - 1, 0, -1):
        k -= often[place]
        if k <= 0:
            return place
    return 0


@njit_cached()
def _make_sum_key(least: int) -> Any:
    return np.uint64(max(least, 0)) << ROW_BITS
