"""Estimate how many candidates codes of a size need for a recall, from a sample of the vectors.

Without query vectors, sums of two documents stand in: one that is in the sample, one that is not. On MiniLM vectors
they need as many candidates as questions do, where documents alone need half as many
(docs/reports/code-sizes.md). The number for all documents continues its growth within the sample as a power.

Every product is reproducible, so that the same vectors give the same estimate on one processor.
"""

import math
from typing import Literal, NamedTuple

import numpy as np

from bidr.data.vector_source import Metric, VectorSource, normalize_l2
from bidr.quantization.distance_codes import add_query_component
from bidr.quantization.opq_config import PlainCodes, refuse_huge_numbers
from bidr.utils.array_types import Floats, Rows
from bidr.utils.reproducible_matmul import matmul_transposed

SAMPLE_ROWS, SAMPLE_QUERIES = 20_000, 200
# Few rounds on few rows: enough to tell sizes apart.
FIT_ROWS, FIT_ITERATIONS = 8_000, 4
# The growth is measured between a part of the sample and all of it.
PART, QUERIES_AT_ONCE = 8, 50


class CandidateEstimate(NamedTuple):
    """Candidates that codes of a size need; sampled: among the documents of the sample."""

    code_bytes: int
    candidates: int
    sampled: int


class Sample(NamedTuple):
    """A sample of documents, queries, and the exact top k of each query among the first `size` documents, by size."""

    documents: Floats
    queries: Floats
    exact: dict[int, Rows]
    metric: Metric


def draw_sample(rows: VectorSource, k: int, queries: Floats | None = None, seed: int = 0) -> Sample:
    """Draw documents, make queries if there are none, and search exactly."""
    random = np.random.default_rng(seed)
    held_out = min(SAMPLE_QUERIES, len(rows) // 2) if queries is None else 0
    drawn = random.permutation(random.choice(len(rows), min(SAMPLE_ROWS + held_out, len(rows)), replace=False))
    documents = rows.gather(np.sort(drawn[held_out:]))
    refuse_huge_numbers(documents, rows.name)
    if queries is None:
        sums: Floats = rows.gather(drawn[:held_out]) + documents[random.choice(len(documents), held_out)]
        queries = normalize_l2(sums) if rows.metric == "cosine" else sums / np.float32(2)
    # In random order: the first rows of a file may be alike.
    documents, queries = documents[random.permutation(len(documents))], queries[:SAMPLE_QUERIES]
    few, many = max(min(k, len(documents)), len(documents) // PART), len(documents)
    blocks: dict[int, list[Rows]] = {few: [], many: []}
    # Inner products less half of the squared norms rank by distance.
    penalty = np.add.reduce(np.square(documents), axis=1) / np.float32(2) if rows.metric == "l2" else np.float32(0)
    for start in range(0, len(queries), QUERIES_AT_ONCE):
        scores = matmul_transposed(queries[start : start + QUERIES_AT_ONCE], documents) - penalty
        for size, best_rows in blocks.items():
            best_rows.append(np.argpartition(-scores[:, :size], min(k, size) - 1, axis=1)[:, :k])
    exact = {size: np.concatenate(best_rows) for size, best_rows in blocks.items()}
    return Sample(documents, queries, exact, rows.metric)


def estimate_candidates(
    sample: Sample, count: int, code_bytes: int, *, codewords: Literal[16, 256] = 16, recall: float = 0.98
) -> CandidateEstimate:
    """Estimate the candidates that contain a share of the exact top k among `count` documents."""
    plain = PlainCodes(code_bytes, codewords, sample.metric)
    books = plain.count_books(sample.documents.shape[1])
    codebooks = plain.fit_books(sample.documents[:FIT_ROWS], books, iterations=FIT_ITERATIONS)
    decoded = codebooks.decode(codebooks.encode(sample.documents))
    are_distances = sample.metric == "l2"
    rotated = codebooks.rotate(add_query_component(codebooks, sample.queries) if are_distances else sample.queries)
    ranks: dict[int, list[int]] = {size: [] for size in sample.exact}
    for start in range(0, len(rotated), QUERIES_AT_ONCE):
        scores = matmul_transposed(rotated[start : start + QUERIES_AT_ONCE], decoded)
        for size, best in sample.exact.items():
            for row, rows in zip(scores, best[start : start + QUERIES_AT_ONCE], strict=False):
                ordered = np.sort(row[:size])
                ranks[size] += (size - np.searchsorted(ordered, row[rows], side="left")).tolist()
    (few, few_depth), (many, depth) = ((size, _find_depth(ranks[size], recall)) for size in sorted(ranks))
    candidates, k = depth, sample.exact[many].shape[1]
    if count > many > few:
        power = min(1.0, math.log(max(1.0, depth / few_depth)) / math.log(many / few))
        candidates = math.ceil(depth * (count / many) ** power)
    return CandidateEstimate(code_bytes, min(count, max(k, candidates)), depth)


def _find_depth(ranks: list[int], recall: float) -> int:
    """Return the number of candidates that contain a share of those with the given ranks by code."""
    return sorted(ranks)[max(0, math.ceil(recall * len(ranks)) - 1)]
