"""Score rows that are read with O_DIRECT and Linux AIO (io_submit): keep reads in flight, verify, score, cache.

AIO instead of io_uring: for O_DIRECT it is as fast, and container runtimes allow it.
"""

import platform
from typing import Any, NamedTuple

import numpy as np
from numba import types

from bidr.index.vectors.page_cache_io import MAX_EMPTY_POLLS, SHIFT, Array, BlockData, verify_blocks
from bidr.index.vectors.row_cache import CacheMemory, find_row, get_set, hash_row, insert_row, lock_set, unlock_set
from bidr.index.vectors.scoring_kernels import score_row_at
from bidr.utils.jit import njit_cached

QUEUE_DEPTH = 64  # 32 reads in flight are enough for the disk (142,000 a second, at 128 118,000)
MIN_COMPLETIONS = 16
IO_SETUP, IO_SUBMIT, IO_GETEVENTS = (206, 209, 208) if platform.machine() == "x86_64" else (0, 2, 4)
OK, SYNCHRONOUS, FAILED, UNSUPPORTED, STUCK = range(5)
INVALID, NOT_SUPPORTED = -22, -95
# A read of up to this many blocks that nobody needs takes less time than another read: with 0 / 2 / 4, 200 candidates
# of a million take 79.9 / 70.1 / 67.0 reads and 1.18 / 1.21 / 1.12 ms of CPU time (bench/limited_memory.py).
MAX_GAP_BLOCKS = 4
RESIDENCY_SAMPLES = 16
REREAD_SHARE = 0.1  # cheapest for small files of the values in bench/disk_warming.py (0.1, 0.25, never)
PLACE_BITS = 24
CACHED_ROWS, READS, READ_BLOCKS = range(3)

_long = types.int64
_mincore = types.ExternalFunction("mincore", types.int32(types.intp, types.uintp, types.intp))
_syscall = types.ExternalFunction("syscall", _long(_long, _long, _long, _long, _long, _long, _long))


class AioRequests(NamedTuple):
    """A Linux AIO context with its request structures and the memory that blocks are read into."""

    context: int
    iocbs: Array  # uint64 (QUEUE_DEPTH, 8): struct iocb
    pointers: Array  # int64: address of each iocb
    events: Array  # int64 (QUEUE_DEPTH, 4): struct io_event
    buffer: Array  # uint8, for as many reads in flight as spans fit
    content: Array  # uint64: the same memory, read-only
    tail: Array  # uint8, empty and read-only: the memory has complete words only


class FileLayout(NamedTuple):
    """A vector file opened with O_DIRECT: where its rows are, and what verifies its blocks."""

    handle: int
    size: int
    start: int
    row_bytes: int
    number: int  # in the cache
    keys: Array  # of the checksums
    expected: Array  # uint32 checksums; empty: no verification
    was_read: Array  # bitmap of the blocks that were read
    by_distance: bool  # score rows by distance


