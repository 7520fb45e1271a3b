"""CPU time of a warm query against Faiss' fast scan of the same codes followed by the same reads.

python bench/query_cost.py INDEX queries.npy --candidates 600 1000 1500

INDEX: built with 4-bit codes (`bidr build --vectors documents.npy --out INDEX`). All its vectors are loaded first. The
variants take turns in rounds of all queries, so that other load affects all of them. Medians in CPU milliseconds of one
thread; p50 and p99 of the complete query are elapsed times. R@100: of the exact top 100 over the stored vectors.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import tyro
from tyro.conf import Positional
from unit import unit

from bidr.index.reader import IndexReader
from bidr.search.searcher import Searcher
from bidr.search.types import QueryVectors

ANSWERS = 100
AT_ONCE = 16_384
ROUNDS, WARM_UP = 5, 20
Way = Callable[[np.ndarray, int], Any]


def main(
    index: Positional[Path],
    queries: Positional[Path],
    candidates: tuple[int, ...] = (100, 600, 1_000, 1_500),
    asked: int = 300,
    visits: int | None = None,
) -> None:
    """Print a line for every number of candidates; `visits`: nprobe of an IVF index."""
    faiss.omp_set_num_threads(1)
    vectors = np.load(queries)
    drawn = np.sort(np.random.default_rng(0).permutation(len(vectors))[:asked])  # the first queries may be similar
    questions = unit(vectors[drawn])
    with IndexReader.open(index, ef=visits) as reader:
        exact, ways = find_exact_rows(reader, questions), _make_ways(reader)
        for depth in candidates:
            results, elapsed = _run_queries(ways["whole"], questions, depth)
            recall = np.mean([np.isin(best, rows).mean() for best, rows in zip(exact, results, strict=True)])
            taken = _measure(ways, questions, depth)
            medians = "  ".join(f"{name} {np.median(times):.3f}" for name, times in taken.items())
            ratio = np.median(taken["faiss, ranked"]) / np.median(taken["whole"])
            p50, p99 = np.percentile(elapsed, (50, 99))
            print(
                f"{depth:>6}  R@100 {recall:.4f}  {medians}  p50 {p50:.2f} p99 {p99:.2f}  QPS of Faiss {ratio:.2f}",
                flush=True,
            )


def find_exact_rows(reader: IndexReader, questions: np.ndarray) -> np.ndarray:
    """Find the exact top 100; reads every vector, so that all are in memory and verified afterwards."""
    scores = np.full((len(questions), ANSWERS), -np.inf, dtype=np.float32)
    places = np.full(scores.shape, -1)
    for start in range(0, reader.count, AT_ONCE):
        batch = np.arange(start, min(start + AT_ONCE, reader.count))
        all_scores = np.hstack([scores, questions @ reader.vectors.read(batch).T])
        all_places = np.hstack([places, np.broadcast_to(batch, (len(questions), len(batch)))])
        best = np.argpartition(-all_scores, ANSWERS, axis=1)[:, :ANSWERS]
        scores, places = np.take_along_axis(all_scores, best, axis=1), np.take_along_axis(all_places, best, axis=1)
    return reader.rows_of(places)


def _run_queries(whole: Way, questions: np.ndarray, depth: int) -> tuple[list[np.ndarray], list[float]]:
    """Return results and elapsed milliseconds of each query."""
    results, elapsed = [], []
    for query in questions:
        started = time.perf_counter()
        results.append(whole(query, depth).rows[0])
        elapsed.append(1000 * (time.perf_counter() - started))
    return results, elapsed


def _make_ways(reader: IndexReader) -> dict[str, Way]:
    searcher, engine, vectors, scan = Searcher(reader), reader.candidates, reader.vectors, _build_fast_scan(reader)

    def whole(query: np.ndarray, depth: int) -> Any:
        queries = query[None]
        return searcher.search_vectors(QueryVectors(queries, queries), ANSWERS, depth)

    def ranked(query: np.ndarray, depth: int) -> Any:
        rows = scan.search(query[None], depth)[1][0]
        return rows[np.argsort(-vectors.score(rows, query), kind="stable")[:ANSWERS]]

    return {
        "whole": whole,
        "faiss, ranked": ranked,
        "candidates": lambda query, depth: engine.search(query[None], depth),
        "faiss": lambda query, depth: scan.search(query[None], depth),
    }


def _build_fast_scan(reader: IndexReader) -> Any:
    """Build a Faiss fast scan of the index's codes, in index order; it rotates queries itself, as bidr does."""
    codebooks, codes = reader.codebooks, reader.candidates.unpack_codes()
    inner = faiss.IndexPQFastScan(codebooks.dim, codebooks.books, 4, faiss.METRIC_INNER_PRODUCT)
    faiss.copy_array_to_vector(np.ascontiguousarray(codebooks.centroids).ravel(), inner.pq.centroids)
    inner.is_trained = True
    for start in range(0, len(codes), AT_ONCE):
        inner.add(codebooks.decode(codes[start : start + AT_ONCE]))
    rotation = faiss.LinearTransform(codebooks.dim, codebooks.dim, False)
    faiss.copy_array_to_vector(codebooks.rotation.astype(np.float32).ravel(), rotation.A)
    rotation.is_trained = True
    return faiss.IndexPreTransform(rotation, inner)


def _measure(ways: dict[str, Way], questions: np.ndarray, depth: int) -> dict[str, list[float]]:
    """Return CPU milliseconds of each query, without the first WARM_UP queries of every round."""
    results: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, search in ways.items():
            times = []
            for query in questions:
                started = time.thread_time()
                search(query, depth)
                times.append(1000 * (time.thread_time() - started))
            results[name] += times[WARM_UP:]
    return results


if __name__ == "__main__":
    tyro.cli(main)
