"""What an index of words will take on disk and in RAM: from a sample of the texts, or guessed from their mean size."""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from bidr.index.lexical.bm25 import RANGE, SPARE
from bidr.index.lexical.postings import count_terms
from bidr.index.lexical.postings_files import ABOUT, COUNTS, HASHES, LENGTHS, OFFSETS, PLACES
from bidr.index.storage.checksums import with_checks

SAMPLED = 2_000
# Words that occur in no earlier document grow with this power of their number (Heaps' law); of the corpora that
# bench/lexical_size.py was run on it is .52 to .66.
GROWTH = 0.58
# Different words of a document of so many bytes, and of one alone as the first of many: fitted to titles and texts of
# five English corpora of 360 to 1,500 bytes on average, and within 15 % of each. Other languages were not looked at.
GUESSED = (0.616, 0.696), (2.145, GROWTH)
# Anonymous bytes a document that asking leaves, as measured there.
LEFT = 0.28


class LexicalSize(NamedTuple):
    """Words of texts: different ones in a text on average, and in `texts` of them together."""

    postings: float
    vocabulary: float
    texts: int

    def words(self, count: int) -> int:
        """Different words of so many texts."""
        return max(1, int(self.vocabulary * math.pow(count / self.texts, GROWTH)))


def guess_lexical_size(text_bytes: float) -> LexicalSize:
    """Of English texts of this mean size."""
    often, new = (factor * text_bytes**power for factor, power in GUESSED)
    return LexicalSize(often, new, 1)


def measure_lexical_size(texts: Iterable[str]) -> LexicalSize:
    """Of texts that stand for the others; about SAMPLED are enough."""
    found = count_terms(list(texts))
    count = len(found.lengths)
    return LexicalSize(len(found.hashes) / max(1, count), len(np.unique(found.hashes)), max(1, count))


def estimate_lexical_disk(words: LexicalSize, count: int) -> dict[str, int]:
    """Bytes of every file, headers left out: they are a thousandth."""
    postings, different = max(1, round(words.postings * count)), words.words(count)
    files = {
        HASHES: 8 * different,
        OFFSETS: 8 * (different + 1),
        PLACES: 4 * postings,
        COUNTS: postings,
        LENGTHS: 4 * count,
        ABOUT: 40,
    }
    return with_checks(files)


def estimate_lexical_ram(count: int, candidates: int) -> int:
    """Bytes of anonymous memory for one query at a time: what is left behind, and what its scores take meanwhile."""
    return round(LEFT * count) + 12 * (2 * RANGE + SPARE + candidates)
