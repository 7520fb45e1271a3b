"""Blocks of 32 documents against complete inverted lists, on your own vectors.

python bench/blocks.py million.npy queries.npy --counts 200000 400000 700000 1000000
python bench/blocks.py million.npy queries.npy --counts 1000000 --bytes-per-doc 64 --candidates 300 500 700

Documents are drawn for each count and coded (OPQ, 4 bits), and two indexes with blocks are built: partitioned by codes
and by vectors. For the blocks and the complete lists of each, three tables are printed:

1. the share of the exact top 100 in the nearest blocks (for lists: the blocks that they touch), before any scan;
2. complete queries: R@100 and CPU ms of one thread, the minimum of five rounds per query, all variants in turn;
3. CPU ms for a recall: interpolated between shares, with the number of candidates that takes least.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple
from unittest import mock

import faiss
import numpy as np
import tyro
from tyro.conf import Positional
from unit import unit

from bidr.index.builder import clustering_vectors as sources
from bidr.index.builder.build import build_index
from bidr.index.engines import block_centroids
from bidr.index.engines.fast_scan_kernels import BLOCK
from bidr.index.engines.ivf import IvfEngine
from bidr.index.reader import IndexReader
from bidr.quantization.codebooks import Codebooks
from bidr.quantization.exact_search import search_vectors
from bidr.quantization.pq_training import fit_pq
from bidr.search.searcher import Searcher
from bidr.search.types import QueryVectors

SHARES = (0.03, 0.05, 0.07, 0.1, 0.14, 0.2, 0.28, 0.4)
RECALLS = (0.90, 0.93, 0.95, 0.96, 0.97, 0.98, 0.99)
ROUNDS, ANSWERS = 5, 100
By = Literal["codes", "vectors"]


class Way(NamedTuple):
    """An index, searched by blocks or by lists."""

    name: str
    searcher: Searcher
    engine: IvfEngine
    means: block_centroids.BlockCentroids | None

    def search(self, query: np.ndarray, share: float, candidates: int) -> np.ndarray:
        self.engine.block_centroids, self.engine.nprobe = self.means, max(1, round(share * self.engine.list_count))
        queries = query[None]
        return self.searcher.search_vectors(QueryVectors(queries, queries), ANSWERS, candidates).rows[0]

    def find_blocks(self, query: np.ndarray, share: float) -> np.ndarray:
        """Return the nearest blocks, a share of all; for lists the blocks that they touch."""
        count = round(share * block_centroids.count_blocks(self.engine.count))
        if self.means is not None:
            return self.means.find_nearest(query, count)
        lists, offsets = self.engine._centroids.find_nearest(query, self.engine.list_count), self.engine.offsets
        first, last = offsets[lists] // BLOCK, (offsets[lists + 1] - 1) // BLOCK
        touched = np.cumsum(last - first + 1) <= count
        return np.concatenate([np.arange(*range_) for range_ in zip(first[touched], last[touched] + 1, strict=True)])


def main(
    vectors: Positional[Path],
    queries: Positional[Path],
    counts: tuple[int, ...] = (1_000_000,),
    bytes_per_doc: int = 32,
    candidates: tuple[int, ...] = (700, 1_000, 1_500),
    by: tuple[By, ...] = ("codes", "vectors"),
    asked: int = 200,
    folder: Path | None = None,
) -> None:
    """Print three tables for each count.

    folder: where indexes are kept and reused. By default they are removed.
    """
    faiss.omp_set_num_threads(1)
    documents, questions = np.load(vectors, mmap_mode="r"), unit(np.load(queries)[:asked])
    sample = np.sort(np.random.default_rng(0).choice(len(documents), 40_000))
    codebooks = fit_pq(unit(documents[sample]), 2 * bytes_per_doc, 16)
    for count in counts:
        corpus = unit(documents[np.sort(np.random.default_rng(count).permutation(len(documents))[:count])])
        exact = search_vectors(questions, corpus, ANSWERS).rows
        print(f"\n{count:,} documents, {bytes_per_doc} bytes, {len(questions)} questions\n")
        with ExitStack() as stack:
            work_folder = (
                folder / f"{count}-{bytes_per_doc}" if folder else Path(stack.enter_context(TemporaryDirectory()))
            )
            for each in by:
                if not (work_folder / each / "CURRENT").exists():
                    _build(work_folder / each, codebooks, corpus, each)
            del corpus
            ways = [
                way
                for each in by
                for way in _make_ways(stack.enter_context(IndexReader.open(work_folder / each)), each)
            ]
            _print_shares(ways, questions, exact)
            _print_queries(ways, questions, exact, candidates)


def _build(folder: Path, codebooks: Codebooks, corpus: np.ndarray, by: By) -> None:
    # No vectors reach an agreement above 1.
    with (
        mock.patch.object(block_centroids, "MIN_BLOCKS", 1),
        mock.patch.object(sources, "MIN_AGREEMENT", 0 if by == "vectors" else 2),
    ):
        build_index(folder, codebooks=codebooks, codes=codebooks.encode(corpus), vectors=corpus, engine="lists")


def _make_ways(reader: IndexReader, by: By) -> Iterator[Way]:
    searcher, engine = Searcher(reader), reader.candidates
    assert isinstance(engine, IvfEngine)
    for name, centroids in (("lists", None), ("blocks", engine.block_centroids)):
        yield Way(f"{name} by {by}", searcher, engine, centroids)


def _print_shares(ways: list[Way], questions: np.ndarray, exact: np.ndarray) -> None:
    _print_row("of all documents", *(f"{share:.0%}" for share in SHARES))
    _print_row(*["---"] * (len(SHARES) + 1))
    for way in ways:
        positions = np.empty(way.engine.count, dtype=np.int64)
        positions[way.searcher.reader.rows_of(np.arange(way.engine.count))] = np.arange(way.engine.count)
        blocks = positions[exact] // BLOCK
        pairs = list(zip(questions, blocks, strict=True))
        shares = [
            np.mean([np.isin(best, way.find_blocks(query, share)).mean() for query, best in pairs]) for share in SHARES
        ]
        _print_row(way.name, *(f"{share:.3f}" for share in shares))
    print(flush=True)


def _print_queries(ways: list[Way], questions: np.ndarray, exact: np.ndarray, candidates: tuple[int, ...]) -> None:
    for way in ways:  # load everything into memory
        for query in questions:
            way.search(query, 2 * max(SHARES), 2 * max(candidates))
    fastest: dict[tuple[str, float, int], np.ndarray] = {}
    recalls: dict[tuple[str, float, int], float] = {}
    for _ in range(ROUNDS):
        for share in SHARES:
            for depth in candidates:
                for way in ways:
                    setting = way.name, share, depth
                    recalls[setting], times = _run_queries(way, questions, exact, share, depth)
                    fastest[setting] = np.minimum(times, fastest.get(setting, np.inf))
    results = {setting: (recalls[setting], float(times.mean())) for setting, times in fastest.items()}
    _print_row("visited", "N", *(f"{way.name}: R@100, ms" for way in ways))
    _print_row(*["---"] * (len(ways) + 2))
    for share in SHARES:
        for depth in candidates:
            cells = [results[way.name, share, depth] for way in ways]
            _print_row(f"{share:.0%}", f"{depth:,}", *(f"{recall:.3f}, {times:.2f}" for recall, times in cells))
    print()
    _print_row("R@100", *(f"{way.name}: ms" for way in ways))
    _print_row(*["---"] * (len(ways) + 1))
    for recall in RECALLS:
        milliseconds = [min(_interpolate(results, way.name, depth, recall) for depth in candidates) for way in ways]
        _print_row(f"{recall:.2f}", *(f"{times:.2f}" if np.isfinite(times) else "" for times in milliseconds))
    print(flush=True)


def _run_queries(
    way: Way, questions: np.ndarray, exact: np.ndarray, share: float, depth: int
) -> tuple[float, np.ndarray]:
    """Return R@100 and the milliseconds of each query."""
    shares, times = [], []
    for query, best in zip(questions, exact, strict=True):
        started = time.thread_time()
        rows = way.search(query, share, depth)
        times.append(1000 * (time.thread_time() - started))
        shares.append(np.isin(best, rows).mean())
    return float(np.mean(shares)), np.array(times)


def _interpolate(
    results: dict[tuple[str, float, int], tuple[float, float]], name: str, depth: int, recall: float
) -> float:
    """Interpolate the milliseconds for a recall at this depth; infinite outside the measured range."""
    reached, times = np.array([results[name, share, depth] for share in SHARES]).T
    if not reached[0] <= recall <= reached[-1]:
        return np.inf
    return float(np.interp(recall, reached, times))


def _print_row(*cells: Any) -> None:
    print("|", " | ".join(map(str, cells)), "|", flush=True)


if __name__ == "__main__":
    tyro.cli(main)
