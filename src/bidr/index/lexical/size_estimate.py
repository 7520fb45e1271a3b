"""Estimate disk and RAM of a lexical index from a sample of the texts, or from their mean size."""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from bidr.index.lexical.bm25 import POSITIONS_PER_BLOCK, SPARE_HITS
from bidr.index.lexical.postings import count_terms
from bidr.index.lexical.postings_files import COUNTS, HASHES, LENGTHS, METADATA, OFFSETS, POSITIONS
from bidr.index.storage.checksums import add_checksum_files

SAMPLE_TEXTS = 2_000
# Exponent of Heaps' law for the vocabulary; .52 to .66 in the corpora of bench/lexical_size.py.
HEAPS_EXPONENT = 0.58
# Distinct terms of a text and of the first text of a corpus: factor and exponent of the mean text size. Fitted to five
# English corpora of 360 to 1,500 bytes per text, within 15 % of each; other languages were not measured.
FITTED_SIZES = (0.616, 0.696), (2.145, HEAPS_EXPONENT)
# Anonymous bytes per document after queries, measured by bench/lexical_size.py.
RESIDENT_BYTES_PER_DOC = 0.28


class LexicalSize(NamedTuple):
    """Distinct terms: on average in one text (`postings`), and in `texts` texts together (`vocabulary`)."""

    postings: float
    vocabulary: float
    texts: int

    def estimate_vocabulary(self, count: int) -> int:
        """Estimate the distinct terms of a number of texts."""
        return max(1, int(self.vocabulary * math.pow(count / self.texts, HEAPS_EXPONENT)))


def guess_lexical_size(text_bytes: float) -> LexicalSize:
    """Estimate from the mean size of English texts."""
    postings, vocabulary = (factor * text_bytes**power for factor, power in FITTED_SIZES)
    return LexicalSize(postings, vocabulary, 1)


def measure_lexical_size(texts: Iterable[str]) -> LexicalSize:
    """Measure a sample of texts; about SAMPLE_TEXTS are enough."""
    terms = count_terms(list(texts))
    count = len(terms.lengths)
    return LexicalSize(len(terms.hashes) / max(1, count), len(np.unique(terms.hashes)), max(1, count))


def estimate_lexical_disk(size: LexicalSize, count: int) -> dict[str, int]:
    """Estimate the bytes of each file, without headers (a thousandth)."""
    postings, vocabulary = max(1, round(size.postings * count)), size.estimate_vocabulary(count)
    files = {
        HASHES: 8 * vocabulary,
        OFFSETS: 8 * (vocabulary + 1),
        POSITIONS: 4 * postings,
        COUNTS: postings,
        LENGTHS: 4 * count,
        METADATA: 40,
    }
    return add_checksum_files(files)


def estimate_resident_bytes(count: int) -> int:
    """Estimate the anonymous bytes that remain after queries."""
    return round(RESIDENT_BYTES_PER_DOC * count)


def estimate_query_bytes(candidates: int) -> int:
    """Estimate the anonymous bytes of the scores of one query at a time."""
    return 12 * (2 * POSITIONS_PER_BLOCK + SPARE_HITS + candidates)
