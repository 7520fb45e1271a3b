"""Cost and recall of filters on your own vectors: engines against a scan, searches against exact search.

python bench/filters.py documents.npy queries.npy --books 64 --codewords 16 --engine scan
python bench/filters.py documents.npy queries.npy --books 16 --codewords 256 --engine hnsw --as-of 1000000
python bench/filters.py INDEX queries.npy --depth 100 1000    # only the engine of an index

Filters are independent of the query (a random number), correlated with it or anticorrelated: clusters of documents
nearest to the query, or furthest from it, until they contain the share. The engine is also measured with exactly the
documents nearest to the query, or furthest from it, which no attribute selects. The searcher has an index of its own.
Every query has its own filter: new (the column is read), and repeated (the matching documents are cached). Recall and
time are measured with the same number of candidates, a table for each `--depth`.

Queries are drawn at random: 300 to choose settings by (`--dev`), and others to report.

A graph over so few documents would be scanned, as that is faster; `--as-of` makes it choose as if it had as many.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import faiss
import numpy as np
import tyro
from tyro.conf import Positional
from unit import unit

from bidr.data.types import Document
from bidr.index.builder.build import build_index
from bidr.index.builder.coarse_clustering import cluster_documents
from bidr.index.engines.flat import FlatEngine
from bidr.index.engines.graph.engine import GraphEngine
from bidr.index.live.live_reader import LiveIndex
from bidr.index.live.view import LiveView
from bidr.index.reader import IndexReader
from bidr.quantization.codebooks import Codebooks
from bidr.quantization.pq_training import fit_pq
from bidr.search.searcher import Searcher
from bidr.search.types import QueryVectors

SHARES = (0.5, 0.1, 0.01, 0.001)
KINDS = ("at random", "with", "against")
EXTREMES = ("nearest", "furthest")
REPEATS, DRAWN = 3, 1_000_000
# Thresholds: recall of exact filtered search, and p99 relative to that of the same queries without a filter.
RECALL, TIMES = 0.99, 3.0
# Numbers of clusters, by share: as many values as a typical attribute has.
COARSE, FINE = 20, 1_000
DEV, AT_ONCE = 300, 20_000


class CorpusData(NamedTuple):
    """Unit vectors, their codes, and inner products of all documents with all queries."""

    corpus: np.ndarray
    questions: np.ndarray
    codebooks: Codebooks
    codes: np.ndarray
    scores: np.ndarray
    k: int

    def find_exact(self, question: int, mask: np.ndarray) -> np.ndarray:
        """Return the exact top k of the allowed documents."""
        allowed = np.flatnonzero(mask)
        return allowed[select_top(self.scores[allowed, question], self.k)]


def main(
    vectors: Positional[Path],
    queries: Positional[Path],
    books: int = 64,
    codewords: int = 16,
    documents: int = 192_990,
    depth: tuple[int, ...] = (1_000, 2_000),
    k: int = 100,
    asked: int = 200,
    engine: Literal["scan", "lists", "hnsw"] = "lists",
    as_of: int | None = None,
    work: Path | None = None,
    dev: bool = False,
) -> None:
    """Print a line for each kind of attribute and share of allowed documents.

    vectors: or the folder of an index, of which only the engine is measured.
    k: number of results. as_of: documents that a graph simulates. work: where the index is kept.
    dev: use the queries for choosing settings.
    """
    faiss.omp_set_num_threads(1)
    questions = draw_queries(np.load(queries), asked, dev)
    if vectors.is_dir():
        with IndexReader.open(vectors) as reader:
            scores, known = (
                score_vectors(reader, questions),
                make_attributes(reader.codebooks, reader.candidates.unpack_codes()),
            )
            for candidates in depth:
                print_engine(reader.candidates, scores, known, questions, candidates, k)
        return
    corpus = unit(np.load(vectors)[:documents])
    codebooks = fit_pq(corpus, books, codewords)
    corpus_data = CorpusData(corpus, questions, codebooks, codebooks.encode(corpus), corpus @ questions.T, k)
    known = make_attributes(codebooks, corpus_data.codes)
    with tempfile.TemporaryDirectory() as folder:
        view = build(corpus_data, known, engine, work or Path(folder) / "index")
        reader, searcher = view.segments[0].reader, Searcher(view)
        if isinstance(reader.candidates, GraphEngine):
            reader.candidates.simulated_count = as_of
        rows = np.arange(len(corpus)) if reader.order is None else reader.order
        print_engine(reader.candidates, corpus_data.scores[rows], known.reorder(rows), questions, depth[0], k)
        for candidates in depth:
            print_searcher(corpus_data, known, searcher, candidates)


def draw_queries(queries: np.ndarray, asked: int, dev: bool) -> np.ndarray:
    order = np.random.default_rng(0).permutation(len(queries))
    return unit(queries[(order[:DEV] if dev else order[DEV:])[:asked]])


def print_engine(
    engine: Any,
    scores_by_query: np.ndarray,
    attributes_by_position: "Attributes",
    questions: np.ndarray,
    depth: int,
    k: int,
) -> None:
    """Print the engine's recall of the scan's top k and of the exact top k of the allowed documents, and its times.

    scores_by_query: (positions, queries); attributes_by_position: in index order.
    """
    engine.threads = 1
    scan, random = FlatEngine(engine.store), np.random.default_rng(0)
    ways = [
        (select_top(scores_by_query[:, at], k), engine.search(query[None], depth)[1])
        for at, query in enumerate(questions)
    ]
    unfiltered = np.mean([compute_recall(*way) for way in ways])
    print(
        f"\n{engine.name} alone, {depth:,} candidates: of the exact top {k} {unfiltered:.4f} are found without a filter"
    )
    print(f"{'engine, allowed':<18} of scan's  of exact  ms    p99   unfiltered p99   ratio of p99")
    for share in SHARES:
        for kind in KINDS + EXTREMES:
            masks, shares, exact = [], [], []
            for number, query in enumerate(questions):
                scores = scores_by_query[:, number]
                mask = (
                    attributes_by_position.draw_filter(kind, share, query, random)[1]
                    if kind in KINDS
                    else select_extreme(scores, share, kind)
                )
                masks.append(np.packbits(mask, bitorder="little"))
                rows = engine.search(query[None], depth, allowed=masks[-1])[1][0]
                shares.append(compute_recall(scan.search(query[None], depth, allowed=masks[-1])[1][0][:k], rows))
                exact.append(compute_recall(select_top(np.where(mask, scores, -np.inf), min(k, int(mask.sum()))), rows))
            plain = time_searches([partial(engine.search, query[None], depth) for query in questions])
            pairs = zip(questions, masks, strict=True)
            filtered = time_searches(
                [partial(engine.search, query[None], depth, allowed=mask) for query, mask in pairs]
            )
            recalls = f"{np.mean(shares):.4f}  {np.mean(exact):.4f}"
            print(f"{share:.1%} {kind:<11} {recalls}  {format_times(filtered, plain)}", flush=True)


def select_extreme(scores: np.ndarray, share: float, kind: str) -> np.ndarray:
    """Select the documents nearest to a query, or furthest from it."""
    return scores >= np.quantile(scores, 1 - share) if kind == "nearest" else scores <= np.quantile(scores, share)


def select_top(scores: np.ndarray, k: int) -> np.ndarray:
    return np.argpartition(-scores, k)[:k] if k < len(scores) else np.arange(len(scores))


def score_vectors(reader: IndexReader, questions: np.ndarray) -> np.ndarray:
    """Compute scores of all vectors and queries, (positions, queries)."""
    scores = np.empty((reader.count, len(questions)), dtype=np.float32)
    for start in range(0, reader.count, AT_ONCE):
        places = np.arange(start, min(start + AT_ONCE, reader.count))
        scores[places] = reader.vectors.read(places) @ questions.T
    return scores


def build(corpus_data: CorpusData, known_attributes: "Attributes", engine: str, folder: Path) -> LiveView:
    arrays = {"codebooks": corpus_data.codebooks, "codes": corpus_data.codes, "vectors": corpus_data.corpus}
    build_index(folder, **arrays, documents=known_attributes.documents(), engine=engine)
    return LiveIndex.open(folder).latest()


def print_searcher(corpus_data: CorpusData, known_attributes: "Attributes", searcher: Searcher, depth: int) -> None:
    """Print the searcher's recall of the exact top k of the allowed documents, and its times."""
    all_rows, numbers = np.ones(len(corpus_data.corpus), dtype=bool), range(len(corpus_data.questions))
    unfiltered = np.mean([measure_recall(searcher, corpus_data, number, all_rows, None, depth) for number in numbers])
    print(f"\n{depth:,} candidates: of the exact top {corpus_data.k} {unfiltered:.4f} are found without a filter")
    print(f"{'searcher, allowed':<18} really  found     again: ms, p99, unfiltered, ratio;  first: the same")
    random, passed = np.random.default_rng(1), []
    for share in SHARES:
        for kind in KINDS:
            filters, masks = zip(
                *(known_attributes.draw_filter(kind, share, query, random) for query in corpus_data.questions),
                strict=True,
            )
            shares = [
                measure_recall(searcher, corpus_data, number, masks[number], filters[number], depth)
                for number in numbers
            ]
            really = [mask.mean() for mask in masks]
            plain, repeated, first = (
                time_searches(
                    [
                        make_search(searcher, *one, corpus_data.k, depth)
                        for one in zip(corpus_data.questions, by, strict=True)
                    ],
                    before,
                )
                for by, before in (
                    ([None] * len(filters), None),
                    (filters, None),
                    (filters, partial(clear_filter_cache, searcher)),
                )
            )
            passed.append(
                (np.mean(shares) >= RECALL, *(compute_p99_ratio(times, plain) <= TIMES for times in (repeated, first)))
            )
            times = f"{format_times(repeated, plain)}    {format_times(first, plain)}"
            print(f"{share:.1%} {kind:<11} {np.mean(really):.4f}  {np.mean(shares):.4f}  {times}", flush=True)
    recalled, repeated_count, new_count = np.sum(passed, axis=0)
    print(f"of {len(passed)}: {recalled} reach {RECALL},", end=" ")
    print(f"{repeated_count} take at most {TIMES:g} times when repeated, {new_count} when new")


