"""Makes more vectors of a corpus, as hard to search as its own, and says how hard they are.

python bench/synthetic_million.py documents.npy million.npy --count 1000000
python bench/synthetic_million.py documents.npy --check-hardness --queries queries.npy

A new vector is a document moved by the difference of two documents near it: normalise(v_i + a * (v_j - v_k)), with i
drawn at random and j, k from the same of some thousand clusters. The documents themselves come first. A larger
`a` spreads the new ones further: with --check-hardness, as many new vectors as there are documents are compared with
them, by the similarity to the nearest other, the scores of the queries' answers, and the recall of the same codes.
"""

from pathlib import Path

import faiss
import numpy as np
import tyro
from tyro.conf import Positional
from unit import unit

from bidr.quantization.exact_search import search_codes, search_vectors
from bidr.quantization.pq_training import fit_pq

NEAR = 64
AT_ONCE = 50_000


def grown(documents: np.ndarray, count: int, amount: float, seed: int = 0, *, own: bool = True) -> np.ndarray:
    """`count` unit vectors, the documents' own first."""
    means = faiss.Kmeans(documents.shape[1], len(documents) // NEAR, niter=5, seed=1, max_points_per_centroid=NEAR)
    means.train(documents)
    of = means.index.search(documents, 1)[1][:, 0]
    order, sizes = np.argsort(of, kind="stable"), np.bincount(of, minlength=len(documents) // NEAR)
    starts = np.cumsum(sizes) - sizes
    random = np.random.default_rng(seed)
    made = np.empty((count, documents.shape[1]), dtype=np.float32)
    first = min(count, len(documents)) if own else 0
    made[:first] = documents[:first]
    for start in range(first, count, AT_ONCE):
        rows = random.integers(0, len(documents), min(AT_ONCE, count - start))
        j, k = (order[starts[of[rows]] + random.integers(0, sizes[of[rows]])] for _ in range(2))
        block = documents[rows] + amount * (documents[j] - documents[k])
        made[start : start + len(block)] = block / np.linalg.norm(block, axis=1, keepdims=True)
    return made


def check(documents: np.ndarray, queries: np.ndarray, amounts: tuple[float, ...]) -> None:
    """Documents beside as many made ones."""
    codebooks = fit_pq(documents, 48, 16)
    for amount in (None, *amounts):
        own = documents if amount is None else grown(documents, len(documents), amount, own=False)
        sample = np.random.default_rng(2).integers(0, len(own), 500)
        nearest = search_vectors(own[sample], own, 11).scores
        exact = search_vectors(queries, own, 100)
        found = search_codes(queries, codebooks, codebooks.encode(own), 1_000).rows
        shares = [
            np.mean([len(np.intersect1d(a, b[:depth])) / 100 for a, b in zip(exact.rows, found, strict=True)])
            for depth in (200, 1_000)
        ]
        print(
            f"{'documents' if amount is None else f'made, {amount}'}: nearest other {nearest[:, 1].mean():.3f}, "
            f"10th {nearest[:, 10].mean():.3f}; queries' 1st {exact.scores[:, 0].mean():.3f}, "
            f"100th {exact.scores[:, -1].mean():.3f}; R@100 of 24 bytes at 200 {shares[0]:.3f}, 1000 {shares[1]:.3f}",
            flush=True,
        )


def main(
    documents: Positional[Path],
    out: Positional[Path | None] = None,
    count: int = 1_000_000,
    amount: float = 0.5,
    queries: Path | None = None,
    check_hardness: bool = False,
) -> None:
    """Write made vectors as fp16, or compare them with the documents."""
    corpus = unit(np.load(documents))
    if out is not None:
        np.save(out, grown(corpus, count, amount).astype(np.float16))
    if check_hardness and queries is not None:
        check(corpus, unit(np.load(queries))[:300], (0.5, 0.7, 0.85, 1.0))


if __name__ == "__main__":
    tyro.cli(main)
