"""What dev says of a stage: recall of candidates, and of answers after ranking."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bidr.data.positives import Positives
from bidr.models.corpus_encoding import encode_rows
from bidr.models.encoder import Encoder
from bidr.quantization.codebooks import Codebooks
from bidr.quantization.exact_search import search_codes, search_vectors
from bidr.quantization.metrics import measure_usage
from bidr.training.data import TrainingData
from bidr.utils.array_types import Codes, Rows

ANSWERS = 10
ANSWERS_METRIC = f"R@{ANSWERS}"


class Validator(NamedTuple):
    """The dev questions and the part of the corpus on which they are asked."""

    data: TrainingData
    rows: Rows
    pairs: Positives
    """Positives as places in rows."""
    device: str

    def encode_queries(self, encoder: Encoder) -> npt.NDArray[np.float32]:
        return encode_rows(encoder, self.data.dev.tokens)

    def measure_exact(self, encoder: Encoder) -> float:
        """Recall of the answers by exact search over the encoder's vectors."""
        vectors = encode_rows(encoder, self.data.documents, self.rows)
        return compute_recall(
            search_vectors(self.encode_queries(encoder), vectors, ANSWERS, device=self.device).rows, self.pairs
        )

    def encode_codes(self, encoder: Encoder, codebooks: Codebooks) -> Codes:
        return codebooks.encode(encode_rows(encoder, self.data.documents, self.rows))

    def measure_candidates(self, encoder: Encoder, codebooks: Codebooks, candidates: int) -> float:
        """Recall of the candidates by the codes of the encoder's vectors."""
        codes = self.encode_codes(encoder, codebooks)
        found = search_codes(self.encode_queries(encoder), codebooks, codes, candidates, device=self.device)
        return compute_recall(found.rows, self.pairs)

    def measure_all(self, encoder: Encoder, codebooks: Codebooks, candidates: int) -> dict[str, float]:
        """Recall of the candidates by codes, and of the answers when the same vectors rank them; codewords' use."""
        vectors, queries = encode_rows(encoder, self.data.documents, self.rows), self.encode_queries(encoder)
        codes = codebooks.encode(vectors)
        found = search_codes(queries, codebooks, codes, candidates, device=self.device).rows
        use = measure_usage(codes, codebooks.words)
        return {
            format_candidates_metric(candidates): compute_recall(found, self.pairs),
            ANSWERS_METRIC: self.measure_ranking(queries, vectors, found, found),
            "codewords_used": use.used,
            "codeword_entropy_bits": use.entropy_bits,
            "least_codeword_entropy_bits": use.least_entropy_bits,
        }

    def measure_reranking(self, encoder: Encoder, candidates: Rows) -> float:
        """Recall of the answers when the encoder ranks given candidates (places in rows, -1 for none)."""
        used, places = np.unique(np.maximum(candidates, 0), return_inverse=True)
        vectors = encode_rows(encoder, self.data.documents, self.rows[used])
        return self.measure_ranking(self.encode_queries(encoder), vectors, places.reshape(candidates.shape), candidates)

    def measure_ranking(
        self, queries: npt.NDArray[np.float32], vectors: npt.NDArray[np.floating], places: Rows, candidates: Rows
    ) -> float:
        """Recall of the answers when vectors[places] of the candidates are ranked."""
        answers = np.full((len(queries), min(ANSWERS, candidates.shape[1])), -1, dtype=np.int64)
        for query, vector in enumerate(queries):
            scores = np.asarray(vectors[places[query]], dtype=np.float32) @ vector
            scores[candidates[query] < 0] = -np.inf
            best = np.argsort(-scores, kind="stable")[: answers.shape[1]]
            answers[query] = candidates[query, best]
        return compute_recall(answers, self.pairs)


def format_candidates_metric(candidates: int) -> str:
    """The name under which the recall of so many candidates is logged."""
    return f"candidates' R@{candidates}"


def make_validator(data: TrainingData, most: int, seed: int, device: str) -> Validator:
    """The whole corpus, or a random part of it that holds all dev positives."""
    count = len(data.documents)
    pairs = data.dev.pairs
    if count <= most:
        return Validator(data, np.arange(count), pairs, device)
    drawn = np.random.default_rng(seed).choice(count, most, replace=False)
    rows = np.unique(np.concatenate([drawn, pairs.rows]))
    return Validator(data, rows, Positives(pairs.starts, np.searchsorted(rows, pairs.rows)), device)


def compute_recall(found: npt.NDArray[np.integer], pairs: Positives) -> float:
    """Mean over queries of the share of their positives that was found."""
    places, rows = pairs.list_edges(np.arange(len(pairs)))
    hits = (found[places] == rows[:, None]).any(axis=1)
    counts = np.diff(pairs.starts)
    return float((np.bincount(places, weights=hits, minlength=len(pairs)) / counts).mean())
