"""What blocks of 32 documents bring to inverted lists, on your own vectors.

python bench/blocks.py million.npy queries.npy --counts 200000 400000 700000 1000000
python bench/blocks.py million.npy queries.npy --counts 1000000 --bytes-per-doc 64 --candidates 300 500 700

Documents are drawn for each count, coded (OPQ, 4 bits), and an index is built of them twice, with blocks at any size:
divided by what codes say, and by vectors. Of each, and of its whole lists, printed are

1. what stands there: the share of the exact top 100 in the nearest blocks (or lists, of which the blocks that they
   touch count), whatever codes find of it;
2. whole queries: R@100 and CPU ms of one thread, of each question the least of five rounds, all ways in turn;
3. from these the CPU ms of a recall: between shares in proportion, with whatever number of candidates takes least.
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

from bidr.index.builder import cluster_input as sources
from bidr.index.builder.build import build_index
from bidr.index.engines import block_centroids as means
from bidr.index.engines.ivf import IvfEngine
from bidr.index.engines.pshufb import BLOCK
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
    """An index, looked into by blocks or by lists."""

    name: str
    searcher: Searcher
    engine: IvfEngine
    means: means.BlockCentroids | None

    def search(self, query: np.ndarray, share: float, candidates: int) -> np.ndarray:
        self.engine.block_centroids, self.engine.nprobe = self.means, max(1, round(share * self.engine.list_count))
        asked = query[None]
        return self.searcher.search_vectors(QueryVectors(asked, asked), ANSWERS, candidates).rows[0]

    def near(self, query: np.ndarray, share: float) -> np.ndarray:
        """The nearest blocks, so many of all; of lists those that they touch."""
        wanted = round(share * means.count_blocks(self.engine.count))
        if self.means is not None:
            return self.means.find_nearest(query, wanted)
        near, offsets = self.engine._centroids.find_nearest(query, self.engine.list_count), self.engine.offsets
        first, last = offsets[near] // BLOCK, (offsets[near + 1] - 1) // BLOCK
        taken = np.cumsum(last - first + 1) <= wanted
        return np.concatenate([np.arange(*each) for each in zip(first[taken], last[taken] + 1, strict=True)])


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

    folder: where the indexes are left; those that are there are not built again. By default they are removed.
    """
    faiss.omp_set_num_threads(1)
    documents, questions = np.load(vectors, mmap_mode="r"), unit(np.load(queries)[:asked])
    some = np.sort(np.random.default_rng(0).choice(len(documents), 40_000))
    codebooks = fit_pq(unit(documents[some]), 2 * bytes_per_doc, 16)
    for count in counts:
        corpus = unit(documents[np.sort(np.random.default_rng(count).permutation(len(documents))[:count])])
        exact = search_vectors(questions, corpus, ANSWERS).rows
        print(f"\n{count:,} documents, {bytes_per_doc} bytes, {len(questions)} questions\n")
        with ExitStack() as stack:
            kept = folder / f"{count}-{bytes_per_doc}" if folder else Path(stack.enter_context(TemporaryDirectory()))
            for each in by:
                if not (kept / each / "CURRENT").exists():
                    _build(kept / each, codebooks, corpus, each)
            del corpus
            ways = [way for each in by for way in _ways(stack.enter_context(IndexReader.open(kept / each)), each)]
            _print_standing(ways, questions, exact)
            _print_queries(ways, questions, exact, candidates)


def _build(folder: Path, codebooks: Codebooks, corpus: np.ndarray, by: By) -> None:
    # A share above 1 is one that no vectors reach.
    with (
        mock.patch.object(means, "MIN_BLOCKS", 1),
        mock.patch.object(sources, "MIN_AGREEMENT", 0 if by == "vectors" else 2),
    ):
        build_index(folder, codebooks=codebooks, codes=codebooks.encode(corpus), vectors=corpus, engine="lists")


def _ways(reader: IndexReader, by: By) -> Iterator[Way]:
    searcher, engine = Searcher(reader), reader.candidates
    assert isinstance(engine, IvfEngine)
    for name, own in (("lists", None), ("blocks", engine.block_centroids)):
        yield Way(f"{name} by {by}", searcher, engine, own)


def _print_standing(ways: list[Way], questions: np.ndarray, exact: np.ndarray) -> None:
    _row("of all documents", *(f"{share:.0%}" for share in SHARES))
    _row(*["---"] * (len(SHARES) + 1))
    for way in ways:
        places = np.empty(way.engine.count, dtype=np.int64)
        places[way.searcher.reader.rows_of(np.arange(way.engine.count))] = np.arange(way.engine.count)
        there = places[exact] // BLOCK
        pairs = list(zip(questions, there, strict=True))
        found = [np.mean([np.isin(own, way.near(query, share)).mean() for query, own in pairs]) for share in SHARES]
        _row(way.name, *(f"{share:.3f}" for share in found))
    print(flush=True)


def _print_queries(ways: list[Way], questions: np.ndarray, exact: np.ndarray, candidates: tuple[int, ...]) -> None:
    for way in ways:  # everything is read once
        for query in questions:
            way.search(query, 2 * max(SHARES), 2 * max(candidates))
    least: dict[tuple[str, float, int], np.ndarray] = {}
    recalls: dict[tuple[str, float, int], float] = {}
    for _ in range(ROUNDS):
        for share in SHARES:
            for many in candidates:
                for way in ways:
                    setting = way.name, share, many
                    recalls[setting], each = _asked(way, questions, exact, share, many)
                    least[setting] = np.minimum(each, least.get(setting, np.inf))
    taken = {setting: (recalls[setting], float(each.mean())) for setting, each in least.items()}
    _row("visited", "N", *(f"{way.name}: R@100, ms" for way in ways))
    _row(*["---"] * (len(ways) + 2))
    for share in SHARES:
        for many in candidates:
            both = [taken[way.name, share, many] for way in ways]
            _row(f"{share:.0%}", f"{many:,}", *(f"{recall:.3f}, {each:.2f}" for recall, each in both))
    print()
    _row("R@100", *(f"{way.name}: ms" for way in ways))
    _row(*["---"] * (len(ways) + 1))
    for recall in RECALLS:
        best = [min(_between(taken, way.name, many, recall) for many in candidates) for way in ways]
        _row(f"{recall:.2f}", *(f"{each:.2f}" if np.isfinite(each) else "" for each in best))
    print(flush=True)


def _asked(way: Way, questions: np.ndarray, exact: np.ndarray, share: float, many: int) -> tuple[float, np.ndarray]:
    """R@100, and the milliseconds of each question."""
    shares, taken = [], []
    for query, wanted in zip(questions, exact, strict=True):
        started = time.thread_time()
        found = way.search(query, share, many)
        taken.append(1000 * (time.thread_time() - started))
        shares.append(np.isin(wanted, found).mean())
    return float(np.mean(shares)), np.array(taken)


def _between(taken: dict[tuple[str, float, int], tuple[float, float]], name: str, many: int, recall: float) -> float:
    """Milliseconds of a recall with so many candidates; infinite where no share that was tried is so little or much."""
    reached, each = np.array([taken[name, share, many] for share in SHARES]).T
    if not reached[0] <= recall <= reached[-1]:
        return np.inf
    return float(np.interp(recall, reached, each))


def _row(*cells: Any) -> None:
    print("|", " | ".join(map(str, cells)), "|", flush=True)


if __name__ == "__main__":
    tyro.cli(main)
