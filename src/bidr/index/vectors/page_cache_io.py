"""Read blocks into the page cache with many reads in flight, and verify their checksums.

A block is 4,096 bytes of the file, the unit of the page cache: verifying it needs no byte that reading its rows did not
bring. A bitmap marks verified blocks; rows in such blocks cost no system call.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import types

from bidr.utils.jit import njit_cached

Array = npt.NDArray[Any]

SHIFT = 12
BLOCK = 1 << SHIFT
WORDS_PER_BLOCK = BLOCK // 8
MAX_READ_BLOCKS = 32  # blocks in one read
MADV_WILLNEED = 3
IO_URING_ENTER, GETEVENTS, OP_READ = 426, 1, 22
MIN_COMPLETIONS = 32
MAX_EMPTY_POLLS = 1_000
BROKEN = -2
EIO = -5
RETRY_ERRORS = (-4, -11)  # EINTR, EAGAIN
LOW, HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
MIX = np.uint64(0x9E3779B97F4A7C15)

_long = types.int64
_madvise = types.ExternalFunction("madvise", types.int32(types.intp, types.uintp, types.int32))
_pread = types.ExternalFunction("pread", _long(types.int32, types.intp, types.uintp, _long))
_syscall = types.ExternalFunction("syscall", _long(_long, _long, _long, _long, _long, _long, _long))


class UringQueue(NamedTuple):
    """An io_uring as arrays over the memory that it shares with the kernel."""

    handle: int
    depth: int
    shared: Array  # uint32: heads, tails
    entries: Array  # uint64 (entries, 8): submission queue entries
    completions: Array  # int64 (entries, 2)
    ring_offsets: Array  # indices into `shared`: submission head, tail, mask; completion head, tail, mask
    sink: Array  # receives the bytes, which only have to enter the page cache


class BlockData(NamedTuple):
    """Blocks in memory with their expected checksums; verified ones are set in `verified`, a bitmap over the file."""

    words: Array  # uint64
    tail: Array  # uint8: bytes after the last complete word
    keys: Array
    expected: Array  # uint32 checksums; empty: no verification
    verified: Array


@njit_cached()
def is_verified(rows: Array, count: int, start: int, row_bytes: int, verified: Array) -> bool:
    """Tell whether all rows exist and lie in verified blocks: the common case, answered without an array."""
    for row in rows:
        if row < 0 or row >= count:
            return False
        first = np.uint64(start + row * row_bytes)
        last = first + np.uint64(row_bytes - 1)
        for block in range(first >> np.uint64(SHIFT), (last >> np.uint64(SHIFT)) + np.uint64(1)):
            if not (verified[block >> np.uint64(3)] >> (block & np.uint64(7))) & np.uint64(1):
                return False
    return True


@njit_cached()
def find_unverified_blocks(rows: Array, count: int, start: int, row_bytes: int, verified: Array, reread: bool) -> Any:
    """Collect the unverified blocks of rows, unsorted (all their blocks with `reread`).

    A row of -1 is skipped. Also returns the place of the first row that does not exist, or -1.
    """
    max_blocks = (row_bytes >> SHIFT) + 2
    blocks, size = np.empty(len(rows) * max_blocks, dtype=np.int64), 0
    for place in range(len(rows)):
        row = rows[place]
        if row < -1 or row >= count:
            return blocks[:0], place
        if row < 0:
            continue
        first = start + row * row_bytes
        for block in range(first >> SHIFT, ((first + row_bytes - 1) >> SHIFT) + 1):
            if reread or not (verified[block >> 3] >> (block & 7)) & 1:
                blocks[size] = block
                size += 1
    return blocks[:size], -1


@njit_cached()
def coalesce_blocks(blocks: Array) -> Any:
    """Merge sorted blocks into spans (first, last) of at most MAX_READ_BLOCKS."""
    spans, last = np.empty((len(blocks), 2), dtype=np.int64), -1
    for block in blocks:
        if last >= 0 and block <= spans[last, 1] + 1 and block - spans[last, 0] < MAX_READ_BLOCKS:
            spans[last, 1] = block
        elif last < 0 or block > spans[last, 1]:
            last += 1
            spans[last, 0] = spans[last, 1] = block
    return spans[: last + 1]


@njit_cached()
def _multiply_halves(word: Any, key: Any) -> Any:
    return ((word + key) & LOW) * (((word >> HALF) + (key >> HALF)) & LOW)


@njit_cached()
def compute_checksum(words: Array, tail: Array, block: int, keys: Array) -> Any:
    """Compute the 32-bit checksum of a block, padded with zeros at the end of the file.

    A sum of products of keyed halves of words (the NH of UMAC): a different block collides once in about 2^32 cases,
    and it runs at the speed of memory. `tail`: bytes after the last complete word.
    """
    start, total = block * WORDS_PER_BLOCK, np.uint64(0)
    word_count = min(WORDS_PER_BLOCK, len(words) - start)
    for place in range(word_count):
        total += _multiply_halves(words[start + place], keys[place])
    if word_count < WORDS_PER_BLOCK:
        last = np.uint64(0)
        for place in range(len(tail)):
            last |= np.uint64(tail[place]) << np.uint64(8 * place)
        total += _multiply_halves(last, keys[word_count])
        for place in range(word_count + 1, WORDS_PER_BLOCK):
            total += _multiply_halves(np.uint64(0), keys[place])
    return np.uint32((total * MIX) >> HALF)


@njit_cached()
def compute_checksums(words: Array, tail: Array, keys: Array) -> Array:
    """Compute the checksums of all blocks."""
    sums = np.empty((8 * len(words) + len(tail) + BLOCK - 1) >> SHIFT, dtype=np.uint32)
    for block in range(len(sums)):
        sums[block] = compute_checksum(words, tail, block, keys)
    return sums


@njit_cached()
def verify_blocks(data: BlockData, first: int, last: int, at: int) -> Any:
    """Verify blocks and mark them; returns the first damaged one, or -1. Without checksums all are valid.

    at: place of the first block within `data`.
    """
    for block in range(first, last + 1):
        if len(data.expected):
            checksum = compute_checksum(data.words, data.tail, at + block - first, data.keys)
            if checksum != data.expected[block]:
                return block
        data.verified[block >> 3] |= np.uint8(1 << (block & 7))
    return -1


@njit_cached()
def _queue_read(queue: UringQueue, tail: Any, file: int, spans: Array, number: int) -> None:
    """Request the last byte of the first block to the first byte of the last: all pages load, few bytes are copied."""
    first, last = spans[number, 0], spans[number, 1]
    start = (first << SHIFT) + (0 if first == last else BLOCK - 1)
    length = 1 if first == last else ((last - first - 1) << SHIFT) + 2
    entry = queue.entries[tail & queue.shared[queue.ring_offsets[2]]]
    entry[0] = np.uint64(OP_READ) | (np.uint64(file) << np.uint64(32))
    entry[1] = np.uint64(start)
    entry[2] = np.uint64(queue.sink.ctypes.data)
    entry[3] = np.uint64(length)
    entry[4] = np.uint64(number)
    entry[5] = entry[6] = entry[7] = np.uint64(0)


@njit_cached()
def read_with_io_uring(queue: UringQueue, file: int, spans: Array, data: BlockData) -> Any:
    """Bring spans into the page cache with up to `depth` reads in flight; verify blocks meanwhile.

    Returns (span, error, block): (-1, 0, -1) on success; otherwise a failed span with its negative errno (0: the file
    ends before it), or the first damaged block; BROKEN as span where the ring stopped working.
    """
    shared, offsets, count = queue.shared, queue.ring_offsets, len(spans)
    arrived, submitted, pending, empty_polls = np.empty(len(queue.completions), dtype=np.int64), 0, 0, 0
    completed, bad, error, damaged = np.int64(0), np.int64(-1), np.int64(0), np.int64(-1)
    while completed < count or pending:
        tail = np.int64(shared[offsets[1]])
        while submitted < count and submitted - completed < queue.depth:
            _queue_read(queue, tail, file, spans, submitted)
            tail, submitted = tail + 1, submitted + 1
        shared[offsets[1]] = np.uint32(tail)
        unsubmitted = np.int64(np.uint32(tail - np.int64(shared[offsets[0]])))
        min_completions = 0 if pending else min(MIN_COMPLETIONS, submitted - completed)
        _syscall(IO_URING_ENTER, queue.handle, unsubmitted, min_completions, GETEVENTS, 0, 0)
        for place in range(pending):
            first, last = spans[arrived[place], 0], spans[arrived[place], 1]
            bad_block = verify_blocks(data, first, last, first)
            damaged = bad_block if damaged < 0 else damaged
        pending = 0
        head, end = np.int64(shared[offsets[3]]), np.int64(shared[offsets[4]])
        new = np.int64(np.uint32(end - head))
        for place in range(head, head + new):
            slot = place & shared[offsets[5]]
            number, result = queue.completions[slot, 0], np.int64(np.int32(queue.completions[slot, 1] & 0xFFFFFFFF))
            if result > 0 or result in RETRY_ERRORS:
                arrived[pending] = number
                pending += 1
            else:
                bad, error = number, result
        shared[offsets[3]] = np.uint32(head + new)
        completed += new
        empty_polls = empty_polls + 1 if min_completions and not new else 0
        if empty_polls > MAX_EMPTY_POLLS:
            return np.int64(BROKEN), error, damaged
    return bad, error, damaged


@njit_cached()
def read_with_madvise(base: int, file: int, spans: Array, page: int, data: BlockData) -> Any:
    """Do the same without io_uring: madvise starts all reads, then a pread of a byte per block waits.

    pread instead of touching the mapping: a failing disk is then an error, not SIGBUS.
    """
    byte, damaged = np.empty(1, dtype=np.uint8), np.int64(-1)
    for number in range(len(spans)):
        start = (spans[number, 0] << SHIFT) // page * page
        end = (spans[number, 1] + 1) << SHIFT
        _madvise(base + start, np.uint64(end - start), MADV_WILLNEED)
    for number in range(len(spans)):
        for block in range(spans[number, 0], spans[number, 1] + 1):
            result = _pread(file, byte.ctypes.data, np.uint64(1), block << SHIFT)
            if result <= 0:
                return np.int64(number), np.int64(0 if result == 0 else EIO), damaged
        bad_block = verify_blocks(data, spans[number, 0], spans[number, 1], spans[number, 0])
        damaged = bad_block if damaged < 0 else damaged
    return np.int64(-1), np.int64(0), damaged
