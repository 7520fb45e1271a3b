"""Lexical search: the BM25 baseline, and the lexically similar negatives of the first stage."""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from typing import Any

import numpy as np

from bidr.index.lexical.analyzer import K1, B, tokenize_texts
from bidr.quantization.exact_search import TopK
from bidr.utils.progress import show_progress

QUERIES_AT_ONCE = 4_096


class Bm25:
    """BM25 over a corpus, in memory: English stemming and stop words, k1 and b as Anserini sets them."""

    def __init__(self, texts: Iterable[str], k1: float = K1, b: float = B) -> None:
        import bm25s

        tokens = tokenize_texts(list(texts), as_numbers=True)
        # Without numba the same results take longer.
        backend = "numba" if find_spec("numba") else "numpy"
        self._retriever: Any = bm25s.BM25(k1=k1, b=b, backend=backend)
        self._retriever.index(tokens, show_progress=False)
        self._count: int = int(self._retriever.scores["num_docs"])

    def search(self, queries: Sequence[str], k: int, *, quiet: bool = False) -> TopK:
        """The k best documents of every query; -1 where fewer share a word with it."""
        k = min(k, self._count)
        rows = np.full((len(queries), k), -1, dtype=np.int64)
        scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
        with nullcontext(_nothing) if quiet else show_progress("BM25 search", len(queries), "queries") as advance:
            for start in range(0, len(queries), QUERIES_AT_ONCE):
                part = list(queries[start : start + QUERIES_AT_ONCE])
                found, values = self._retriever.retrieve(tokenize_texts(part), k=k, show_progress=False)
                shared = values > 0
                rows[start : start + len(part)] = np.where(shared, found, -1)
                scores[start : start + len(part)] = np.where(shared, values, -np.inf)
                advance(len(part))
        return TopK(scores, rows)


def _nothing(done: int = 1, note: str = "") -> None:
    pass
