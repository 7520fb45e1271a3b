"""BM25 search: lexical negatives of the warm-up, and the baseline of `bidr compare`."""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from typing import Any

import numpy as np

from bidr.index.lexical.analyzer import K1, B, tokenize_texts
from bidr.quantization.exact_search import TopK
from bidr.utils.progress import show_progress

QUERIES_PER_BLOCK = 4_096


class Bm25:
    """In-memory BM25: English stemming and stop words, k1 and b as in Anserini."""

    def __init__(self, texts: Iterable[str], k1: float = K1, b: float = B) -> None:
        import bm25s

        tokens = tokenize_texts(list(texts), as_numbers=True)
        # Without numba results are the same, but slower.
        backend = "numba" if find_spec("numba") else "numpy"
        self._retriever: Any = bm25s.BM25(k1=k1, b=b, backend=backend)
        self._retriever.index(tokens, show_progress=False)
        self._count: int = int(self._retriever.scores["num_docs"])

    def search(self, queries: Sequence[str], k: int, *, quiet: bool = False) -> TopK:
        """Search the k best documents of each query; -1 where fewer share a term with it."""
        k = min(k, self._count)
        rows = np.full((len(queries), k), -1, dtype=np.int64)
        scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
        with (
            nullcontext(_ignore_progress) if quiet else show_progress("BM25 search", len(queries), "queries") as advance
        ):
            for start in range(0, len(queries), QUERIES_PER_BLOCK):
                part = list(queries[start : start + QUERIES_PER_BLOCK])
                indices, values = self._retriever.retrieve(tokenize_texts(part), k=k, show_progress=False)
                shared = values > 0
                rows[start : start + len(part)] = np.where(shared, indices, -1)
                scores[start : start + len(part)] = np.where(shared, values, -np.inf)
                advance(len(part))
        return TopK(scores, rows)


def _ignore_progress(count: int = 1, note: str = "") -> None:
    pass
