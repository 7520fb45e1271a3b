"""Dev-set metrics of a stage: recall of candidates, and of answers after ranking."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bidr.data.positives import Positives
from bidr.models.corpus_encoding import encode_rows
from bidr.models.trainable_encoder import Encoder
from bidr.quantization.code_quality import measure_usage
from bidr.quantization.codebooks import Codebooks
from bidr.quantization.exact_search import search_codes, search_vectors
from bidr.training.data import TrainingData
from bidr.utils.array_types import Codes, Rows

ANSWERS = 10
ANSWERS_METRIC = f"R@{ANSWERS}"


class Validator(NamedTuple):
    """Measures an encoder on the dev queries over the corpus or a sample of it."""

    data: TrainingData
    rows: Rows
    pairs: Positives
    """Positives as positions in rows."""
    device: str

    def encode_queries(self, encoder: Encoder) -> npt.NDArray[np.float32]:
        return encode_rows(encoder, self.data.dev.tokens)

    def measure_exact(self, encoder: Encoder) -> float:
        """Measure recall of exact search over the encoder's vectors."""
        vectors = encode_rows(encoder, self.data.documents, self.rows)
        return compute_recall(
            search_vectors(self.encode_queries(encoder), vectors, ANSWERS, device=self.device).rows, self.pairs
        )

    def encode_codes(self, encoder: Encoder, codebooks: Codebooks) -> Codes:
        return codebooks.encode(encode_rows(encoder, self.data.documents, self.rows))

    def measure_candidates(self, encoder: Encoder, codebooks: Codebooks, candidates: int) -> float:
        """Measure candidate recall by the codes of the encoder's vectors."""
        codes = self.encode_codes(encoder, codebooks)
        candidate_rows = search_codes(self.encode_queries(encoder), codebooks, codes, candidates, device=self.device)
        return compute_recall(candidate_rows.rows, self.pairs)

    def measure_all(self, encoder: Encoder, codebooks: Codebooks, candidates: int) -> dict[str, float]:
        """Measure candidate recall by codes, recall after reranking by the same vectors, and codeword usage."""
        vectors, queries = encode_rows(encoder, self.data.documents, self.rows), self.encode_queries(encoder)
        codes = codebooks.encode(vectors)
        candidate_rows = search_codes(queries, codebooks, codes, candidates, device=self.device).rows
        codeword_usage = measure_usage(codes, codebooks.words)
        return {
            format_candidates_metric(candidates): compute_recall(candidate_rows, self.pairs),
            ANSWERS_METRIC: self.measure_ranking(queries, vectors, candidate_rows, candidate_rows),
            "codewords_used": codeword_usage.used,
            "codeword_entropy_bits": codeword_usage.entropy_bits,
            "least_codeword_entropy_bits": codeword_usage.least_entropy_bits,
        }

    def measure_reranking(self, encoder: Encoder, candidates: Rows) -> float:
        """Measure recall when the encoder ranks candidates (positions in rows, -1 for none)."""
        used, positions = np.unique(np.maximum(candidates, 0), return_inverse=True)
        vectors = encode_rows(encoder, self.data.documents, self.rows[used])
        return self.measure_ranking(
            self.encode_queries(encoder), vectors, positions.reshape(candidates.shape), candidates
        )

    def measure_ranking(
        self, queries: npt.NDArray[np.float32], vectors: npt.NDArray[np.floating], positions: Rows, candidates: Rows
    ) -> float:
        """Measure recall when candidates are ranked by vectors[positions]."""
        answers = np.full((len(queries), min(ANSWERS, candidates.shape[1])), -1, dtype=np.int64)
        for query, vector in enumerate(queries):
            scores = np.asarray(vectors[positions[query]], dtype=np.float32) @ vector
            scores[candidates[query] < 0] = -np.inf
            best = np.argsort(-scores, kind="stable")[: answers.shape[1]]
            answers[query] = candidates[query, best]
        return compute_recall(answers, self.pairs)


def format_candidates_metric(candidates: int) -> str:
    """Return the log key of candidate recall."""
    return f"candidates' R@{candidates}"


def make_validator(data: TrainingData, max_documents: int, seed: int, device: str) -> Validator:
    """Validate on the corpus, or on a sample of max_documents with all dev positives."""
    count = len(data.documents)
    pairs = data.dev.pairs
    if count <= max_documents:
        return Validator(data, np.arange(count), pairs, device)
    drawn = np.random.default_rng(seed).choice(count, max_documents, replace=False)
    rows = np.unique(np.concatenate([drawn, pairs.rows]))
    return Validator(data, rows, Positives(pairs.starts, np.searchsorted(rows, pairs.rows)), device)


def compute_recall(rows: npt.NDArray[np.integer], pairs: Positives) -> float:
    """Compute the mean over queries of the share of their positives among the hits."""
    queries, positives = pairs.list_edges(np.arange(len(pairs)))
    hits = (rows[queries] == positives[:, None]).any(axis=1)
    counts = np.diff(pairs.starts)
    return float((np.bincount(queries, weights=hits, minlength=len(pairs)) / counts).mean())
