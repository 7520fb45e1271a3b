"""From disk into the page cache, compiled: which blocks are new, many reads of them in flight, their checksums.

A block is 4,096 bytes of the file, the unit of the page cache: checking it needs no byte that reading its rows did not
bring. A bit for each says that it was read and found whole; rows of such blocks cost no system call.
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
    """An io_uring as arrays over the memory it shares with the kernel. `places`: indices of heads, tails and masks."""

    handle: int
    depth: int
    shared: Array  # uint32: heads, tails
    asked: Array  # uint64 (entries, 8): what is to be read
    answered: Array  # int64 (entries, 2): what was
    places: Array  # submission head, tail, mask; completion head, tail, mask
    waste: Array  # where the bytes go: only the page cache is wanted


class BlockData(NamedTuple):
    """Blocks in memory, and what they must be; `seen` has a bit for each of the file that was found so."""

    words: Array  # uint64
    tail: Array  # uint8: bytes behind the last whole word
    keys: Array
    expected: Array  # uint32; empty: nothing to compare with
    seen: Array


@njit_cached()
def is_verified(rows: Array, count: int, start: int, row_bytes: int, seen: Array) -> bool:
    """Whether all rows exist and all their blocks were read: the common case, told without making an array."""
    for row in rows:
        if row < 0 or row >= count:
            return False
        first = np.uint64(start + row * row_bytes)
        last = first + np.uint64(row_bytes - 1)
        for block in range(first >> np.uint64(SHIFT), (last >> np.uint64(SHIFT)) + np.uint64(1)):
            if not (seen[block >> np.uint64(3)] >> (block & np.uint64(7))) & np.uint64(1):
                return False
    return True


@njit_cached()
def find_unverified_blocks(rows: Array, count: int, start: int, row_bytes: int, seen: Array, everything: bool) -> Any:
    """Blocks of rows that were never read (or all their blocks), unsorted; and the first row that does not exist."""
    most = (row_bytes >> SHIFT) + 2
    blocks, found = np.empty(len(rows) * most, dtype=np.int64), 0
    for number in range(len(rows)):
        row = rows[number]
        if row < -1 or row >= count:
            return blocks[:0], number
        if row < 0:
            continue
        first = start + row * row_bytes
        for block in range(first >> SHIFT, ((first + row_bytes - 1) >> SHIFT) + 1):
            if everything or not (seen[block >> 3] >> (block & 7)) & 1:
                blocks[found] = block
                found += 1
    return blocks[:found], -1


@njit_cached()
def coalesce_blocks(blocks: Array) -> Any:
    """(first, last) of what lies together in sorted blocks."""
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
    """32 bits of a block, filled up with zeros where the file ends in it. `tail`: bytes behind the last whole word.

    A sum of products of keyed halves of words (the NH of UMAC): another block has the same once in about 2^32 cases,
    and it is as fast as memory.
    """
    start, total = block * WORDS_PER_BLOCK, np.uint64(0)
    whole = min(WORDS_PER_BLOCK, len(words) - start)
    for place in range(whole):
        total += _multiply_halves(words[start + place], keys[place])
    if whole < WORDS_PER_BLOCK:
        last = np.uint64(0)
        for place in range(len(tail)):
            last |= np.uint64(tail[place]) << np.uint64(8 * place)
        total += _multiply_halves(last, keys[whole])
        for place in range(whole + 1, WORDS_PER_BLOCK):
            total += _multiply_halves(np.uint64(0), keys[place])
    return np.uint32((total * MIX) >> HALF)


@njit_cached()
def compute_checksums(words: Array, tail: Array, keys: Array) -> Array:
    """Of all blocks."""
    found = np.empty((8 * len(words) + len(tail) + BLOCK - 1) >> SHIFT, dtype=np.uint32)
    for block in range(len(found)):
        found[block] = compute_checksum(words, tail, block, keys)
    return found


@njit_cached()
def verify_blocks(content: BlockData, first: int, last: int, at: int) -> Any:
    """Mark blocks as read, each only if it is whole; the first that is not, or -1. Without checksums all are.

    at: which block of the content the first is.
    """
    for block in range(first, last + 1):
        if len(content.expected):
            found = compute_checksum(content.words, content.tail, at + block - first, content.keys)
            if found != content.expected[block]:
                return block
        content.seen[block >> 3] |= np.uint8(1 << (block & 7))
    return -1


@njit_cached()
def _queue_read(queue: UringQueue, tail: Any, file: int, spans: Array, number: int) -> None:
    """From the last byte of the first block to the first byte of the last: all pages come, hardly a byte is copied."""
    first, last = spans[number, 0], spans[number, 1]
    start = (first << SHIFT) + (0 if first == last else BLOCK - 1)
    length = 1 if first == last else ((last - first - 1) << SHIFT) + 2
    entry = queue.asked[tail & queue.shared[queue.places[2]]]
    entry[0] = np.uint64(OP_READ) | (np.uint64(file) << np.uint64(32))
    entry[1] = np.uint64(start)
    entry[2] = np.uint64(queue.waste.ctypes.data)
    entry[3] = np.uint64(length)
    entry[4] = np.uint64(number)
    entry[5] = entry[6] = entry[7] = np.uint64(0)


@njit_cached()
def read_with_io_uring(queue: UringQueue, file: int, spans: Array, content: BlockData) -> Any:
    """Bring spans into the page cache with up to `depth` reads in flight, and check them while others are.

    Returns (span, error, block): (-1, 0, -1) if all is well; otherwise a span that failed and its negative error (0:
    the file ends before it), or the first damaged block; BROKEN as span where the ring itself has stopped working.
    """
    shared, places, count = queue.shared, queue.places, len(spans)
    come, asked, pending, fruitless = np.empty(len(queue.answered), dtype=np.int64), 0, 0, 0
    done, bad, error, damaged = np.int64(0), np.int64(-1), np.int64(0), np.int64(-1)
    while done < count or pending:
        tail = np.int64(shared[places[1]])
        while asked < count and asked - done < queue.depth:
            _queue_read(queue, tail, file, spans, asked)
            tail, asked = tail + 1, asked + 1
        shared[places[1]] = np.uint32(tail)
        waiting = np.int64(np.uint32(tail - np.int64(shared[places[0]])))
        wanted = 0 if pending else min(MIN_COMPLETIONS, asked - done)
        _syscall(IO_URING_ENTER, queue.handle, waiting, wanted, GETEVENTS, 0, 0)
        for place in range(pending):
            first, last = spans[come[place], 0], spans[come[place], 1]
            wrong = verify_blocks(content, first, last, first)
            damaged = wrong if damaged < 0 else damaged
        pending = 0
        head, end = np.int64(shared[places[3]]), np.int64(shared[places[4]])
        fresh = np.int64(np.uint32(end - head))
        for place in range(head, head + fresh):
            answer = place & shared[places[5]]
            number, result = queue.answered[answer, 0], np.int64(np.int32(queue.answered[answer, 1] & 0xFFFFFFFF))
            if result > 0 or result in RETRY_ERRORS:
                come[pending] = number
                pending += 1
            else:
                bad, error = number, result
        shared[places[3]] = np.uint32(head + fresh)
        done += fresh
        fruitless = fruitless + 1 if wanted and not fresh else 0
        if fruitless > MAX_EMPTY_POLLS:
            return np.int64(BROKEN), error, damaged
    return bad, error, damaged


@njit_cached()
def read_with_madvise(base: int, file: int, spans: Array, page: int, content: BlockData) -> Any:
    """The same without io_uring: advice for every span, which starts the reads, then a byte of each block, which waits.

    The byte is read, not touched in the mapping: a failing disk is then an error, not a signal.
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
        wrong = verify_blocks(content, spans[number, 0], spans[number, 1], spans[number, 0])
        damaged = wrong if damaged < 0 else damaged
    return np.int64(-1), np.int64(0), damaged
