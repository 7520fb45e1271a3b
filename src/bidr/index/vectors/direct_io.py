"""From disk past the page cache, compiled: which blocks, many reads of them in flight, where their rows are then.

By the system's older queue (io_submit): for reads past the cache it is as fast as io_uring, and containers allow it.
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
RESIDENCY_SAMPLES = 16  # blocks that speak for all
REREAD_SHARE = 0.1  # of bench/disk_warming.py's ways to choose it (0.25, never) the one that costs small files least

_long = types.int64
_mincore = types.ExternalFunction("mincore", types.int32(types.intp, types.uintp, types.intp))
_syscall = types.ExternalFunction("syscall", _long(_long, _long, _long, _long, _long, _long, _long))


class AioRequests(NamedTuple):
    """What the kernel is asked and answers, and the memory that blocks are read into."""

    context: int
    asked: Array  # uint64 (DEPTH, 8): struct iocb
    pointers: Array  # int64: where each of them is
    answered: Array  # int64 (DEPTH, 4): struct io_event
    content: Array  # uint8


@njit_cached()
def _is_resident(base: int, block: int, page: int, told: Array) -> bool:
    _mincore(base + (block << SHIFT) // page * page, np.uint64(1), told.ctypes.data)
    return bool(told[0] & 1)


@njit_cached()
def select_direct_blocks(blocks: Array, seen: Array, again: bool, most: int, base: int, page: int) -> Array:
    """Of sorted blocks, each once, up to `most` to be read past the page cache: not in it, never read (or `again`).

    None where a share of OFTEN was read before: what lies near what is asked for often is worth keeping too. Asking the
    system for a block takes a quarter of the time of reading it: a few are asked for, and all only where one of these
    is in memory.
    """
    found, count, different = np.empty(len(blocks), dtype=np.int64), 0, 0
    for place in range(len(blocks)):
        block = blocks[place]
        if place == 0 or block != blocks[place - 1]:
            different += 1
            if again or not seen[1, block >> 3] & np.uint8(1 << (block & 7)):
                found[count] = block
                count += 1
    if count <= (1 - REREAD_SHARE) * different:
        return found[:0]
    told, some, left = np.zeros(1, dtype=np.uint8), False, 0
    for place in range(0, count, count // RESIDENCY_SAMPLES + 1):
        some = some or _is_resident(base, found[place], page, told)
    for block in found[:count]:
        if left < most and not (some and _is_resident(base, block, page, told)):
            seen[0, block >> 3] &= ~np.uint8(1 << (block & 7))
            found[left] = block
            left += 1
    return found[:left]


@njit_cached()
def locate_rows(rows: Array, blocks: Array, start: int, row_bytes: int, itemsize: int) -> Array:
    """Where rows begin in memory that holds sorted blocks one behind the other; -1: not all of the row is there."""
    places = np.empty(len(rows), dtype=np.int64)
    for number in range(len(rows)):
        first = start + rows[number] * row_bytes
        block, more = first >> SHIFT, ((first + row_bytes - 1) >> SHIFT) - (first >> SHIFT)
        at, end = 0, len(blocks)
        while at < end:  # no searchsorted: it takes seconds to compile
            middle = (at + end) >> 1
            at, end = (middle + 1, end) if blocks[middle] < block else (at, middle)
        places[number] = -1
        if rows[number] >= 0 and at + more < len(blocks) and blocks[at] == block and blocks[at + more] == block + more:
            places[number] = ((at << SHIFT) + (first & (BLOCK - 1))) // itemsize
    return places


@njit_cached()
def _fill_iocb(requests: AioRequests, entry: int, file: int, span: Array, at: int, number: int) -> None:
    asked = requests.asked[entry]
    asked[0] = np.uint64(number)
    asked[2] = np.uint64(file) << np.uint64(32)
    asked[3] = np.uint64(requests.content.ctypes.data + (at << SHIFT))
    asked[4] = np.uint64((span[1] - span[0] + 1) << SHIFT)
    asked[5] = np.uint64(span[0] << SHIFT)


@njit_cached()
def _check_completion(requests: AioRequests, event: Array, span: Array, at: int, size: int) -> int:
    """Whether a read brought all there is of a span; behind the file's end come zeros."""
    start, length, come = span[0] << SHIFT, (span[1] - span[0] + 1) << SHIFT, event[2]
    if come == length:
        return OK
    if come != size - start:
        return UNSUPPORTED if come in (INVALID, NOT_SUPPORTED) else FAILED
    for place in range(come, length):
        requests.content[(at << SHIFT) + place] = 0
    return OK


@njit_cached()
def read_direct(requests: AioRequests, file: int, size: int, spans: Array, content: BlockData) -> int:
    """Read spans of blocks one behind the other into memory, and check them while others are on their way.

    Returns WELL; AT_ONCE: well, but each read was waited for; FAILED: something could not be read or is damaged;
    REFUSED: this file cannot be read so; STUCK: answers do not come, the memory may still be written to.
    """
    count, at, answered = len(spans), np.zeros(len(spans), dtype=np.int64), requests.answered
    for number in range(1, count):
        at[number] = at[number - 1] + spans[number - 1, 1] - spans[number - 1, 0] + 1
    asked, done, come, fruitless, state = 0, 0, 0, 0, OK
    while done < count or come:
        more = min(count - asked, QUEUE_DEPTH - (asked - done))
        for number in range(more):
            _fill_iocb(requests, number, file, spans[asked + number], at[asked + number], asked + number)
        taken = _syscall(IO_SUBMIT, requests.context, more, requests.pointers.ctypes.data, 0, 0, 0) if more else 0
        first, asked = asked == 0, asked + max(taken, 0)
        for event in range(come):
            number = answered[event, 0]
            arrived = _check_completion(requests, answered[event], spans[number], at[number], size)
            if arrived == OK and verify_blocks(content, spans[number, 0], spans[number, 1], at[number]) >= 0:
                arrived = FAILED
            state = max(state, arrived)
        come = 0
        if asked == done:
            return state if done == count else FAILED
        wanted = 0 if first else min(MIN_COMPLETIONS, asked - done)
        come = max(_syscall(IO_GETEVENTS, requests.context, wanted, QUEUE_DEPTH, answered.ctypes.data, 0, 0), 0)
        done += come
        if first and come == taken and taken >= RESIDENCY_SAMPLES:
            state = SYNCHRONOUS
        fruitless = 0 if come else fruitless + 1
        if fruitless > MAX_EMPTY_POLLS:
            return STUCK
    return state