def measure_recall(
    searcher: Searcher, corpus_data: CorpusData, number: int, mask: np.ndarray, filter_: Any, depth: int
) -> float:
    query, expected = corpus_data.questions[number][None], corpus_data.find_exact(number, mask)
    return compute_recall(
        expected, searcher.search_vectors(QueryVectors(query, query), corpus_data.k, depth, filter=filter_).rows[0]
    )


class Attributes(NamedTuple):
    """Attributes of the documents: a random number and the clusters that contain them."""

    drawn: np.ndarray
    labels: dict[str, np.ndarray]
    centroids: dict[str, np.ndarray]

    def reorder(self, rows: np.ndarray) -> "Attributes":
        """Return the attributes of `rows` in their order."""
        return self._replace(drawn=self.drawn[rows], labels={name: of[rows] for name, of in self.labels.items()})

    def documents(self) -> Iterator[Document]:
        for row, number in enumerate(self.drawn.tolist()):
            values = {name: int(of[row]) for name, of in self.labels.items()}
            yield Document(f"d{row}", "", "", {"drawn": number, **values})

    def draw_filter(
        self, kind: str, share: float, query: np.ndarray, random: np.random.Generator
    ) -> tuple[Any, np.ndarray]:
        """Return a filter for a query and the mask of its rows."""
        if kind == "at random":
            wide = round(DRAWN * share)
            low = int(random.integers(0, DRAWN - wide))
            return {"drawn": {"gte": low, "lt": low + wide}}, (self.drawn >= low) & (self.drawn < low + wide)
        name = "coarse" if share >= 1 / COARSE else "fine"
        scores = self.centroids[name] @ query * (1 if kind == "with" else -1)
        chosen = select_clusters(scores, self.labels[name], share)
        return {name: {"any": chosen.tolist()}}, np.isin(self.labels[name], chosen)


