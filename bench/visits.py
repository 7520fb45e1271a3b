"""How much an index by lists finds, and what it costs, by the share of its documents that a query is compared with.

python bench/visits.py INDEX queries.npy --times 0.5 0.7 1 1.4 2 --candidates 500 1000
python bench/visits.py INDEX queries.npy --looked 2 4 8 0        # of more than four million documents

--times: so many times the lists that a query visits by default. --looked: blocks of 32 documents are looked for in so
many times as many lists as are visited; 0: in all (src/bidr/index/engines/lists.py). Whole queries on one thread, all
vectors read before: the median of CPU milliseconds, those of the candidates alone, the median of time passed. R@100: of
the exact top 100 over the stored vectors. Questions are those that bidr bench, by default, does not ask.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tyro
from query_cost import exact_rows
from tyro.conf import Positional
from unit import unit

from bidr.index.engines import ivf as lists
from bidr.index.reader import IndexReader
from bidr.search.searcher import Searcher
from bidr.search.types import QueryVectors

ANSWERS, ASKED_ELSEWHERE, WARM_UP, ROUNDS = 100, 300, 20, 3


def main(
    index: Positional[Path],
    queries: Positional[Path],
    times: tuple[float, ...] = (0.5, 0.7, 1.0, 1.4, 2.0),
    candidates: tuple[int, ...] = (1_000,),
    looked: tuple[int, ...] = (lists.LISTS_PER_VISIT,),
    asked: int = 300,
) -> None:
    """Print a line for every setting."""
    given = np.load(queries)
    others = np.random.default_rng(0).permutation(len(given))[ASKED_ELSEWHERE : ASKED_ELSEWHERE + asked]
    questions = unit(given[np.sort(others)])
    with IndexReader.open(index) as reader:
        engine = reader.candidates
        if not isinstance(engine, lists.IvfEngine):
            raise SystemExit(f"{index}: an index by {engine.name}, expected one by lists (bidr build --engine lists)")
        blocks = lists.BLOCKS_SHARE if engine.block_centroids else 1.0
        usual, exact, everywhere = (
            lists.get_default_nprobe(engine.list_count, blocks),
            exact_rows(reader, questions),
            1 << 40,
        )
        scanned = "blocks" if engine.block_centroids else "whole lists"
        print(f"{reader.count:,} documents, {engine.list_count:,} lists, {scanned}")
        for within in looked:
            lists.MANY_BLOCKS, lists.LISTS_PER_VISIT = (lists.MANY_BLOCKS, within) if within else (everywhere, 1)
            for many in times:
                engine.nprobe = min(max(1, round(many * usual)), engine.list_count)
                for depth in candidates:
                    recall, costs = _measured(reader, questions, exact, depth)
                    print(
                        f"looked {within or 'everywhere':>10}  visited {engine.nprobe:>6} "
                        f"({engine.nprobe / engine.list_count:.3f})  N {depth:>5}  R@100 {recall:.4f}  {costs}",
                        flush=True,
                    )


def _measured(reader: IndexReader, questions: np.ndarray, exact: np.ndarray, depth: int) -> tuple[float, str]:
    searcher = Searcher(reader)
    found = [rows for rows, *_ in _asked(reader, searcher, questions, depth)]
    recall = float(np.mean([np.isin(wanted, rows).mean() for wanted, rows in zip(exact, found, strict=True)]))
    rounds = [[taken[1:] for taken in _asked(reader, searcher, questions, depth)][WARM_UP:] for _ in range(ROUNDS)]
    whole, alone, passed = np.median(np.min(rounds, axis=0), axis=0)
    return recall, f"CPU ms {whole:.2f}, candidates {alone:.2f}, p50 {passed:.2f}"


def _asked(
    reader: IndexReader, searcher: Searcher, questions: np.ndarray, depth: int
) -> Iterator[tuple[np.ndarray, float, float, float]]:
    """Of each question its answers, and milliseconds of CPU, of CPU for its candidates alone, and passed."""
    for query in questions:
        asked, cpu, clock = query[None], time.thread_time(), time.perf_counter()
        rows = searcher.search_vectors(QueryVectors(asked, asked), ANSWERS, depth).rows[0]
        whole, passed, cpu = time.thread_time() - cpu, time.perf_counter() - clock, time.thread_time()
        reader.candidates.search(asked, depth)
        yield rows, 1000 * whole, 1000 * (time.thread_time() - cpu), 1000 * passed


if __name__ == "__main__":
    tyro.cli(main)
