"""Words of texts as numbers: a table of the words seen so far and their tokens, looked up by their bytes.

Threads share a table. They look up at the same time, each in what was known when it began; one at a time adds.
"""

import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bidr.tokenization.word_cache_kernels import (
    EMPTY,
    LETTER,
    ODD,
    SIGN,
    SPACE,
    Bytes,
    Counts,
    Known,
    Numbered,
    Numbers,
    Strings,
    add,
    look_up,
    settle,
)

_LEAST = 1 << 12
TokensOf = Callable[[list[str]], tuple[Numbers, Counts]]


def kinds_of_bytes() -> Bytes:
    """What each byte of UTF-8 is to a text: part of a word, between words, a word by itself, or beyond this table."""
    kinds = np.full(256, LETTER, dtype=np.uint8)
    kinds[:128] = [LETTER if chr(code).isalnum() else SIGN for code in range(128)]
    kinds[:32], kinds[127] = ODD, ODD
    kinds[[ord(one) for one in " \n\t\r"]] = SPACE
    return kinds


def strings(given: list[bytes]) -> Strings:
    letters, begins = np.frombuffer(b"".join(given), dtype=np.uint8), sorted({one[0] for one in given})
    return Strings(letters, np.append(0, _ends(given)), np.array(begins, dtype=np.uint8))


class WordTable:
    """Every word's number, in the order they came up, and its tokens.

    tokens_of: the tokens of new words end to end, and how many each has. apart: texts that hold one of these strings
    are odd.
    """

    def __init__(self, tokens_of: TokensOf, apart: Strings) -> None:
        self._tokens_of, self._apart, self._kinds = tokens_of, apart, kinds_of_bytes()
        self._lock, self._whole = threading.Lock(), True
        none, zero = np.empty(0, dtype=np.int32), np.zeros(1, dtype=np.int64)
        slots = np.full(_LEAST, EMPTY, dtype=np.int32)
        self.known = Known(0, slots, np.empty(0, np.uint64), np.empty(0, np.uint8), zero, none, zero)

    @property
    def count(self) -> int:
        return self.known.size

    @property
    def letters(self) -> int:
        known = self.known
        return int(known.starts[known.size])

    def number(self, texts: list[bytes], most: int) -> tuple[Numbered, Known]:
        """The first words of every text, at most so many of each, and words known that hold them all."""
        known, joined, ends = self.known, np.frombuffer(b"".join(texts), dtype=np.uint8), _ends(texts)
        words = min(len(joined), len(texts) * most)
        flags = np.zeros((2, len(texts)), dtype=np.bool_)
        out = Numbered(np.empty(words, dtype=np.int32), np.zeros(len(texts), dtype=np.int64), *flags)
        new = np.empty((words, 3), dtype=np.int64)
        new = new[: look_up(joined, ends, most, self._kinds, self._apart, known, out, new)]  # without any lock
        if len(new):
            known = self._add(joined, new, out.words)
        return out._replace(words=out.words[: out.counts.sum()]), known

    def _add(self, text: Bytes, new: Counts, words: Numbers) -> Known:
        """Number the words that were not known, of which others may have added some meanwhile."""
        with self._lock:
            before = self.known
            after = self._with_room(before, new)
            self._whole = False  # an error leaves words in the slots that nobody knows
            count = add(text, new, words, after)
            if count > before.size:
                ids, counts = self._tokens_of(_words(after, before.size, count))
                after = _with_tokens(after, ids, counts)._replace(size=count)
            self.known, self._whole = after, True
            return after

    def _with_room(self, known: Known, new: Counts) -> Known:
        """For so many words more. Arrays are replaced, not changed: others may be looking at them."""
        words = known.size + len(new)
        letters = int(known.starts[known.size] + (new[:, 2] - new[:, 1]).sum())
        if len(known.hashes) < words:
            known = known._replace(hashes=_longer(known.hashes, 2 * words), starts=_longer(known.starts, 2 * words + 1))
        if len(known.letters) < letters:
            known = known._replace(letters=_longer(known.letters, 2 * letters))
        if len(known.slots) < 2 * words or not self._whole:
            slots = np.full(max(len(known.slots), 1 << (2 * words).bit_length()), EMPTY, dtype=np.int32)
            settle(slots, known.hashes, known.size)
            known = known._replace(slots=slots)
        return known


def _with_tokens(known: Known, ids: Numbers, counts: Counts) -> Known:
    """With the tokens of the words that come next."""
    words, tokens = known.size + len(counts), int(known.firsts[known.size]) + len(ids)
    if len(known.firsts) <= words:
        known = known._replace(firsts=_longer(known.firsts, 2 * words + 1))
    if len(known.ids) < tokens:
        known = known._replace(ids=_longer(known.ids, 2 * tokens))
    known.ids[tokens - len(ids) : tokens] = ids
    known.firsts[known.size + 1 : words + 1] = tokens - len(ids) + np.cumsum(counts)
    return known


def _words(known: Known, first: int, end: int) -> list[str]:
    starts = known.starts[first : end + 1]
    letters = known.letters[starts[0] : starts[-1]].tobytes()
    return [letters[start:stop].decode() for start, stop in pairwise((starts - starts[0]).tolist())]


def _ends(given: list[bytes]) -> Counts:
    return np.cumsum(np.fromiter(map(len, given), dtype=np.int64, count=len(given)))


def _longer(array: NDArray[Any], length: int) -> NDArray[Any]:
    out = np.empty(length, dtype=array.dtype)
    out[: len(array)] = array
    return out
