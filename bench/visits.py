"""Recall and cost of an IVF index by nprobe.

python bench/visits.py INDEX queries.npy --times 0.5 0.7 1 1.4 2 --candidates 500 1000
python bench/visits.py INDEX queries.npy --looked 2 4 8 0        # of more than four million documents

--times: factors of the default nprobe. --looked: blocks of 32 documents are considered in this many times nprobe lists;
0: in all (LISTS_PER_VISIT in src/bidr/index/engines/ivf.py). Complete queries on one thread with all vectors in memory:
median CPU milliseconds of the query and of its candidates, and the median elapsed time. R@100: of the exact top 100
over the stored vectors. Queries are those that bidr bench does not use by default.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tyro
from query_cost import find_exact_rows
from tyro.conf import Positional
from unit import unit

from bidr.index.engines import ivf
from bidr.index.reader import IndexReader
from bidr.search.searcher import Searcher
from bidr.search.types import QueryVectors

ANSWERS, ASKED_ELSEWHERE, WARM_UP, ROUNDS = 100, 300, 20, 3


def main(
    index: Positional[Path],
    queries: Positional[Path],
    times: tuple[float, ...] = (0.5, 0.7, 1.0, 1.4, 2.0),
    candidates: tuple[int, ...] = (1_000,),
    looked: tuple[int, ...] = (ivf.LISTS_PER_VISIT,),
    asked: int = 300,
) -> None:
    """Print a line for every setting."""
    vectors = np.load(queries)
    drawn = np.random.default_rng(0).permutation(len(vectors))[ASKED_ELSEWHERE : ASKED_ELSEWHERE + asked]
    questions = unit(vectors[np.sort(drawn)])
    with IndexReader.open(index) as reader:
        engine = reader.candidates
        if not isinstance(engine, ivf.IvfEngine):
            raise SystemExit(f"{index}: an index by {engine.name}, expected one by lists (bidr build --engine lists)")
        blocks = ivf.BLOCKS_SHARE if engine.block_centroids else 1.0
        default, exact, unlimited = (
            ivf.get_default_nprobe(engine.list_count, blocks),
            find_exact_rows(reader, questions),
            1 << 40,
        )
        scanned = "blocks" if engine.block_centroids else "whole lists"
        print(f"{reader.count:,} documents, {engine.list_count:,} lists, {scanned}")
        for within in looked:
            ivf.MANY_BLOCKS, ivf.LISTS_PER_VISIT = (ivf.MANY_BLOCKS, within) if within else (unlimited, 1)
            for factor in times:
                engine.nprobe = min(max(1, round(factor * default)), engine.list_count)
                for depth in candidates:
                    recall, costs = _measure(reader, questions, exact, depth)
                    print(
                        f"looked {within or 'everywhere':>10}  visited {engine.nprobe:>6} "
                        f"({engine.nprobe / engine.list_count:.3f})  N {depth:>5}  R@100 {recall:.4f}  {costs}",
                        flush=True,
                    )


def _measure(reader: IndexReader, questions: np.ndarray, exact: np.ndarray, depth: int) -> tuple[float, str]:
    searcher = Searcher(reader)
    results = [rows for rows, *_ in _run_queries(reader, searcher, questions, depth)]
    recall = float(np.mean([np.isin(wanted, rows).mean() for wanted, rows in zip(exact, results, strict=True)]))
    rounds = [
        [figures[1:] for figures in _run_queries(reader, searcher, questions, depth)][WARM_UP:] for _ in range(ROUNDS)
    ]
    query, candidates, elapsed = np.median(np.min(rounds, axis=0), axis=0)
    return recall, f"CPU ms {query:.2f}, candidates {candidates:.2f}, p50 {elapsed:.2f}"


def _run_queries(
    reader: IndexReader, searcher: Searcher, questions: np.ndarray, depth: int
) -> Iterator[tuple[np.ndarray, float, float, float]]:
    """Yield the results of each query, CPU ms of the query and of its candidates, and elapsed ms."""
    for query in questions:
        queries, cpu, clock = query[None], time.thread_time(), time.perf_counter()
        rows = searcher.search_vectors(QueryVectors(queries, queries), ANSWERS, depth).rows[0]
        cost, elapsed, cpu = time.thread_time() - cpu, time.perf_counter() - clock, time.thread_time()
        reader.candidates.search(queries, depth)
        yield rows, 1000 * cost, 1000 * (time.thread_time() - cpu), 1000 * elapsed


if __name__ == "__main__":
    tyro.cli(main)