def make_attributes(codebooks: Codebooks, codes: np.ndarray) -> Attributes:
    random_numbers = np.random.default_rng(0).integers(0, DRAWN, len(codes))
    division = cluster_documents(codebooks, codes, min(FINE, len(codes) // 50))
    fine = np.empty(len(codes), dtype=np.int64)
    fine[division.order] = np.repeat(np.arange(len(division.centroids)), np.diff(division.offsets))
    coarse = faiss.Kmeans(division.centroids.shape[1], COARSE, niter=20, seed=0, min_points_per_centroid=1)
    coarse.train(division.centroids)
    coarse_labels = coarse.index.search(division.centroids, 1)[1][:, 0]
    centroids = {"fine": division.centroids, "coarse": coarse.centroids}
    return Attributes(random_numbers, {"fine": fine, "coarse": coarse_labels[fine]}, centroids)


def select_clusters(scores: np.ndarray, labels: np.ndarray, share: float) -> np.ndarray:
    """Select the first clusters that together contain the share, at least one."""
    order = np.argsort(-scores)
    sizes = np.cumsum(np.bincount(labels, minlength=len(scores))[order])
    return order[: int(np.searchsorted(sizes, share * len(labels))) + 1]


def make_search(searcher: Searcher, query: np.ndarray, filter_: Any, k: int, depth: int) -> Callable[[], Any]:
    return partial(searcher.search_vectors, QueryVectors(query[None], query[None]), k, depth, filter=filter_)


def clear_filter_cache(searcher: Searcher) -> None:
    """Clear the cached rows of filters."""
    for part in searcher.reader.latest().segments:
        part.reader.documents.columns._passing.clear()


def time_searches(searches: list[Callable[[], Any]], before: Callable[[], None] | None = None) -> list[float]:
    """Return CPU milliseconds of each search, the minimum over rounds.

    All searches of a round precede the next, so that no search profits from CPU caches filled by itself.
    """
    times = np.full((REPEATS, len(searches)), np.inf)
    for measured in times:
        for number, search in enumerate(searches):
            if before:
                before()
            started = time.process_time()
            search()
            measured[number] = 1000 * (time.process_time() - started)
    return times.min(axis=0).tolist()


def format_times(filtered: list[float], plain: list[float]) -> str:
    """Format median and p99, the p99 without a filter, and their ratio."""
    (median, p99), plain_p99 = np.percentile(filtered, [50, 99]), np.percentile(plain, 99)
    return f"{median:.2f}  {p99:.2f}  {plain_p99:.2f}  {compute_p99_ratio(filtered, plain):.2f}"


def compute_p99_ratio(filtered: list[float], plain: list[float]) -> float:
    return float(np.percentile(filtered, 99) / np.percentile(plain, 99))


def compute_recall(expected: np.ndarray, rows: np.ndarray) -> float:
    """Return the share of the expected rows that were found."""
    expected = expected[expected >= 0]
    return float(np.isin(expected, rows).mean()) if len(expected) else 1.0


if __name__ == "__main__":
    tyro.cli(main)
