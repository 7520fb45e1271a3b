"""Read blocks with O_DIRECT and Linux AIO (io_submit): select blocks, keep reads in flight, locate rows.

AIO instead of io_uring: for O_DIRECT it is as fast, and container runtimes allow it.
"""

import platform
from typing import NamedTuple

import numpy as np
from numba import types

from bidr.index.vectors.page_cache_io import (
    BLOCK,
    MAX_EMPTY_POLLS,
    MIN_COMPLETIONS,
    SHIFT,
    Array,
    BlockData,
    verify_blocks,
)
from bidr.utils.jit import njit_cached

QUEUE_DEPTH = 128
IO_SETUP, IO_SUBMIT, IO_GETEVENTS = (206, 209, 208) if platform.machine() == "x86_64" else (0, 2, 4)
OK, SYNCHRONOUS, FAILED, UNSUPPORTED, STUCK = range(5)
INVALID, NOT_SUPPORTED = -22, -95
RESIDENCY_SAMPLES = 16
REREAD_SHARE = 0.1  # cheapest for small files of the values in bench/disk_warming.py (0.1, 0.25, never)

_long = types.int64
_mincore = types.ExternalFunction("mincore", types.int32(types.intp, types.uintp, types.intp))
_syscall = types.ExternalFunction("syscall", _long(_long, _long, _long, _long, _long, _long, _long))


class AioRequests(NamedTuple):
    """A Linux AIO context with its request structures and the memory that blocks are read into."""

    context: int
    iocbs: Array  # uint64 (QUEUE_DEPTH, 8): struct iocb
    pointers: Array  # int64: address of each iocb
    events: Array  # int64 (QUEUE_DEPTH, 4): struct io_event
    buffer: Array  # uint8


@njit_cached()
def _is_resident(base: int, block: int, page: int, residency: Array) -> bool:
    _mincore(base + (block << SHIFT) // page * page, np.uint64(1), residency.ctypes.data)
    return bool(residency[0] & 1)


@njit_cached()
def select_direct_blocks(blocks: Array, flags: Array, reread: bool, limit: int, base: int, page: int) -> Array:
    """Select up to `limit` sorted blocks to read with O_DIRECT: not resident, and never read (or `reread`).

    Empty where more than REREAD_SHARE of the blocks were read before: the neighborhood of hot rows belongs in the page
    cache too. mincore takes a quarter of the time of reading a block, so a sample is tested first, and all blocks only
    if a sampled one is resident.
    """
    selected, count, distinct = np.empty(len(blocks), dtype=np.int64), 0, 0
    for place in range(len(blocks)):
        block = blocks[place]
        if place == 0 or block != blocks[place - 1]:
            distinct += 1
            if reread or not flags[1, block >> 3] & np.uint8(1 << (block & 7)):
                selected[count] = block
                count += 1
    if count <= (1 - REREAD_SHARE) * distinct:
        return selected[:0]
    residency, any_resident, size = np.zeros(1, dtype=np.uint8), False, 0
    for place in range(0, count, count // RESIDENCY_SAMPLES + 1):
        any_resident = any_resident or _is_resident(base, selected[place], page, residency)
    for block in selected[:count]:
        if size < limit and not (any_resident and _is_resident(base, block, page, residency)):
            flags[0, block >> 3] &= ~np.uint8(1 << (block & 7))
            selected[size] = block
            size += 1
    return selected[:size]


@njit_cached()
def locate_rows(rows: Array, blocks: Array, start: int, row_bytes: int, itemsize: int) -> Array:
    """Return offsets of rows (in items) in memory that holds sorted blocks contiguously; -1: not completely there."""
    offsets = np.empty(len(rows), dtype=np.int64)
    for place in range(len(rows)):
        first = start + rows[place] * row_bytes
        block, extra = first >> SHIFT, ((first + row_bytes - 1) >> SHIFT) - (first >> SHIFT)
        low, high = 0, len(blocks)
        while low < high:  # no searchsorted: it takes seconds to compile
            middle = (low + high) >> 1
            low, high = (middle + 1, high) if blocks[middle] < block else (low, middle)
        offsets[place] = -1
        if (
            rows[place] >= 0
            and low + extra < len(blocks)
            and blocks[low] == block
            and blocks[low + extra] == block + extra
        ):
            offsets[place] = ((low << SHIFT) + (first & (BLOCK - 1))) // itemsize
    return offsets


@njit_cached()
def _fill_iocb(requests: AioRequests, entry: int, file: int, span: Array, at: int, number: int) -> None:
    iocb = requests.iocbs[entry]
    iocb[0] = np.uint64(number)
    iocb[2] = np.uint64(file) << np.uint64(32)
    iocb[3] = np.uint64(requests.buffer.ctypes.data + (at << SHIFT))
    iocb[4] = np.uint64((span[1] - span[0] + 1) << SHIFT)
    iocb[5] = np.uint64(span[0] << SHIFT)


@njit_cached()
def _check_completion(requests: AioRequests, event: Array, span: Array, at: int, size: int) -> int:
    """Check that a read returned its whole span; zeros fill the rest beyond the end of the file."""
    start, length, result = span[0] << SHIFT, (span[1] - span[0] + 1) << SHIFT, event[2]
    if result == length:
        return OK
    if result != size - start:
        return UNSUPPORTED if result in (INVALID, NOT_SUPPORTED) else FAILED
    for place in range(result, length):
        requests.buffer[(at << SHIFT) + place] = 0
    return OK


@njit_cached()
def read_direct(requests: AioRequests, file: int, size: int, spans: Array, data: BlockData) -> int:
    """Read spans of blocks contiguously into memory and verify them while other reads are in flight.

    Returns OK; SYNCHRONOUS: OK, but the system waited for each read; FAILED: a read failed or a block is damaged;
    UNSUPPORTED: the file system refuses O_DIRECT; STUCK: completions do not arrive, the memory may still be written to.
    """
    count, offsets, events = len(spans), np.zeros(len(spans), dtype=np.int64), requests.events
    for number in range(1, count):
        offsets[number] = offsets[number - 1] + spans[number - 1, 1] - spans[number - 1, 0] + 1
    submitted, completed, arrived, empty_polls, state = 0, 0, 0, 0, OK
    while completed < count or arrived:
        batch = min(count - submitted, QUEUE_DEPTH - (submitted - completed))
        for number in range(batch):
            _fill_iocb(
                requests, number, file, spans[submitted + number], offsets[submitted + number], submitted + number
            )
        accepted = _syscall(IO_SUBMIT, requests.context, batch, requests.pointers.ctypes.data, 0, 0, 0) if batch else 0
        first, submitted = submitted == 0, submitted + max(accepted, 0)
        for event in range(arrived):
            number = events[event, 0]
            outcome = _check_completion(requests, events[event], spans[number], offsets[number], size)
            if outcome == OK and verify_blocks(data, spans[number, 0], spans[number, 1], offsets[number]) >= 0:
                outcome = FAILED
            state = max(state, outcome)
        arrived = 0
        if submitted == completed:
            return state if completed == count else FAILED
        min_events = 0 if first else min(MIN_COMPLETIONS, submitted - completed)
        arrived = max(_syscall(IO_GETEVENTS, requests.context, min_events, QUEUE_DEPTH, events.ctypes.data, 0, 0), 0)
        completed += arrived
        if first and arrived == accepted and accepted >= RESIDENCY_SAMPLES:
            state = SYNCHRONOUS
        empty_polls = 0 if arrived else empty_polls + 1
        if empty_polls > MAX_EMPTY_POLLS:
            return STUCK
    return state
