"""Compares the candidates that a build estimates for each code size with those that questions need.

python bench/code_sizes.py documents.npy queries.npy

For each size: the estimate for all documents from a sample, with queries made of two documents (as `bidr build`), with
documents as queries, and with questions; and what questions need among all documents with fitted codes.
"""

from pathlib import Path

import numpy as np
import tyro
from tyro.conf import Positional
from unit import unit

from bidr.data.vector_source import VectorSource
from bidr.quantization.candidate_estimate import draw_sample, estimate_candidates
from bidr.quantization.exact_search import search_vectors
from bidr.quantization.pq_training import fit_pq

K, HELD_OUT, BLOCK_ROWS = 10, 200, 16_384


def main(
    documents: Positional[Path],
    queries: Positional[Path],
    sizes: tuple[int, ...] = (16, 32, 48, 64, 96),
    recall: float = 0.98,
    asked: int = 200,
) -> None:
    """Print a table."""
    vectors = unit(np.load(documents))
    random = np.random.default_rng(0)
    vectors = vectors[random.permutation(len(vectors))]
    questions = unit(np.load(queries))
    questions = questions[random.permutation(len(questions))[:asked]]
    rows, count = VectorSource(vectors[HELD_OUT:], "documents", "cosine"), len(vectors)
    samples = [draw_sample(rows, K, given) for given in (None, vectors[:HELD_OUT], questions)]
    exact = search_vectors(questions, vectors, K).rows
    print(f"{count:,} documents; candidates that contain {recall:.0%} of the top {K}")
    print("| bytes | two documents | documents | questions | questions, measured |\n|---|---|---|---|---|")
    for size in sizes:
        estimates = [estimate_candidates(sample, count, size, recall=recall).candidates for sample in samples]
        measured = measure_depth(vectors, questions, exact, size, recall)
        print(f"| {size} | {' | '.join(f'{number:,}' for number in (*estimates, measured))} |", flush=True)


def measure_depth(vectors: np.ndarray, questions: np.ndarray, exact: np.ndarray, size: int, recall: float) -> int:
    """Return the candidates that contain a share of the exact results, with codes fitted as a build does."""
    codebooks = fit_pq(vectors, 2 * size, 16)
    rotated = codebooks.rotate(questions)
    decoded = codebooks.decode(codebooks.encode(vectors[exact.ravel()])).reshape(*exact.shape, -1)
    of_exact = np.einsum("qd,qkd->qk", rotated, decoded)
    ranks = np.zeros(exact.shape, dtype=np.int64)
    for start in range(0, len(vectors), BLOCK_ROWS):
        scores = rotated @ codebooks.decode(codebooks.encode(vectors[start : start + BLOCK_ROWS])).T
        ordered = np.sort(scores, axis=1)
        for row in range(len(rotated)):
            ranks[row] += ordered.shape[1] - np.searchsorted(ordered[row], of_exact[row], side="left")
    return int(np.sort(ranks, axis=None)[int(np.ceil(recall * ranks.size)) - 1])


if __name__ == "__main__":
    tyro.cli(main)
