"""What a filter costs and loses, on your own vectors: engines beside a scan, and whole searches beside exact search.

python bench/filters.py documents.npy queries.npy --books 64 --codewords 16 --engine scan
python bench/filters.py documents.npy queries.npy --books 16 --codewords 256 --engine hnsw --as-of 1000000
python bench/filters.py INDEX queries.npy --depth 100 1000    # the engine of an index, alone

An attribute that has nothing to do with the vectors, one that goes with the query and one against it: a number
drawn by chance, and clusters of documents, those nearest to the query allowed or those furthest away, until they hold
the share. For the engine alone also the very documents that are nearest to the query, or furthest from it, which no
attribute does. The searcher has an index that is built for it. Every question has a filter of its own: asked for the
first time (which looks through the column), and asked again (which documents pass is then known). What is found and
what it takes are measured at the same number of candidates, a table for each `--depth`.

Questions are drawn: 300 that settings may be chosen by (`--dev`), and others to report.

A graph over so few documents is scanned, as that is quicker: `--as-of` has it walked where it would be of so many.
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
from bidr.index.live.live_index import LiveIndex
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
# What is promised: recall of exact filtered search, and p99 over that of the same questions without a filter.
RECALL, TIMES = 0.99, 3.0
# Clusters by the share that is asked for: as many values of an attribute as a person would name.
COARSE, FINE = 20, 1_000
DEV, AT_ONCE = 300, 20_000


class Given(NamedTuple):
    """Unit vectors, their codes, and inner products of all documents with all questions."""

    corpus: np.ndarray
    questions: np.ndarray
    codebooks: Codebooks
    codes: np.ndarray
    near: np.ndarray
    k: int

    def best(self, question: int, mask: np.ndarray) -> np.ndarray:
        """The exact top k of what is allowed."""
        allowed = np.flatnonzero(mask)
        return allowed[top(self.near[allowed, question], self.k)]


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

    vectors: or the folder of an index, whose engine is looked at alone.
    k: how many of the best are looked for. as_of: how many documents a graph passes for. work: where the index is left.
    dev: ask questions that settings may be chosen by.
    """
    faiss.omp_set_num_threads(1)
    questions = drawn(np.load(queries), asked, dev)
    if vectors.is_dir():
        with IndexReader.open(vectors) as reader:
            near, known = of_vectors(reader, questions), attributes(reader.codebooks, reader.candidates.unpack_codes())
            for each in depth:
                alone(reader.candidates, near, known, questions, each, k)
        return
    corpus = unit(np.load(vectors)[:documents])
    codebooks = fit_pq(corpus, books, codewords)
    given = Given(corpus, questions, codebooks, codebooks.encode(corpus), corpus @ questions.T, k)
    known = attributes(codebooks, given.codes)
    with tempfile.TemporaryDirectory() as folder:
        view = built(given, known, engine, work or Path(folder) / "index")
        reader, searcher = view.parts[0].open.reader, Searcher(view)
        if isinstance(reader.candidates, GraphEngine):
            reader.candidates.simulated_count = as_of
        rows = np.arange(len(corpus)) if reader.order is None else reader.order
        alone(reader.candidates, given.near[rows], known.at(rows), questions, depth[0], k)
        for each in depth:
            through(given, known, searcher, each)


def drawn(queries: np.ndarray, asked: int, dev: bool) -> np.ndarray:
    order = np.random.default_rng(0).permutation(len(queries))
    return unit(queries[(order[:DEV] if dev else order[DEV:])[:asked]])


