"""Which documents hold a word, and how often: arrays sorted by word, in RAM or memory mapped."""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from bidr.index.documents.id_index import hash_string
from bidr.index.lexical.analyzer import words
from bidr.index.storage.verified_mmap import CheckedArray

U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]
U8 = npt.NDArray[np.uint8]
MOST = 255
"""A word counts no more often than this in one document."""


class TermCounts(NamedTuple):
    """The words of some documents: word, document and how often for each pair of them; words in each document."""

    hashes: U64
    numbers: U32
    counts: U8
    lengths: U32


class PostingsFiles(NamedTuple):
    """The same arrays as files."""

    hashes: CheckedArray
    offsets: CheckedArray
    places: CheckedArray
    counts: CheckedArray
    lengths: CheckedArray


class Postings(NamedTuple):
    """The documents of each word: places[offsets[i]:offsets[i + 1]] hold the word hashes[i], lowest place first.

    Words are known by 64-bit hashes, in ascending order: no dictionary of strings is needed to look one up.
    """

    hashes: U64
    offsets: U64
    places: U32
    counts: U8
    lengths: U32
    words: int
    """Words of all documents together."""
    files: PostingsFiles | None = None
    """Where the arrays are files: what of them is looked at is compared with its checksums first."""

    @classmethod
    def of(cls, counted: TermCounts) -> Self:
        """Those of a few documents, in RAM."""
        order = np.lexsort((counted.numbers, counted.hashes))
        hashes, starts = np.unique(counted.hashes[order], return_index=True)
        offsets = np.append(starts, len(order)).astype(np.uint64)
        total = int(counted.lengths.sum())
        return cls(hashes, offsets, counted.numbers[order], counted.counts[order], counted.lengths, total)

    def find(self, asked: U64) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Where the postings of each word begin and end; nowhere for a word that no document holds."""
        if not len(self.hashes):
            return np.zeros(len(asked), np.int64), np.zeros(len(asked), np.int64)
        files = self.files
        at = np.searchsorted(self.hashes, asked) if files is None else files.hashes.find(asked)
        inside = np.minimum(at, len(self.hashes) - 1)
        hashes = self.hashes[inside] if files is None else files.hashes.take(inside)
        known = (at < len(self.hashes)) & (hashes == asked)
        offsets = [
            self.offsets[inside + more] if files is None else files.offsets.take(inside + more) for more in (0, 1)
        ]
        starts, ends = (np.where(known, each.astype(np.int64), 0) for each in offsets)
        return starts, ends

    def check_ranges(self, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> bool:
        """Whether ranges lie in the postings, which are compared then: a damaged file must not lead outside of them.

        A word has no more of them than there are documents.
        """
        if (ends - starts > len(self.lengths)).any():
            return False
        if self.files is None:
            return bool(((starts >= 0) & (starts <= ends) & (ends <= len(self.places))).all())
        self.files.lengths.whole()  # of most of its blocks a common word takes some
        return self.files.places.need_ranges(starts, ends) and self.files.counts.need_ranges(starts, ends)


def count_terms(texts: Sequence[str]) -> TermCounts:
    """The words of texts, numbered in their order."""
    ids, vocabulary = words(list(texts), as_numbers=True)
    lengths = np.fromiter(map(len, ids), np.uint32, len(ids))
    every = np.fromiter(chain.from_iterable(ids), np.int64, int(lengths.sum()))
    numbers = np.repeat(np.arange(len(ids)), lengths)
    size = max(len(vocabulary), 1)
    pairs, counts = np.unique(numbers * size + every, return_counts=True)
    hashes = np.zeros(size, np.uint64)
    for word, number in vocabulary.items():
        hashes[number] = hash_string(word)
    often = np.minimum(counts, MOST).astype(np.uint8)
    return TermCounts(hashes[pairs % size], (pairs // size).astype(np.uint32), often, lengths)


def concat_term_counts(parts: Sequence[TermCounts]) -> TermCounts:
    """Documents of one or more, numbered through."""
    starts = np.cumsum([0, *(len(part.lengths) for part in parts)])
    return TermCounts(
        np.concatenate([part.hashes for part in parts]),
        np.concatenate([part.numbers + np.uint32(start) for part, start in zip(parts, starts[:-1], strict=True)]),
        np.concatenate([part.counts for part in parts]),
        np.concatenate([part.lengths for part in parts]),
    )
