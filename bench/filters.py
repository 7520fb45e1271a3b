"""What a filter costs and loses: engines beside the scan over the allowed documents, on your own vectors.

python bench/filters.py documents.npy queries.npy --books 64 --codewords 16

An attribute that has nothing to do with the vectors, one that goes with the query (documents nearest to it are allowed)
and one that goes against it (those furthest away are).
"""

import time
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import tyro
from tyro.conf import Positional

from bidr.codes.fit import fit
from bidr.index.engines.make import make_lists
from bidr.index.engines.scan import Scan

SHARES = (0.5, 0.1, 0.01, 0.001)


REPEATS = 3


def main(
    vectors: Positional[Path],
    queries: Positional[Path],
    books: int = 64,
    codewords: int = 16,
    documents: int = 192_990,
    depth: int = 1_000,
    asked: int = 200,
    engine: str = "lists",
) -> None:
    """Print a line for each kind of attribute and share of allowed documents."""
    faiss.omp_set_num_threads(1)
    corpus, questions = _unit(np.load(vectors)[:documents]), _unit(np.load(queries)[:asked])
    codebooks = fit(corpus, books, codewords)
    codes = codebooks.encode(corpus)
    found, order = make_lists(codebooks, codes)
    corpus, scan = corpus[order], Scan(found.store)
    searched = {"lists": found, "scan": scan}[engine]
    searched.threads = scan.threads = 1
    random = np.random.default_rng(0)
    near = corpus @ questions.T
    print(f"{'allowed':<18} found   ms    p99   unfiltered p99   ratio of p99")
    for share in SHARES:
        edges = np.quantile(near, [share, 1 - share], axis=0)
        kinds = {
            "at random": [random.random(len(corpus)) < share for _ in questions],
            "with": [near[:, number] >= edges[1, number] for number in range(len(questions))],
            "against": [near[:, number] <= edges[0, number] for number in range(len(questions))],
        }
        for kind, masks in kinds.items():
            packed = [np.packbits(mask, bitorder="little") for mask in masks]
            _report(f"{share:.1%} {kind}", searched, scan, questions, packed, depth)


def _report(name: str, engine: Any, scan: Scan, questions: np.ndarray, filters: list[np.ndarray], depth: int) -> None:
    """Each question with and without its filter, one right after the other: a busy moment is one for both."""
    engine.search(questions[:1], depth)
    engine.search(questions[:1], depth, allowed=filters[0])  # compiled, or read from where that is kept
    shares, plain, filtered = [], [], []
    for query, allowed in zip(questions, filters, strict=True):
        plain.append(_fastest(engine, query, depth, None))
        filtered.append(_fastest(engine, query, depth, allowed))
        found = engine.search(query[None], depth, allowed=allowed)[1][0]
        wanted = scan.search(query[None], depth, allowed=allowed)[1][0][:100]
        shares.append(np.isin(wanted[wanted >= 0], found).mean() if (wanted >= 0).any() else 1.0)
    middle, late = np.percentile(filtered, [50, 99])
    usual = np.percentile(plain, 99)
    print(f"{name:<18} {np.mean(shares):.4f}  {middle:.2f}  {late:.2f}  {usual:.2f}  {late / usual:.2f}", flush=True)


def _fastest(engine: Any, query: np.ndarray, depth: int, allowed: np.ndarray | None) -> float:
    """Milliseconds of CPU, the least of a few runs: what the search takes, not what else the machine does."""
    times = []
    for _ in range(REPEATS):
        started = time.process_time()
        engine.search(query[None], depth, allowed=allowed)
        times.append(1000 * (time.process_time() - started))
    return min(times)


def _unit(rows: np.ndarray) -> np.ndarray:
    floats = rows.astype(np.float32)
    return floats / np.linalg.norm(floats, axis=1, keepdims=True)


if __name__ == "__main__":
    tyro.cli(main)
