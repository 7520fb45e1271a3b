"""Whether 8-bit encoders give the answers that the whole ones give: asked of the index that is served."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bidr.answers import QueryVectors
from bidr.codes.codebooks import Floats
from bidr.index.live.index import LiveIndex
from bidr.search import Searcher
from bidr.serve.encoding.encoders import Encoders
from bidr.text import document_text

COSINE, AGREEMENT, K = 0.995, 0.95, 10
QUESTIONS, DOCUMENTS, WORDS, SEED = 128, 32, 12, 0


class Parity(NamedTuple):
    """How near 8-bit vectors are. cosine: the mean with the whole encoder's; agreement: share of its top 10 answers."""

    texts: int
    cosine: float
    agreement: float

    @property
    def holds(self) -> bool:
        return bool(self.texts and self.cosine >= COSINE and self.agreement >= AGREEMENT)

    def figures(self) -> dict[str, Any]:
        told = {"cosine": round(self.cosine, 5), "agreement": round(self.agreement, 4)}
        return {
            "texts": self.texts,
            **told,
            "holds": self.holds,
            "expected": {"cosine": COSINE, "agreement": AGREEMENT},
        }


NONE = Parity(0, 0.0, 0.0)


def compare(index: Path, titles: Any, whole: Encoders, small: Encoders) -> dict[str, Parity]:
    """For queries and for documents, on texts of the index; nothing holds where it has none.

    The beginnings of documents stand in for queries.
    """
    reader = LiveIndex.open(index)
    try:
        view = reader.latest()
        rows = np.random.default_rng(SEED).permutation(view.count)[: QUESTIONS + DOCUMENTS].tolist()
        found = [view.documents.document(row) for row in rows]
        texts = [document_text(document, titles) for document in found if document is not None]
        texts = [text for text in texts if text.strip()]
        asked = {
            "queries": [" ".join(text.split()[:WORDS]) for text in texts[:QUESTIONS]],
            "documents": texts[-DOCUMENTS:],
        }
        return {role: _parity(Searcher(view), role, given, whole, small) for role, given in asked.items()}
    finally:
        reader.close()


def _parity(searcher: Searcher, role: str, texts: Sequence[str], whole: Encoders, small: Encoders) -> Parity:
    if not texts:
        return NONE
    exact, near = (_vectors(encoders, role, list(texts)) for encoders in (whole, small))
    cosines = [_cosines(a, b) for a, b in zip(exact, near, strict=True)]
    wanted, found = (searcher.search_vectors(queries, K).rows for queries in (exact, near))
    shared = [len(set(a[a >= 0]) & set(b)) / max(int((a >= 0).sum()), 1) for a, b in zip(wanted, found, strict=True)]
    return Parity(len(texts), float(min(one.mean() for one in cosines)), float(np.mean(shared)))


def _vectors(encoders: Encoders, role: str, texts: list[str]) -> QueryVectors:
    return QueryVectors(*(encoders.encode(reading, texts) for reading in encoders.roles[role]))


def _cosines(one: Floats, other: Floats) -> Floats:
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    cosines: Floats = (one * other).sum(axis=1) / np.maximum(lengths, 1e-12)
    return cosines
