"""From disk into the page cache, compiled: which blocks are new, many reads of them in flight, their checksums.

A block is 4,096 bytes of the file, the unit of the page cache: checking it needs no byte that reading its rows did not
bring. A bit for each says that it was read and found whole; rows of such blocks cost no system call.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import types

from bidr.compiled import compiled

Array = npt.NDArray[Any]

SHIFT = 12
BLOCK = 1 << SHIFT
WORDS = BLOCK // 8
LONGEST = 32  # blocks in one read
MADV_WILLNEED = 3
IO_URING_ENTER, GETEVENTS, READ = 426, 1, 22
WAIT_FOR = 32
FRUITLESS = 1_000
BROKEN = -2
INPUT_OUTPUT = -5
AGAIN = (-4, -11)  # EINTR, EAGAIN
LOW, HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
MIX = np.uint64(0x9E3779B97F4A7C15)

_long = types.int64
_madvise = types.ExternalFunction("madvise", types.int32(types.intp, types.uintp, types.int32))
_pread = types.ExternalFunction("pread", _long(types.int32, types.intp, types.uintp, _long))
_syscall = types.ExternalFunction("syscall", _long(_long, _long, _long, _long, _long, _long, _long))


class Queue(NamedTuple):
    """An io_uring as arrays over the memory it shares with the kernel. `places`: indices of heads, tails and masks."""

    handle: int
    depth: int
    shared: Array  # uint32: heads, tails
    asked: Array  # uint64 (entries, 8): what is to be read
    answered: Array  # int64 (entries, 2): what was
    places: Array  # submission head, tail, mask; completion head, tail, mask
    waste: Array  # where the bytes go: only the page cache is wanted


@compiled()
def unseen(rows: Array, count: int, start: int, row_bytes: int, seen: Array, everything: bool) -> Any:
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


@compiled()
def ranges(blocks: Array) -> Any:
    """Of sorted blocks each once, and (first, last) of what lies together."""
    spans, last, kept = np.empty((len(blocks), 2), dtype=np.int64), -1, 0
    for place in range(len(blocks)):
        block = blocks[place]
        if place > 0 and block == blocks[kept - 1]:
            continue
        blocks[kept] = block
        kept += 1
        if last >= 0 and block == spans[last, 1] + 1 and block - spans[last, 0] < LONGEST:
            spans[last, 1] = block
        else:
            last += 1
            spans[last, 0] = spans[last, 1] = block
    return blocks[:kept], spans[: last + 1]


@compiled()
def _ask(queue: Queue, tail: Any, file: int, spans: Array, number: int) -> None:
    """From the last byte of the first block to the first byte of the last: all pages come, hardly a byte is copied."""
    first, last = spans[number, 0], spans[number, 1]
    start = (first << SHIFT) + (0 if first == last else BLOCK - 1)
    length = 1 if first == last else ((last - first - 1) << SHIFT) + 2
    entry = queue.asked[tail & queue.shared[queue.places[2]]]
    entry[0] = np.uint64(READ) | (np.uint64(file) << np.uint64(32))
    entry[1] = np.uint64(start)
    entry[2] = np.uint64(queue.waste.ctypes.data)
    entry[3] = np.uint64(length)
    entry[4] = np.uint64(number)
    entry[5] = entry[6] = entry[7] = np.uint64(0)


@compiled()
def read_by_ring(queue: Queue, file: int, spans: Array) -> Any:
    """Bring spans into the page cache with up to `depth` reads in flight.

    Returns (-1, 0), or the number of a span that failed and its negative error (0: the file ends before it), or
    (BROKEN, reads still in flight) where the ring itself does not work any more.
    """
    shared, head_at, tail_at = queue.shared, queue.places[0], queue.places[1]
    count, asked, fruitless = len(spans), 0, 0
    done = np.int64(0)
    bad, error = np.int64(-1), np.int64(0)
    while done < count:
        tail = np.int64(shared[tail_at])
        while asked < count and asked - done < queue.depth:
            _ask(queue, tail, file, spans, asked)
            tail, asked = tail + 1, asked + 1
        shared[tail_at] = np.uint32(tail)
        waiting = np.int64(np.uint32(tail - np.int64(shared[head_at])))
        _syscall(IO_URING_ENTER, queue.handle, waiting, min(WAIT_FOR, asked - done), GETEVENTS, 0, 0)
        head, end = np.int64(shared[queue.places[3]]), np.int64(shared[queue.places[4]])
        come = np.int64(np.uint32(end - head))
        for place in range(head, head + come):
            answer = queue.answered[place & shared[queue.places[5]]]
            result = np.int64(np.int32(answer[1] & 0xFFFFFFFF))
            if result <= 0 and result not in AGAIN:
                bad, error = answer[0], result
        shared[queue.places[3]] = np.uint32(head + come)
        done += come
        fruitless = 0 if come else fruitless + 1
        if fruitless > FRUITLESS:
            return BROKEN, asked - done
    return bad, error


@compiled()
def read_by_advice(base: int, file: int, spans: Array, page: int) -> Any:
    """The same without io_uring: advice for every span, which starts the reads, then a byte of each block, which waits.

    The byte is read, not touched in the mapping: a failing disk is then an error, not a signal.
    """
    byte = np.empty(1, dtype=np.uint8)
    for number in range(len(spans)):
        start = (spans[number, 0] << SHIFT) // page * page
        end = (spans[number, 1] + 1) << SHIFT
        _madvise(base + start, np.uint64(end - start), MADV_WILLNEED)
    for number in range(len(spans)):
        for block in range(spans[number, 0], spans[number, 1] + 1):
            result = _pread(file, byte.ctypes.data, np.uint64(1), block << SHIFT)
            if result <= 0:
                return number, 0 if result == 0 else INPUT_OUTPUT
    return -1, 0


@compiled()
def _product(word: Any, key: Any) -> Any:
    return ((word + key) & LOW) * (((word >> HALF) + (key >> HALF)) & LOW)


@compiled()
def checksum(words: Array, tail: Array, block: int, keys: Array) -> Any:
    """32 bits of a block, filled up with zeros where the file ends in it. `tail`: bytes behind the last whole word.

    A sum of products of keyed halves of words (the NH of UMAC): another block has the same once in about 2^32 cases,
    and it is as fast as memory.
    """
    start, total = block * WORDS, np.uint64(0)
    whole = min(WORDS, len(words) - start)
    for place in range(whole):
        total += _product(words[start + place], keys[place])
    if whole < WORDS:
        last = np.uint64(0)
        for place in range(len(tail)):
            last |= np.uint64(tail[place]) << np.uint64(8 * place)
        total += _product(last, keys[whole])
        for place in range(whole + 1, WORDS):
            total += _product(np.uint64(0), keys[place])
    return np.uint32((total * MIX) >> HALF)


@compiled()
def checksums(words: Array, tail: Array, keys: Array) -> Array:
    """Of all blocks."""
    found = np.empty((8 * len(words) + len(tail) + BLOCK - 1) >> SHIFT, dtype=np.uint32)
    for block in range(len(found)):
        found[block] = checksum(words, tail, block, keys)
    return found


@compiled()
def check(words: Array, tail: Array, blocks: Array, keys: Array, expected: Array, seen: Array) -> Any:
    """Mark blocks as read, each only if it is whole; the first that is not, or -1. Without checksums all are."""
    for block in blocks:
        if len(expected) and checksum(words, tail, block, keys) != expected[block]:
            return block
        seen[block >> 3] |= np.uint8(1 << (block & 7))
    return -1
