"""Quality check of int8 encoders, on the index that is served.

Compares scores rather than hits: in a dense corpus the tenth and the twentieth hit score nearly the same, and small
changes of a vector change the list. The loss is what the top 10 hits of the int8 encoder lose in scores of the fp32
encoder. The limits were chosen on one model and one index (docs/reports/text-encoding.md).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bidr.data.dataset import compose_text
from bidr.index.live.live_reader import LiveIndex
from bidr.search.searcher import Searcher
from bidr.search.types import QueryVectors, RankedBatch
from bidr.server.encoding.encoders import Encoders
from bidr.utils.array_types import Floats

MIN_COSINE, MAX_LOSS, K = 0.995, 0.001, 10
QUERY_COUNT, DOCUMENT_COUNT, QUERY_WORDS, SEED = 128, 32, 12, 0


class Parity(NamedTuple):
    """Agreement of int8 with fp32 encoders.

    cosine:    mean cosine of their vectors.
    loss:      relative loss of the top 10 scores, by the fp32 encoder; mean over texts.
    agreement: share of common hits in the top 10; informative only.
    """

    texts: int
    cosine: float
    loss: float
    agreement: float

    @property
    def holds(self) -> bool:
        """Whether the int8 encoder is good enough."""
        return bool(self.texts and self.cosine >= MIN_COSINE and self.loss <= MAX_LOSS)

    def to_dict(self) -> dict[str, Any]:
        return {
            "texts": self.texts,
            "cosine": round(self.cosine, 5),
            "loss": round(self.loss, 6),
            "agreement": round(self.agreement, 4),
            "holds": self.holds,
            "expected": {"cosine": MIN_COSINE, "loss": MAX_LOSS},
        }


NOT_MEASURED = Parity(0, 0.0, 1.0, 0.0)


def compare_encoders(index: Path, titles: Any, fp32: Encoders, int8: Encoders) -> dict[str, Parity]:
    """Compare int8 with fp32 encoders for queries and documents, on texts of the index.

    The first words of documents stand in for queries.
    """
    reader = LiveIndex.open(index)
    try:
        view = reader.latest()
        rows = np.random.default_rng(SEED).permutation(view.count)[: QUERY_COUNT + DOCUMENT_COUNT].tolist()
        documents = [view.documents.document(row) for row in rows]
        texts = [compose_text(document, titles) for document in documents if document is not None]
        texts = [text for text in texts if text.strip()]
        texts_by_role = {
            "queries": [" ".join(text.split()[:QUERY_WORDS]) for text in texts[:QUERY_COUNT]],
            "documents": texts[-DOCUMENT_COUNT:],
        }
        searcher = Searcher(view)
        return {
            role: _measure_parity(searcher, role, role_texts, fp32, int8) for role, role_texts in texts_by_role.items()
        }
    finally:
        reader.close()


def _measure_parity(searcher: Searcher, role: str, texts: Sequence[str], fp32: Encoders, int8: Encoders) -> Parity:
    if not texts:
        return NOT_MEASURED
    exact, approximate = (_encode_role(encoders, role, list(texts)) for encoders in (fp32, int8))
    cosines = [_compute_cosines(a, b) for a, b in zip(exact, approximate, strict=True)]
    expected, actual = (searcher.search_vectors(queries, K) for queries in (exact, approximate))
    pairs = list(zip(expected.rows, actual.rows, strict=True))
    shared = [len(set(a[a >= 0]) & set(b)) / max(int((a >= 0).sum()), 1) for a, b in pairs]
    best_scores, scores = (_score_hits(searcher, ranking, exact.vectors) for ranking in (expected, actual))
    losses = (best_scores - scores).sum(axis=1) / np.maximum(np.abs(best_scores).sum(axis=1), 1e-12)
    cosine = min(side.mean() for side in cosines)
    return Parity(len(texts), float(cosine), float(losses.mean()), float(np.mean(shared)))


def _score_hits(searcher: Searcher, ranking: RankedBatch, queries: Floats) -> Floats:
    """Score the hits of a ranking with other queries; 0 for missing hits."""
    positions = np.take_along_axis(ranking.candidate_positions, ranking.candidate_ranks - 1, axis=1)
    view = searcher.reader.latest()
    truncated = view.manifest.truncate(queries)
    scores = [
        view.vectors.score(query_positions[query_positions >= 0], query)
        for query_positions, query in zip(positions, truncated, strict=True)
    ]
    return np.stack([np.pad(row, (0, positions.shape[1] - len(row))) for row in scores])


def _encode_role(encoders: Encoders, role: str, texts: list[str]) -> QueryVectors:
    return QueryVectors(*(encoders.encode(encoder_input, texts) for encoder_input in encoders.roles[role]))


def _compute_cosines(a: Floats, b: Floats) -> Floats:
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    cosines: Floats = (a * b).sum(axis=1) / np.maximum(lengths, 1e-12)
    return cosines