def alone(engine: Any, near: np.ndarray, known: "Attributes", questions: np.ndarray, depth: int, k: int) -> None:
    """The engine: of the scan's top k over what is allowed, and of the exact top k, how many it finds.

    near: of every place, to every query; known: by place.
    """
    engine.threads = 1
    scan, random = FlatEngine(engine.store), np.random.default_rng(0)
    ways = [(top(near[:, at], k), engine.search(query[None], depth)[1]) for at, query in enumerate(questions)]
    usual = np.mean([held(*way) for way in ways])
    print(f"\n{engine.name} alone, {depth:,} candidates: of the exact top {k} {usual:.4f} are found without a filter")
    print(f"{'engine, allowed':<18} of scan's  of exact  ms    p99   unfiltered p99   ratio of p99")
    for share in SHARES:
        for kind in KINDS + EXTREMES:
            masks, shares, exact = [], [], []
            for number, query in enumerate(questions):
                scores = near[:, number]
                mask = known.ask(kind, share, query, random)[1] if kind in KINDS else extreme(scores, share, kind)
                masks.append(np.packbits(mask, bitorder="little"))
                rows = engine.search(query[None], depth, allowed=masks[-1])[1][0]
                shares.append(held(scan.search(query[None], depth, allowed=masks[-1])[1][0][:k], rows))
                exact.append(held(top(np.where(mask, scores, -np.inf), min(k, int(mask.sum()))), rows))
            plain = fastest([partial(engine.search, query[None], depth) for query in questions])
            both = zip(questions, masks, strict=True)
            filtered = fastest([partial(engine.search, query[None], depth, allowed=mask) for query, mask in both])
            found = f"{np.mean(shares):.4f}  {np.mean(exact):.4f}"
            print(f"{share:.1%} {kind:<11} {found}  {late(filtered, plain)}", flush=True)


def extreme(scores: np.ndarray, share: float, kind: str) -> np.ndarray:
    """The documents nearest to a query, or furthest from it."""
    return scores >= np.quantile(scores, 1 - share) if kind == "nearest" else scores <= np.quantile(scores, share)


def top(scores: np.ndarray, k: int) -> np.ndarray:
    return np.argpartition(-scores, k)[:k] if k < len(scores) else np.arange(len(scores))


def of_vectors(reader: IndexReader, questions: np.ndarray) -> np.ndarray:
    """Scores of all vectors with all questions, by place."""
    found = np.empty((reader.count, len(questions)), dtype=np.float32)
    for start in range(0, reader.count, AT_ONCE):
        places = np.arange(start, min(start + AT_ONCE, reader.count))
        found[places] = reader.vectors.read(places) @ questions.T
    return found


def built(given: Given, known: "Attributes", engine: str, folder: Path) -> LiveView:
    arrays = {"codebooks": given.codebooks, "codes": given.codes, "vectors": given.corpus}
    build_index(folder, **arrays, documents=known.documents(), engine=engine)
    return LiveIndex.open(folder).latest()


def through(given: Given, known: "Attributes", searcher: Searcher, depth: int) -> None:
    """The searcher: of the exact top k over what is allowed, how many are answered, and what it takes."""
    everything, each = np.ones(len(given.corpus), dtype=bool), range(len(given.questions))
    usual = np.mean([found_at(searcher, given, number, everything, None, depth) for number in each])
    print(f"\n{depth:,} candidates: of the exact top {given.k} {usual:.4f} are found without a filter")
    print(f"{'searcher, allowed':<18} really  found     again: ms, p99, unfiltered, ratio;  first: the same")
    random, kept = np.random.default_rng(1), []
    for share in SHARES:
        for kind in KINDS:
            asked, masks = zip(*(known.ask(kind, share, query, random) for query in given.questions), strict=True)
            shares = [found_at(searcher, given, number, masks[number], asked[number], depth) for number in each]
            really = [mask.mean() for mask in masks]
            plain, again, first = (
                fastest(
                    [search_of(searcher, *one, given.k, depth) for one in zip(given.questions, by, strict=True)], before
                )
                for by, before in (([None] * len(asked), None), (asked, None), (asked, partial(forget, searcher)))
            )
            kept.append((np.mean(shares) >= RECALL, *(ratio(times, plain) <= TIMES for times in (again, first))))
            times = f"{late(again, plain)}    {late(first, plain)}"
            print(f"{share:.1%} {kind:<11} {np.mean(really):.4f}  {np.mean(shares):.4f}  {times}", flush=True)
    found, again_kept, first_kept = np.sum(kept, axis=0)
    print(
        f"of {len(kept)}: {found} find {RECALL}, {again_kept} take {TIMES:g} times at most again, {first_kept} at first"
    )


def found_at(searcher: Searcher, given: Given, number: int, mask: np.ndarray, asked: Any, depth: int) -> float:
    query, wanted = given.questions[number][None], given.best(number, mask)
    return held(wanted, searcher.search_vectors(QueryVectors(query, query), given.k, depth, filter=asked).rows[0])


