"""Words of texts as numbers, compiled: a table of the words seen so far, looked up by their bytes."""

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bidr.compiled import compiled

LETTER, SPACE, SIGN, ODD = range(4)
_EMPTY = -1
_SEED, _FACTOR = np.uint64(14695981039346656037), np.uint64(1099511628211)  # FNV-1a
_LEAST = 1 << 12
Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int32]
Counts = NDArray[np.int64]
Hashes = NDArray[np.uint64]
Flags = NDArray[np.bool_]
Arrays = tuple[Numbers, Hashes, Bytes, Counts]


def kinds_of_bytes() -> Bytes:
    """What each byte of UTF-8 is to a text: part of a word, between words, a word by itself, or beyond this table."""
    kinds = np.full(256, LETTER, dtype=np.uint8)
    kinds[:128] = [LETTER if chr(code).isalnum() else SIGN for code in range(128)]
    kinds[:32], kinds[127] = ODD, ODD
    kinds[[ord(one) for one in " \n\t\r"]] = SPACE
    return kinds


class Numbered(NamedTuple):
    """Words of several texts end to end as numbers, how many each text has, whether it has more than were asked for,
    and whether something in it kept it from being read to its end."""

    words: Numbers
    counts: Counts
    more: Flags
    odd: Flags


class WordTable:
    """Every word's number, in the order they came up."""

    def __init__(self) -> None:
        self.count, self._kinds = 0, kinds_of_bytes()
        self._slots = np.full(_LEAST, _EMPTY, dtype=np.int32)
        self._hashes, self._letters = np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.uint8)
        self._starts = np.zeros(1, dtype=np.int64)

    @property
    def letters(self) -> int:
        return int(self._starts[self.count])

    def number(self, texts: list[bytes], most: int) -> Numbered:
        """The first words of every text, at most so many of each; new ones get the next numbers."""
        joined = np.frombuffer(b"".join(texts), dtype=np.uint8)
        ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
        words = min(len(joined), len(texts) * most)
        self._make_room(words, len(joined))
        flags = np.zeros((2, len(texts)), dtype=np.bool_)
        out = Numbered(np.empty(words, dtype=np.int32), np.zeros(len(texts), dtype=np.int64), *flags)
        table = (self._slots, self._hashes, self._letters, self._starts)
        self.count = _number(joined, ends, most, self._kinds, table, self.count, out)
        return out._replace(words=out.words[: out.counts.sum()])

    def since(self, count: int) -> list[str]:
        """The words that came up after so many."""
        starts = self._starts[count : self.count + 1]
        letters = self._letters[starts[0] : starts[-1]].tobytes()
        return [letters[start:end].decode() for start, end in pairwise((starts - starts[0]).tolist())]

    def _make_room(self, words: int, letters: int) -> None:
        """For so many new words."""
        words, letters = self.count + words, self.letters + letters
        if len(self._hashes) < words:
            self._hashes = _longer(self._hashes, 2 * words)
            self._starts = _longer(self._starts, 2 * words + 1)
        if len(self._letters) < letters:
            self._letters = _longer(self._letters, 2 * letters)
        if len(self._slots) < 2 * words:
            self._slots = np.full(1 << (2 * words).bit_length(), _EMPTY, dtype=np.int32)
            _settle(self._slots, self._hashes, self.count)


def _longer(array: NDArray[Any], length: int) -> NDArray[Any]:
    out = np.empty(length, dtype=array.dtype)
    out[: len(array)] = array
    return out


@compiled()
def _settle(slots: Numbers, hashes: Hashes, count: int) -> None:
    mask = np.uint64(len(slots) - 1)
    for number in range(count):
        place = hashes[number] & mask
        while slots[place] != _EMPTY:
            place = (place + np.uint64(1)) & mask
        slots[place] = number


@compiled()
def _is(number: int, text: Bytes, start: int, end: int, letters: Bytes, starts: Counts) -> bool:
    size = end - start
    same = bool(starts[number + 1] - starts[number] == size)
    place = 0
    while same and place < size:
        same = bool(text[start + place] == letters[starts[number] + place])
        place += 1
    return same


@compiled()
def _word(text: Bytes, start: int, end: int, table: Arrays, count: int) -> int:
    """The word's number, which is `count` where it is new."""
    slots, hashes, letters, starts = table
    value = _SEED
    for at in range(start, end):
        value = (value ^ np.uint64(text[at])) * _FACTOR
    value ^= value >> np.uint64(29)
    mask = np.uint64(len(slots) - 1)
    slot = value & mask
    while slots[slot] != _EMPTY:
        number = int(slots[slot])
        if hashes[number] == value and _is(number, text, start, end, letters, starts):
            return number
        slot = (slot + np.uint64(1)) & mask
    slots[slot], hashes[count] = count, value
    starts[count + 1] = starts[count] + end - start
    for at in range(start, end):
        letters[starts[count] + at - start] = text[at]
    return count


@compiled()
def _number(text: Bytes, ends: Counts, most: int, kinds: Bytes, table: Arrays, count: int, out: Numbered) -> int:
    """Number the words of all texts; returns how many words are known then."""
    words, counts, more, odd = out
    written, place = 0, 0
    for at in range(len(ends)):
        first = written
        while place < ends[at]:
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
            place += 1
            while kind == LETTER and place < ends[at] and kinds[text[place]] == LETTER:
                place += 1
            number = _word(text, start, place, table, count)
            count = max(count, number + 1)
            words[written] = number
            written += 1
        place = ends[at]
        counts[at] = written - first
    return count


@compiled()
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
