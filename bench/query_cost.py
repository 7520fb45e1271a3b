"""CPU time of a warm query beside Faiss' fast scan over the same codes with the same reads behind it.

python bench/query_cost.py INDEX queries.npy --candidates 600 1000 1500

INDEX: built with 4-bit codes (`bidr build --vectors documents.npy --out INDEX`). All its vectors are read once before.
The ways take turns, some rounds of all queries each, so that what else the machine does falls on all of them. Medians,
in milliseconds of CPU of one thread; p50 and p99 of the whole query are of time passed. R@100: the share of the exact
top 100 over the stored vectors that the answers hold.
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
    """Print a line for every number of candidates; `visits`: how many lists, where the index has lists."""
    faiss.omp_set_num_threads(1)
    given = np.load(queries)
    drawn = np.sort(np.random.default_rng(0).permutation(len(given))[:asked])  # the first ones may be of one kind
    questions = unit(given[drawn])
    with IndexReader.open(index, ef=visits) as reader:
        exact, ways = exact_rows(reader, questions), _ways(reader)
        for depth in candidates:
            found, passed = _asked(ways["whole"], questions, depth)
            recall = np.mean([np.isin(wanted, rows).mean() for wanted, rows in zip(exact, found, strict=True)])
            taken = _measured(ways, questions, depth)
            shown = "  ".join(f"{name} {np.median(times):.3f}" for name, times in taken.items())
            ratio = np.median(taken["faiss, ranked"]) / np.median(taken["whole"])
            p50, p99 = np.percentile(passed, (50, 99))
            print(
                f"{depth:>6}  R@100 {recall:.4f}  {shown}  p50 {p50:.2f} p99 {p99:.2f}  QPS of Faiss {ratio:.2f}",
                flush=True,
            )


def exact_rows(reader: IndexReader, questions: np.ndarray) -> np.ndarray:
    """Rows of the exact answers; reads every vector, so that all are in memory and checked afterwards."""
    scores = np.full((len(questions), ANSWERS), -np.inf, dtype=np.float32)
    places = np.full(scores.shape, -1)
    for start in range(0, reader.count, AT_ONCE):
        here = np.arange(start, min(start + AT_ONCE, reader.count))
        every = np.hstack([scores, questions @ reader.vectors.read(here).T])
        named = np.hstack([places, np.broadcast_to(here, (len(questions), len(here)))])
        best = np.argpartition(-every, ANSWERS, axis=1)[:, :ANSWERS]
        scores, places = np.take_along_axis(every, best, axis=1), np.take_along_axis(named, best, axis=1)
    return reader.rows_of(places)


def _asked(whole: Way, questions: np.ndarray, depth: int) -> tuple[list[np.ndarray], list[float]]:
    """Answers, and the milliseconds that passed until each."""
    found, passed = [], []
    for query in questions:
        started = time.perf_counter()
        found.append(whole(query, depth).rows[0])
        passed.append(1000 * (time.perf_counter() - started))
    return found, passed


def _ways(reader: IndexReader) -> dict[str, Way]:
    searcher, engine, vectors, scan = Searcher(reader), reader.candidates, reader.vectors, _fast_scan(reader)

    def whole(query: np.ndarray, depth: int) -> Any:
        asked = query[None]
        return searcher.search_vectors(QueryVectors(asked, asked), ANSWERS, depth)

    def ranked(query: np.ndarray, depth: int) -> Any:
        found = scan.search(query[None], depth)[1][0]
        return found[np.argsort(-vectors.score(found, query), kind="stable")[:ANSWERS]]

    return {
        "whole": whole,
        "faiss, ranked": ranked,
        "candidates": lambda query, depth: engine.search(query[None], depth),
        "faiss": lambda query, depth: scan.search(query[None], depth),
    }


def _fast_scan(reader: IndexReader) -> Any:
    """The codes of the index in Faiss' own layout, by place; it rotates queries itself, as bidr does."""
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


def _measured(ways: dict[str, Way], questions: np.ndarray, depth: int) -> dict[str, list[float]]:
    """CPU milliseconds of each query; of every round of a way the first queries do not count."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            times = []
            for query in questions:
                started = time.thread_time()
                way(query, depth)
                times.append(1000 * (time.thread_time() - started))
            taken[name] += times[WARM_UP:]
    return taken


if __name__ == "__main__":
    tyro.cli(main)