class Attributes(NamedTuple):
    """What the documents have: a number drawn by chance, and the clusters that they are in."""

    drawn: np.ndarray
    labels: dict[str, np.ndarray]
    centroids: dict[str, np.ndarray]

    def at(self, rows: np.ndarray) -> "Attributes":
        """Those of the documents that stand at places."""
        return self._replace(drawn=self.drawn[rows], labels={name: of[rows] for name, of in self.labels.items()})

    def documents(self) -> Iterator[Document]:
        for row, number in enumerate(self.drawn.tolist()):
            values = {name: int(of[row]) for name, of in self.labels.items()}
            yield Document(f"d{row}", "", "", {"drawn": number, **values})

    def ask(self, kind: str, share: float, query: np.ndarray, random: np.random.Generator) -> tuple[Any, np.ndarray]:
        """A filter for one question, and which rows pass it."""
        if kind == "at random":
            wide = round(DRAWN * share)
            low = int(random.integers(0, DRAWN - wide))
            return {"drawn": {"gte": low, "lt": low + wide}}, (self.drawn >= low) & (self.drawn < low + wide)
        name = "coarse" if share >= 1 / COARSE else "fine"
        scores = self.centroids[name] @ query * (1 if kind == "with" else -1)
        chosen = nearest(scores, self.labels[name], share)
        return {name: {"any": chosen.tolist()}}, np.isin(self.labels[name], chosen)


def attributes(codebooks: Codebooks, codes: np.ndarray) -> Attributes:
    drawn = np.random.default_rng(0).integers(0, DRAWN, len(codes))
    found = cluster_documents(codebooks, codes, min(FINE, len(codes) // 50))
    fine = np.empty(len(codes), dtype=np.int64)
    fine[found.order] = np.repeat(np.arange(len(found.centroids)), np.diff(found.offsets))
    coarse = faiss.Kmeans(found.centroids.shape[1], COARSE, niter=20, seed=0, min_points_per_centroid=1)
    coarse.train(found.centroids)
    of = coarse.index.search(found.centroids, 1)[1][:, 0]
    both = {"fine": found.centroids, "coarse": coarse.centroids}
    return Attributes(drawn, {"fine": fine, "coarse": of[fine]}, both)


def nearest(scores: np.ndarray, labels: np.ndarray, share: float) -> np.ndarray:
    """The first clusters that hold the share between them, at least one."""
    order = np.argsort(-scores)
    held_there = np.cumsum(np.bincount(labels, minlength=len(scores))[order])
    return order[: int(np.searchsorted(held_there, share * len(labels))) + 1]


def search_of(searcher: Searcher, query: np.ndarray, asked: Any, k: int, depth: int) -> Callable[[], Any]:
    return partial(searcher.search_vectors, QueryVectors(query[None], query[None]), k, depth, filter=asked)


def forget(searcher: Searcher) -> None:
    """Which documents pass a filter."""
    for part in searcher.reader.latest().parts:
        part.open.reader.documents.columns._passing.clear()


def fastest(searches: list[Callable[[], Any]], before: Callable[[], None] | None = None) -> list[float]:
    """Milliseconds of CPU of each, the least of some rounds: what the search takes, not what else the machine does.

    Round after round, so that no search finds in the processor's cache what the same one left there.
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


def late(filtered: list[float], plain: list[float]) -> str:
    """Median and p99, the p99 of the same questions without a filter, and one over the other."""
    (middle, last), usual = np.percentile(filtered, [50, 99]), np.percentile(plain, 99)
    return f"{middle:.2f}  {last:.2f}  {usual:.2f}  {ratio(filtered, plain):.2f}"


def ratio(filtered: list[float], plain: list[float]) -> float:
    return float(np.percentile(filtered, 99) / np.percentile(plain, 99))


def held(wanted: np.ndarray, found: np.ndarray) -> float:
    """The share of what is wanted that was found."""
    wanted = wanted[wanted >= 0]
    return float(np.isin(wanted, found).mean()) if len(wanted) else 1.0


if __name__ == "__main__":
    tyro.cli(main)
