"""Numba kernels of the word cache: hash-table lookup and insertion of words, assembly of token rows."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidr.utils.jit import njit_cached

LETTER, SPACE, SIGN, UNSUPPORTED = range(4)
EMPTY = -1
_SEED, _FACTOR = np.uint64(14695981039346656037), np.uint64(1099511628211)  # FNV-1a
Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int32]
Counts = NDArray[np.int64]
Hashes = NDArray[np.uint64]
Flags = NDArray[np.bool_]


class PackedStrings(NamedTuple):
    """Concatenated strings: string i begins at letters[starts[i]]; `first_bytes` are their distinct first bytes."""

    letters: Bytes
    starts: Counts
    first_bytes: Bytes


class WordSnapshot(NamedTuple):
    """The first `size` words of a table: hashes, letters (word i from starts[i] on), tokens (from firsts[i] on).

    These entries never change; additions go behind them. `slots`, an open-addressing table, may hold later words too.
    """

    size: int
    slots: Numbers
    hashes: Hashes
    letters: Bytes
    starts: Counts
    ids: Numbers
    firsts: Counts


class WordNumbers(NamedTuple):
    """Word numbers of several texts, concatenated, and per text: their count, whether the text has more words, and
    whether unsupported content ended the lookup."""

    words: Numbers
    counts: Counts
    truncated: Flags
    unsupported: Flags


@njit_cached()
def _get_first_slot(value: np.uint64, mask: np.uint64) -> np.uint64:
    return (value ^ (value >> np.uint64(29))) & mask


@njit_cached()
def fill_slots(slots: Numbers, hashes: Hashes, count: int) -> None:
    mask = np.uint64(len(slots) - 1)
    for number in range(count):
        place = _get_first_slot(hashes[number], mask)
        while slots[place] != EMPTY:
            place = (place + np.uint64(1)) & mask
        slots[place] = number


@njit_cached()
def _equals(number: int, text: Bytes, start: int, end: int, letters: Bytes, starts: Counts) -> bool:
    size = end - start
    same = bool(starts[number + 1] - starts[number] == size)
    place = 0
    while same and place < size:
        same = bool(text[start + place] == letters[starts[number] + place])
        place += 1
    return same


@njit_cached()
def _extend_hash(value: np.uint64, byte: int) -> np.uint64:
    """Extend an FNV-1a hash by one byte."""
    return (value ^ np.uint64(byte)) * _FACTOR


@njit_cached()
def _find_word(
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
    """Return number and slot of a word; EMPTY and the last probed slot if it is not among the first `count` words.

    Probing may stop at a later word: slots are filled in order, so no earlier word follows it. The arrays are separate
    arguments because unpacking a tuple per word would change their reference counts.
    """
    mask = np.uint64(len(slots) - 1)
    slot = _get_first_slot(value, mask)
    number = int(slots[slot])
    while number != EMPTY and number < count:
        if hashes[number] == value and _equals(number, text, start, end, letters, starts):
            return number, slot
        slot = (slot + np.uint64(1)) & mask
        number = int(slots[slot])
    return EMPTY, slot


@njit_cached()
def add_words(text: Bytes, new: Counts, words: Numbers, snapshot: WordSnapshot) -> int:
    """Number new words, rows of (index in `words`, start, end) in the text; return the new size of the table."""
    count, slots, hashes, letters, starts, _, _ = snapshot
    for index in range(len(new)):
        place, start, end = new[index, 0], new[index, 1], new[index, 2]
        value = _SEED
        for letter in range(start, end):
            value = _extend_hash(value, text[letter])
        number, slot = _find_word(text, start, end, value, slots, hashes, letters, starts, count)
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
def _contains_any(text: Bytes, start: int, end: int, added_tokens: PackedStrings) -> bool:
    """Return whether the text contains one of the strings. The scan for first bytes is vectorized."""
    for byte in added_tokens.first_bytes:
        has_byte = False
        for letter in text[start:end]:
            has_byte |= letter == byte
        if has_byte and _starts_with_any(text, start, end, byte, added_tokens):
            return True
    return False


@njit_cached()
def _starts_with_any(text: Bytes, start: int, end: int, byte: int, added_tokens: PackedStrings) -> bool:
    starts = added_tokens.starts
    for place in range(start, end):
        if text[place] == byte:
            for number in range(len(starts) - 1):
                stop = place + starts[number + 1] - starts[number]
                if stop <= end and _equals(number, text, place, stop, added_tokens.letters, starts):
                    return True
    return False


@njit_cached()
def look_up_words(
    text: Bytes,
    ends: Counts,
    max_words: int,
    kinds: Bytes,
    added_tokens: PackedStrings,
    snapshot: WordSnapshot,
    out: WordNumbers,
    new: Counts,
) -> int:
    """Number the known words; write index, start and end of each unknown one to `new` and return their count."""
    words, counts, truncated, unsupported = out
    count, slots, hashes, letters, starts, _, _ = snapshot
    written, place, missing = 0, 0, 0
    for index in range(len(ends)):
        first, end = written, ends[index]
        if _contains_any(text, place, end, added_tokens):
            unsupported[index], place = True, end
        while place < end:
            kind = kinds[text[place]]
            if kind == SPACE:
                place += 1
                continue
            if kind == UNSUPPORTED:
                unsupported[index] = True
                break
            if written - first == max_words:
                truncated[index] = True
                break
            start = place
            value = _extend_hash(_SEED, text[place])
            place += 1
            while kind == LETTER and place < end and kinds[text[place]] == LETTER:
                value = _extend_hash(value, text[place])
                place += 1
            number, _ = _find_word(text, start, place, value, slots, hashes, letters, starts, count)
            words[written] = number
            if number == EMPTY:
                new[missing, 0], new[missing, 1], new[missing, 2] = written, start, place
                missing += 1
            written += 1
        place, counts[index] = end, written - first
    return missing


@njit_cached()
def assemble_tokens(
    words: Numbers, counts: Counts, ids: Numbers, starts: Counts, frame: tuple[Numbers, Numbers], max_tokens: int
) -> tuple[Numbers, Counts]:
    """Concatenate the tokens of every text, cut at `max_tokens` and framed by `frame`; return ids and lengths."""
    opening, closing = frame
    lengths = np.empty(len(counts), dtype=np.int64)
    out = np.empty(len(counts) * (max_tokens + len(opening) + len(closing)), dtype=np.int32)
    written, first = 0, 0
    for index in range(len(counts)):
        begin = written
        out[written : written + len(opening)] = opening
        written += len(opening)
        last = written + max_tokens
        for place in range(first, first + counts[index]):
            for token in range(starts[words[place]], starts[words[place] + 1]):
                if written == last:
                    break
                out[written] = ids[token]
                written += 1
        first += counts[index]
        out[written : written + len(closing)] = closing
        written += len(closing)
        lengths[index] = written - begin
    return out[:written].copy(), lengths
