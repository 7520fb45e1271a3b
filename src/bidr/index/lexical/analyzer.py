"""BM25 analyzer: lower case, English stop words and stemming."""

import re
from collections.abc import Sequence

import numpy as np

from bidr.utils.array_types import Rows

find_words = re.compile(r"[^\W_]+").findall
# Lucene's English stop words
STOP_WORDS = frozenset(
    (
        *("a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not"),
        *("of", "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was"),
        *("will", "with"),
    )
)
K1, B = 0.9, 0.4  # BM25 parameters, as in Anserini


def tokenize_texts(texts: Sequence[str]) -> list[list[str]]:
    """Return the terms of every text."""
    rows, terms = number_terms(texts)
    return [[terms[number] for number in row] for row in rows]


def number_terms(texts: Sequence[str]) -> tuple[list[Rows], list[str]]:
    """Return the terms of every text as numbers, and the distinct terms by number; stem each distinct word once."""
    import Stemmer

    word_numbers: dict[str, int] = {}
    rows = [
        [
            word_numbers.setdefault(word, len(word_numbers))
            for word in find_words(text.lower())
            if word not in STOP_WORDS
        ]
        for text in texts
    ]
    stems = Stemmer.Stemmer("english").stemWords(list(word_numbers))
    terms = {term: number for number, term in enumerate(dict.fromkeys(stems))}
    numbers_by_word = np.fromiter((terms[stem] for stem in stems), np.int64, len(stems))
    return [numbers_by_word[row] if row else np.zeros(0, np.int64) for row in rows], list(terms)
