"""BM25 from its formula, document by document: the reference of the tests."""

import math
import re
from collections import Counter

import numpy as np
import Stemmer

K1, B = 0.9, 0.4
STOP_WORDS = {"a", "and", "are", "at", "by", "in", "is", "of", "the", "was", "with"}


def tokenize(text: str) -> list[str]:
    words = [word for word in re.findall(r"[^\W_]+", text.lower()) if word not in STOP_WORDS]
    return Stemmer.Stemmer("english").stemWords(words)


def score_texts(texts: list[str], query: str) -> np.ndarray:
    documents = [Counter(tokenize(text)) for text in texts]
    mean_length = sum(document.total() for document in documents) / len(documents)
    scores = np.zeros(len(texts))
    for term in tokenize(query):
        frequency = sum(term in document for document in documents)
        idf = math.log(1 + (len(texts) - frequency + 0.5) / (frequency + 0.5))
        for row, document in enumerate(documents):
            norm = K1 * (1 - B + B * document.total() / mean_length)
            scores[row] += idf * document[term] / (document[term] + norm)
    return scores
