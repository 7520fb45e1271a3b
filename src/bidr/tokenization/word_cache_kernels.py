"""Compiled: words of texts looked up among those known, added to them, and their tokens put together."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidr.utils.jit import njit_cached

LETTER, SPACE, SIGN, ODD = range(4)
EMPTY = -1
_SEED, _FACTOR = np.uint64(14695981039346656037), np.uint64(1099511628211)  # FNV-1a
Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int32]
Counts = NDArray[np.int64]
Hashes = NDArray[np.uint64]
Flags = NDArray[np.bool_]


class Strings(NamedTuple):
    """Strings to look for: end to end, string i from starts[i] on, and the bytes they begin with."""

    letters: Bytes
    starts: Counts
    begins: Bytes


class Known(NamedTuple):
    """The first `size` words of a table: hashes, letters (word i from starts[i] on), tokens (from firsts[i] on).

    What stands there stays as it is, whatever is added behind. Slots, found by the hash, may name later words too.
    """

    size: int
    slots: Numbers
    hashes: Hashes
    letters: Bytes
    starts: Counts
    ids: Numbers
    firsts: Counts


class Numbered(NamedTuple):
    """Words of several texts end to end as numbers, how many each text has, whether it has more than were asked for,
    and whether something in it kept it from being read to its end."""

    words: Numbers
    counts: Counts
    more: Flags
    odd: Flags


@njit_cached()
def _first_slot(value: np.uint64, mask: np.uint64) -> np.uint64:
    return (value ^ (value >> np.uint64(29))) & mask


@njit_cached()
def settle(slots: Numbers, hashes: Hashes, count: int) -> None:
    mask = np.uint64(len(slots) - 1)
    for number in range(count):
        place = _first_slot(hashes[number], mask)
        while slots[place] != EMPTY:
            place = (place + np.uint64(1)) & mask
        slots[place] = number


@njit_cached()
def _is(number: int, text: Bytes, start: int, end: int, letters: Bytes, starts: Counts) -> bool:
    size = end - start
    same = bool(starts[number + 1] - starts[number] == size)
    place = 0
    while same and place < size:
        same = bool(text[start + place] == letters[starts[number] + place])
        place += 1
    return same


@njit_cached()
def _hashed(value: np.uint64, byte: int) -> np.uint64:
    """The hash of a word with one more byte."""
    return (value ^ np.uint64(byte)) * _FACTOR


@njit_cached()
def _find(
    text: Bytes,
    start: int,
    end: int,
    value: np.uint64,
    slots: Numbers,
    hashes: Hashes,
    letters: Bytes,
    starts: Counts,
    count: int,
) -> tuple[int, np.uint64]:
    """The word's number, and its slot; no number, and the slot where the search ended, where it is not among the first
    `count`: words stand in slots in the order they came up, so behind a later one there is no earlier one.

    Arrays one by one: taken out of a tuple for every word, each would be counted as held and let go again.
    """
    mask = np.uint64(len(slots) - 1)
    slot = _first_slot(value, mask)
    number = int(slots[slot])
    while number != EMPTY and number < count:
        if hashes[number] == value and _is(number, text, start, end, letters, starts):
            return number, slot
        slot = (slot + np.uint64(1)) & mask
        number = int(slots[slot])
    return EMPTY, slot


@njit_cached()
def add(text: Bytes, new: Counts, words: Numbers, known: Known) -> int:
    """Number words by their place among all, start and end; returns how many are known then."""
    count, slots, hashes, letters, starts, _, _ = known
    for at in range(len(new)):
        place, start, end = new[at, 0], new[at, 1], new[at, 2]
        value = _SEED
        for letter in range(start, end):
            value = _hashed(value, text[letter])
        number, slot = _find(text, start, end, value, slots, hashes, letters, starts, count)
        if number == EMPTY:
            number = count
            hashes[count], slots[slot] = value, count
            starts[count + 1] = starts[count] + end - start
            for letter in range(start, end):
                letters[starts[count] + letter - start] = text[letter]
            count += 1
        words[place] = number
    return count


@njit_cached()
def _holds(text: Bytes, start: int, end: int, apart: Strings) -> bool:
    """Whether one of the strings is there. Bytes that none begins with are passed many at a time."""
    for byte in apart.begins:
        met = False
        for one in text[start:end]:
            met |= one == byte
        if met and _begins(text, start, end, byte, apart):
            return True
    return False


@njit_cached()
def _begins(text: Bytes, start: int, end: int, byte: int, apart: Strings) -> bool:
    for place in range(start, end):
        if text[place] == byte:
            for number in range(len(apart.starts) - 1):
                size = apart.starts[number + 1] - apart.starts[number]
                if place + size <= end and _is(number, text, place, place + size, apart.letters, apart.starts):
                    return True
    return False


@njit_cached()
def look_up(
    text: Bytes, ends: Counts, most: int, kinds: Bytes, apart: Strings, known: Known, out: Numbered, new: Counts
) -> int:
    """Number the known words of all texts; of the others the place among all, start and end. Returns how many."""
    words, counts, more, odd = out
    count, slots, hashes, letters, starts, _, _ = known
    written, place, missing = 0, 0, 0
    for at in range(len(ends)):
        first, end = written, ends[at]
        if _holds(text, place, end, apart):
            odd[at], place = True, end
        while place < end:
            kind = kinds[text[place]]
            if kind == SPACE:
                place += 1
                continue
            if kind == ODD:
                odd[at] = True
                break
            if written - first == most:
                more[at] = True
                break
            start = place
            value = _hashed(_SEED, text[place])
            place += 1
            while kind == LETTER and place < end and kinds[text[place]] == LETTER:
                value = _hashed(value, text[place])
                place += 1
            number, _ = _find(text, start, place, value, slots, hashes, letters, starts, count)
            words[written] = number
            if number == EMPTY:
                new[missing, 0], new[missing, 1], new[missing, 2] = written, start, place
                missing += 1
            written += 1
        place, counts[at] = end, written - first
    return missing


@njit_cached()
def put_together(
    words: Numbers, counts: Counts, ids: Numbers, starts: Counts, frame: tuple[Numbers, Numbers], room: int
) -> tuple[Numbers, Counts]:
    """Tokens of every text, at most `room` and the frame around them, end to end; and how many each has."""
    opening, closing = frame
    lengths = np.empty(len(counts), dtype=np.int64)
    out = np.empty(len(counts) * (room + len(opening) + len(closing)), dtype=np.int32)
    written, first = 0, 0
    for at in range(len(counts)):
        begin = written
        out[written : written + len(opening)] = opening
        written += len(opening)
        last = written + room
        for place in range(first, first + counts[at]):
            for token in range(starts[words[place]], starts[words[place] + 1]):
                if written == last:
                    break
                out[written] = ids[token]
                written += 1
        first += counts[at]
        out[written : written + len(closing)] = closing
        written += len(closing)
        lengths[at] = written - begin
    return out[:written].copy(), lengths
