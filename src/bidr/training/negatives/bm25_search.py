"""BM25 search in memory: lexical negatives of the warm-up, and the baseline of `bidr compare`."""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from itertools import islice

import numpy as np

from bidr.index.lexical.analyzer import tokenize_texts
from bidr.index.lexical.bm25 import WeightedTerms, compute_idf, search_postings
from bidr.index.lexical.postings import Postings, concat_term_counts, count_terms, hash_terms
from bidr.quantization.exact_search import TopK
from bidr.utils.array_types import Floats, Rows
from bidr.utils.progress import show_progress

TEXTS_PER_BLOCK = 16_384
QUERIES_PER_BLOCK = 1_024


class Bm25:
    """In-memory BM25 over texts, with the analyzer and the scores of an index built with --lexical."""

    def __init__(self, texts: Iterable[str]) -> None:
        remaining = iter(texts)
        blocks = iter(lambda: list(islice(remaining, TEXTS_PER_BLOCK)), [])
        self._postings = Postings.from_counts(concat_term_counts([count_terms(block) for block in blocks]))
        self._count = len(self._postings.lengths)
        self._mean_length = max(self._postings.total_terms / self._count, 1e-9)

    def search(self, queries: Sequence[str], k: int, *, quiet: bool = False) -> TopK:
        """Search the k best documents of each query, equal scores by row; -1 where fewer share a term with it."""
        k = min(k, self._count)
        rows = np.full((len(queries), k), -1, dtype=np.int64)
        scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
        with (
            nullcontext(_ignore_progress) if quiet else show_progress("BM25 search", len(queries), "queries") as advance
        ):
            for start in range(0, len(queries), QUERIES_PER_BLOCK):
                block = tokenize_texts(list(queries[start : start + QUERIES_PER_BLOCK]))
                for row, terms in enumerate(block, start):
                    hits, positions = self._search_terms(terms, k)
                    scores[row, : len(hits)], rows[row, : len(hits)] = hits, positions
                advance(len(block))
        return TopK(scores, rows)

    def _search_terms(self, terms: Sequence[str], k: int) -> tuple[Floats, Rows]:
        hashes, frequencies = hash_terms(terms)
        starts, ends = self._postings.find(hashes)
        weights = frequencies * compute_idf(self._count, ends - starts)
        query = WeightedTerms(starts, ends, weights)
        hits = search_postings(self._postings, query, self._mean_length, k, None, np.zeros(0, np.int64))
        assert hits is not None  # postings in memory are never damaged
        return hits[0], hits[1]


def _ignore_progress(count: int = 1, note: str = "") -> None:
    pass
