"""Whether 8-bit encoders give answers as good as the whole ones give: asked of the index that is served.

Not the same answers: in a crowded corpus the tenth and the twentieth score nearly the same, and a small change of a
vector changes the list. What is asked is how much worse, by the whole encoder's own scores, the answers are that 8 bits
bring up. The limit was chosen on one model and one index (docs/reports/text-encoding.md).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bidr.data.dataset import compose_text
from bidr.index.live.live_index import LiveIndex
from bidr.search.searcher import Searcher
from bidr.search.types import QueryVectors, RankedBatch
from bidr.server.encoding.encoders import Encoders
from bidr.utils.array_types import Floats

COSINE, LOSS, K = 0.995, 0.001, 10
QUESTIONS, DOCUMENTS, WORDS, SEED = 128, 32, 12, 0


class Parity(NamedTuple):
    """How near 8-bit vectors are.

    cosine:    the mean with the whole encoder's.
    loss:      what the top 10 answers lose of the score that the whole encoder gives its own: a share of it, the mean.
    agreement: share of its top 10; told, not asked for.
    """

    texts: int
    cosine: float
    loss: float
    agreement: float

    @property
    def holds(self) -> bool:
        return bool(self.texts and self.cosine >= COSINE and self.loss <= LOSS)

    def figures(self) -> dict[str, Any]:
        return {
            "texts": self.texts,
            "cosine": round(self.cosine, 5),
            "loss": round(self.loss, 6),
            "agreement": round(self.agreement, 4),
            "holds": self.holds,
            "expected": {"cosine": COSINE, "loss": LOSS},
        }


NONE = Parity(0, 0.0, 1.0, 0.0)


def compare(index: Path, titles: Any, whole: Encoders, small: Encoders) -> dict[str, Parity]:
    """For queries and for documents, on texts of the index; nothing holds where it has none.

    The beginnings of documents stand in for queries.
    """
    reader = LiveIndex.open(index)
    try:
        view = reader.latest()
        rows = np.random.default_rng(SEED).permutation(view.count)[: QUESTIONS + DOCUMENTS].tolist()
        found = [view.documents.document(row) for row in rows]
        texts = [compose_text(document, titles) for document in found if document is not None]
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
    wanted, found = (searcher.search_vectors(queries, K) for queries in (exact, near))
    pairs = list(zip(wanted.rows, found.rows, strict=True))
    shared = [len(set(a[a >= 0]) & set(b)) / max(int((a >= 0).sum()), 1) for a, b in pairs]
    best, got = (_scores(searcher, ranking, exact.vectors) for ranking in (wanted, found))
    losses = (best - got).sum(axis=1) / np.maximum(np.abs(best).sum(axis=1), 1e-12)
    cosine = min(one.mean() for one in cosines)
    return Parity(len(texts), float(cosine), float(losses.mean()), float(np.mean(shared)))


def _scores(searcher: Searcher, ranking: RankedBatch, queries: Floats) -> Floats:
    """What other queries score with the answers of a ranking; 0 where there is none."""
    places = np.take_along_axis(ranking.candidate_positions, ranking.candidate_ranks - 1, axis=1)
    view = searcher.reader.latest()
    asked = view.manifest.cut(queries)
    scores = [view.vectors.score(own[own >= 0], query) for own, query in zip(places, asked, strict=True)]
    return np.stack([np.pad(own, (0, places.shape[1] - len(own))) for own in scores])


def _vectors(encoders: Encoders, role: str, texts: list[str]) -> QueryVectors:
    return QueryVectors(*(encoders.encode(reading, texts) for reading in encoders.roles[role]))


def _cosines(one: Floats, other: Floats) -> Floats:
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    cosines: Floats = (one * other).sum(axis=1) / np.maximum(lengths, 1e-12)
    return cosines
