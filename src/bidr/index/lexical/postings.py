"""Inverted lists of BM25 as arrays sorted by term, in RAM or memory-mapped."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from bidr.index.documents.id_index import hash_string
from bidr.index.lexical.analyzer import number_terms
from bidr.index.storage.checksums import VerifiedArray
from bidr.utils.array_types import Floats

U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]
U8 = npt.NDArray[np.uint8]
MAX_TERM_FREQUENCY = 255


class TermCounts(NamedTuple):
    """Term frequencies: hash, row and frequency of each pair of term and document; length of each document."""

    hashes: U64
    rows: U32
    counts: U8
    lengths: U32


class PostingsFiles(NamedTuple):
    """The arrays of postings as files."""

    hashes: VerifiedArray
    offsets: VerifiedArray
    positions: VerifiedArray
    counts: VerifiedArray
    lengths: VerifiedArray


class Postings(NamedTuple):
    """Inverted lists: positions[offsets[i]:offsets[i + 1]], ascending, contain the term with the hash hashes[i].

    Terms are identified by 64-bit hashes in ascending order, so that no dictionary of strings is needed.
    """

    hashes: U64
    offsets: U64
    positions: U32
    counts: U8
    lengths: U32
    total_terms: int
    """Sum of all document lengths."""
    files: PostingsFiles | None = None
    """If the arrays are files: their checksums are verified on first access."""

    @classmethod
    def from_counts(cls, terms: TermCounts) -> Self:
        """Build the postings of a few documents in RAM."""
        order = np.lexsort((terms.rows, terms.hashes))
        hashes, starts = np.unique(terms.hashes[order], return_index=True)
        offsets = np.append(starts, len(order)).astype(np.uint64)
        return cls(hashes, offsets, terms.rows[order], terms.counts[order], terms.lengths, int(terms.lengths.sum()))

    def find(self, query: U64) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return start and end of the postings of each term hash; both are 0 for an unknown term."""
        if not len(self.hashes):
            return np.zeros(len(query), np.int64), np.zeros(len(query), np.int64)
        files = self.files
        at = np.searchsorted(self.hashes, query) if files is None else files.hashes.find(query)
        inside = np.minimum(at, len(self.hashes) - 1)
        hashes = self.hashes[inside] if files is None else files.hashes.take(inside)
        is_known = (at < len(self.hashes)) & (hashes == query)
        offsets = [
            self.offsets[inside + more] if files is None else files.offsets.take(inside + more) for more in (0, 1)
        ]
        starts, ends = (np.where(is_known, bounds.astype(np.int64), 0) for bounds in offsets)
        return starts, ends

    def check_ranges(self, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> bool:
        """Return whether ranges are valid, and verify their checksums.

        A damaged file must not lead outside of the arrays. A term has at most one posting per document.
        """
        if (ends - starts > len(self.lengths)).any():
            return False
        if self.files is None:
            return bool(((starts >= 0) & (starts <= ends) & (ends <= len(self.positions))).all())
        self.files.lengths.read_all()  # a common term reads most of its blocks
        return self.files.positions.verify_ranges(starts, ends) and self.files.counts.verify_ranges(starts, ends)


def count_terms(texts: Sequence[str]) -> TermCounts:
    """Count the terms of texts, with their index as the row."""
    numbers_by_row, terms = number_terms(texts)
    lengths = np.fromiter(map(len, numbers_by_row), np.uint32, len(numbers_by_row))
    numbers = np.concatenate([*numbers_by_row, np.zeros(0, np.int64)])
    rows = np.repeat(np.arange(len(lengths)), lengths)
    size = max(len(terms), 1)
    pairs, counts = np.unique(rows * size + numbers, return_counts=True)
    hashes = np.fromiter(map(hash_string, terms), np.uint64, len(terms))
    frequencies = np.minimum(counts, MAX_TERM_FREQUENCY).astype(np.uint8)
    return TermCounts(hashes[pairs % size], (pairs // size).astype(np.uint32), frequencies, lengths)


def concat_term_counts(parts: Sequence[TermCounts]) -> TermCounts:
    """Concatenate counts; rows continue from one to the next."""
    starts = np.cumsum([0, *(len(part.lengths) for part in parts)])
    return TermCounts(
        np.concatenate([part.hashes for part in parts]),
        np.concatenate([part.rows + np.uint32(start) for part, start in zip(parts, starts[:-1], strict=True)]),
        np.concatenate([part.counts for part in parts]),
        np.concatenate([part.lengths for part in parts]),
    )


def hash_terms(terms: Sequence[str]) -> tuple[U64, Floats]:
    """Return hashes of the distinct terms of a query, and their frequencies in it."""
    frequencies = Counter(map(hash_string, terms))
    return np.array(list(frequencies), dtype=np.uint64), np.array(list(frequencies.values()), dtype=np.float32)