@njit_cached()
def _is_resident(base: int, block: int, page: int, residency: Array) -> bool:
    _mincore(base + (block << SHIFT) // page * page, np.uint64(1), residency.ctypes.data)
    return bool(residency[0] & 1)


@njit_cached()
def is_first_read(blocks: Array, was_read: Array, base: int, page: int) -> bool:
    """Tell whether blocks should be read with O_DIRECT: hardly any was read before, and none of a sample is resident.

    The neighborhood of hot rows belongs in the page cache too.
    """
    first = 0
    for block in blocks:
        first += not was_read[block >> 3] & np.uint8(1 << (block & 7))
    if first <= (1 - REREAD_SHARE) * len(blocks):
        return False
    residency = np.zeros(1, dtype=np.uint8)
    for place in range(0, len(blocks), len(blocks) // RESIDENCY_SAMPLES + 1):
        if _is_resident(base, blocks[place], page, residency):
            return False
    return True


@njit_cached()
def clear_evicted(blocks: Array, verified: Array, base: int, page: int) -> None:
    """Clear the bits of blocks that have left the page cache."""
    residency = np.zeros(1, dtype=np.uint8)
    for block in blocks:
        if not _is_resident(base, block, page, residency):
            verified[block >> 3] &= ~np.uint8(1 << (block & 7))


@njit_cached()
def score_cached(
    file: FileLayout, keys: Array, cache: CacheMemory, query: Array, scores: Array, dtype_size: int
) -> Array:
    """Score the rows that are in the cache; returns the keys of the others.

    keys: row and place in `scores`, sorted (see `make_row_keys`).
    """
    if not len(cache.keys):
        return keys
    missing, count = np.empty(len(keys), dtype=np.int64), 0
    stride = file.row_bytes // dtype_size
    for key in keys:
        row, place = key >> PLACE_BITS, key & ((1 << PLACE_BITS) - 1)
        cache_key, hashed = hash_row(file.number, row)
        number = get_set(cache, hashed)
        lock = lock_set(cache, number)
        slot = find_row(cache, number, cache_key)
        if slot >= 0:
            scores[place] = score_row_at(cache.stored, np.uint64(slot * stride), query, file.by_distance)
        unlock_set(cache, lock)
        if slot < 0:
            missing[count] = key
            count += 1
    return missing[:count]


@njit_cached()
def _find_spans(file: FileLayout, keys: Array, max_blocks: int) -> Array:
    """Merge sorted rows into spans of blocks: first and last block, first key, end of the keys.

    A row lies in one span; a span has at most `max_blocks`.
    """
    spans, last = np.empty((len(keys), 4), dtype=np.int64), -1
    for number in range(len(keys)):
        begin = file.start + (keys[number] >> PLACE_BITS) * file.row_bytes
        first, end = begin >> SHIFT, (begin + file.row_bytes - 1) >> SHIFT
        if last >= 0 and first <= spans[last, 1] + 1 + MAX_GAP_BLOCKS and end - spans[last, 0] < max_blocks:
            spans[last, 1] = max(spans[last, 1], end)
        else:
            last += 1
            spans[last, 0], spans[last, 1], spans[last, 2] = first, end, number
        spans[last, 3] = number + 1
    return spans[: last + 1]


@njit_cached()
def _fill_iocb(requests: AioRequests, entry: int, handle: int, span: Array, slot: int, slot_bytes: int) -> None:
    iocb = requests.iocbs[entry]
    iocb[0] = np.uint64(slot)
    iocb[2] = np.uint64(handle) << np.uint64(32)
    iocb[3] = np.uint64(requests.buffer.ctypes.data + slot * slot_bytes)
    iocb[4] = np.uint64((span[1] - span[0] + 1) << SHIFT)
    iocb[5] = np.uint64(span[0] << SHIFT)


@njit_cached()
def check_completion(buffer: Array, result: int, span: Array, at: int, size: int) -> int:
    """Check that a read returned its whole span; zeros fill the rest beyond the end of the file."""
    start, length = span[0] << SHIFT, (span[1] - span[0] + 1) << SHIFT
    if result == length:
        return OK
    if result != size - start:
        return UNSUPPORTED if result in (INVALID, NOT_SUPPORTED) else FAILED
    for place in range(result, length):
        buffer[at + place] = 0
    return OK


@njit_cached()
def _score_span(
    requests: AioRequests, file: FileLayout, span: Array, slot: int, slot_blocks: int, keys: Array, cache: CacheMemory,
    stored: Array, query: Array, scores: Array,
) -> int:  # fmt: skip
    """Verify the blocks of a span, score its rows, and offer them to the cache."""
    data = BlockData(requests.content, requests.tail, file.keys, file.expected, file.was_read)
    verified = np.int64(-1)
    for number in range(span[2], span[3]):
        row, place = keys[number] >> PLACE_BITS, keys[number] & ((1 << PLACE_BITS) - 1)
        begin = file.start + row * file.row_bytes
        first, last = max(begin >> SHIFT, verified + 1), (begin + file.row_bytes - 1) >> SHIFT
        if verify_blocks(data, first, last, slot * slot_blocks + first - span[0]) >= 0:
            return FAILED
        verified = max(verified, last)
        at = (slot * slot_blocks << SHIFT) + begin - (span[0] << SHIFT)
        scores[place] = score_row_at(stored, np.uint64(at // stored.itemsize), query, file.by_distance)
        if len(cache.keys):
            cache_key, hashed = hash_row(file.number, row)
            insert_row(cache, cache_key, hashed, requests.buffer, at, file.row_bytes)
    return OK


@njit_cached()
def score_direct(
    requests: AioRequests, file: FileLayout, keys: Array, cache: CacheMemory, stored: Array, query: Array,
    scores: Array, counts: Array,
) -> int:  # fmt: skip
    """Read rows, verify and score each while other reads are in flight.

    Returns OK; SYNCHRONOUS: OK, but the system waited for each read; FAILED: a read failed or a block is damaged;
    UNSUPPORTED: the file system refuses O_DIRECT; STUCK: completions do not arrive, the memory may still be written to.

    Args:
        keys: Row and place in `scores`, sorted (see `make_row_keys`).
        stored: The buffer of `requests` with the dtype of the file's values, read-only.
        counts: Increased by the rows that the cache had, the reads, and their blocks.
    """
    missing = score_cached(file, keys, cache, query, scores, stored.itemsize)
    counts[CACHED_ROWS] += len(keys) - len(missing)
    slot_blocks = max(8, ((file.row_bytes - 1) >> SHIFT) + 2)
    slots = min(QUEUE_DEPTH, (len(requests.buffer) >> SHIFT) // slot_blocks)
    spans = _find_spans(file, missing, slot_blocks)
    free, span_of = np.arange(slots)[::-1].copy(), np.empty(slots, dtype=np.int64)
    count, submitted, completed, empty_polls, state, available = len(spans), 0, 0, 0, OK, slots
    counts[READS] += count
    while completed < count:
        batch = min(count - submitted, available)
        for number in range(batch):
            slot = free[available - 1 - number]
            span_of[slot] = submitted + number
            _fill_iocb(requests, number, file.handle, spans[submitted + number], slot, slot_blocks << SHIFT)
        accepted = 0
        if batch:
            accepted = max(_syscall(IO_SUBMIT, requests.context, batch, requests.pointers.ctypes.data, 0, 0, 0), 0)
        is_first = submitted == 0
        # Entries are accepted in order, so the slots of the accepted ones are the last of the free ones.
        submitted += accepted
        available -= accepted
        if submitted == completed:
            return FAILED
        min_events = 0 if is_first else min(MIN_COMPLETIONS, submitted - completed)
        arrived = _syscall(IO_GETEVENTS, requests.context, min_events, QUEUE_DEPTH, requests.events.ctypes.data, 0, 0)
        arrived = max(arrived, 0)
        if is_first and arrived == accepted and accepted >= RESIDENCY_SAMPLES:
            state = max(state, SYNCHRONOUS)
        for event in range(arrived):
            slot = requests.events[event, 0]
            span = spans[span_of[slot]]
            counts[READ_BLOCKS] += span[1] - span[0] + 1
            at = slot * slot_blocks << SHIFT
            outcome = check_completion(requests.buffer, requests.events[event, 2], span, at, file.size)
            if outcome == OK:
                outcome = _score_span(
                    requests, file, span, slot, slot_blocks, missing, cache, stored, query, scores
                )  # fmt: skip
            state = max(state, outcome)
            free[available] = slot
            available += 1
        completed += arrived
        if state >= FAILED:  # do not start more; those in flight must arrive before the memory is used again
            count = submitted
        empty_polls = 0 if arrived else empty_polls + 1
        if empty_polls > MAX_EMPTY_POLLS:
            return STUCK
    return state


@njit_cached()
def split_rows(rows: Array, start: int, row_bytes: int, verified: Array) -> Any:
    """Return the places of rows with an unverified block, and of the others (a row of -1 among them)."""
    unverified, others = np.empty(len(rows), dtype=np.int64), np.empty(len(rows), dtype=np.int64)
    direct, mapped = 0, 0
    for place in range(len(rows)):
        begin = start + rows[place] * row_bytes
        is_other = True
        if rows[place] >= 0:
            for block in range(begin >> SHIFT, ((begin + row_bytes - 1) >> SHIFT) + 1):
                is_other = is_other and (verified[block >> 3] >> (block & 7)) & 1 == 1
        if is_other:
            others[mapped] = place
            mapped += 1
        else:
            unverified[direct] = place
            direct += 1
    return unverified[:direct], others[:mapped]


def make_row_keys(rows: Any, places: Any) -> Any:
    """Return sorted keys of rows: the row above, the place of its score below; rows of -1 are left out."""
    keys = (rows << PLACE_BITS) + places
    keys.sort()
    return keys[int(np.searchsorted(keys, 0)) :]
