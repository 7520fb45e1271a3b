"""What a filter costs and loses, on your own vectors: engines beside a scan, and whole searches beside exact search.

python bench/filters.py documents.npy queries.npy --books 64 --codewords 16

An attribute that has nothing to do with the vectors, one that goes with the query and one that goes against it. For the
engine alone these are the documents nearest to the query, or furthest from it. For the searcher they are attributes of
an index that is built for it: a number drawn by chance, and clusters of documents, those nearest to the query allowed
or those furthest away, until they hold the share. Every question has a filter of its own: asked for the first time
(which reads the column), and asked again (which documents pass is then known).
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np
import tyro
from tyro.conf import Positional
from unit import unit

from bidr.answers import QueryVectors
from bidr.codes.codebooks import Codebooks
from bidr.codes.fit import fit
from bidr.index.build import build_index
from bidr.index.engines.clusters import clusters
from bidr.index.engines.make import make_lists
from bidr.index.engines.scan import Scan
from bidr.index.live.index import LiveIndex
from bidr.search import Searcher
from bidr.text.records import Document

SHARES = (0.5, 0.1, 0.01, 0.001)
KINDS = ("at random", "with", "against")
REPEATS, K, DRAWN = 3, 100, 1_000_000
# Clusters by the share that is asked for: as many values of an attribute as a person would name.
COARSE, FINE = 20, 1_000


class Given(NamedTuple):
    """Unit vectors, their codes, and inner products of all documents with all questions."""

    corpus: np.ndarray
    questions: np.ndarray
    codebooks: Codebooks
    codes: np.ndarray
    near: np.ndarray


def main(
    vectors: Positional[Path],
    queries: Positional[Path],
    books: int = 64,
    codewords: int = 16,
    documents: int = 192_990,
    depth: int = 1_000,
    asked: int = 200,
    engine: str = "lists",
    work: Path | None = None,
) -> None:
    """Print a line for each kind of attribute and share of allowed documents; `work`: where the index is left."""
    faiss.omp_set_num_threads(1)
    corpus, questions = unit(np.load(vectors)[:documents]), unit(np.load(queries)[:asked])
    codebooks = fit(corpus, books, codewords)
    given = Given(corpus, questions, codebooks, codebooks.encode(corpus), corpus @ questions.T)
    alone(given, engine, depth)
    with tempfile.TemporaryDirectory() as folder:
        through(given, engine, depth, work or Path(folder) / "index")


def alone(given: Given, engine: str, depth: int) -> None:
    """The engine: of the scan's top K over what is allowed, how many it finds."""
    found, order = make_lists(given.codebooks, given.codes)
    scan = Scan(found.store)
    searched = {"lists": found, "scan": scan}[engine]
    searched.threads = scan.threads = 1
    near, random = given.near[order], np.random.default_rng(0)
    print(f"{'engine, allowed':<18} found   ms    p99   unfiltered p99   ratio of p99")
    for share in SHARES:
        edges = np.quantile(near, [share, 1 - share], axis=0)
        for kind in KINDS:
            plain, filtered, shares = [], [], []
            for number, query in enumerate(given.questions):
                scores = near[:, number]
                mask = {
                    "at random": lambda: random.random(len(near)) < share,  # noqa: B023
                    "with": lambda: scores >= edges[1, number],  # noqa: B023
                    "against": lambda: scores <= edges[0, number],  # noqa: B023
                }[kind]()
                allowed = np.packbits(mask, bitorder="little")
                plain.append(fastest(lambda: searched.search(query[None], depth)))  # noqa: B023
                filtered.append(fastest(lambda: searched.search(query[None], depth, allowed=allowed)))  # noqa: B023
                rows = searched.search(query[None], depth, allowed=allowed)[1][0]
                shares.append(held(scan.search(query[None], depth, allowed=allowed)[1][0][:K], rows))
            middle, late, usual = *np.percentile(filtered, [50, 99]), np.percentile(plain, 99)
            numbers = f"{np.mean(shares):.4f}  {middle:.2f}  {late:.2f}  {usual:.2f}  {late / usual:.2f}"
            print(f"{share:.1%} {kind:<11} {numbers}", flush=True)


def through(given: Given, engine: str, depth: int, folder: Path) -> None:
    """The searcher: of the exact top K over what is allowed, how many are answered."""
    drawn, labels, centroids = attributes(given)
    documents = described(drawn, labels)
    arrays = {"codebooks": given.codebooks, "codes": given.codes, "vectors": given.corpus}
    build_index(folder, **arrays, documents=documents, engine=engine)
    view = LiveIndex.open(folder).latest()
    for part in view.parts:
        part.open.reader.candidates.threads = 1
    searcher = Searcher(view)
    plain = [measure(searcher, query, depth, None) for query in given.questions]
    exact = [np.argsort(-given.near[:, number])[:K] for number in range(len(plain))]
    usual = np.percentile([each.again for each in plain], 99)
    found = np.mean([held(*pair) for pair in zip(exact, (each.rows for each in plain), strict=True)])
    print(f"\nsearcher, unfiltered: {found:.4f} of the exact top {K}, p99 {usual:.2f} ms")
    print(f"{'searcher, allowed':<18} really  found   again: ms  p99   ratio   first: ms  p99   ratio")
    random = np.random.default_rng(1)
    for share in SHARES:
        name = "coarse" if share >= 1 / COARSE else "fine"
        for kind in KINDS:
            runs, shares, really, beside = [], [], [], []
            for number, query in enumerate(given.questions):
                if kind == "at random":
                    low = int(random.integers(0, round(DRAWN * (1 - share))))
                    asked = {"drawn": {"gte": low, "lt": low + round(DRAWN * share)}}
                    mask = (drawn >= low) & (drawn < low + DRAWN * share)
                else:
                    chosen = nearest(centroids[name] @ query * (1 if kind == "with" else -1), labels[name], share)
                    asked, mask = {name: {"any": chosen.tolist()}}, np.isin(labels[name], chosen)
                beside.append(measure(searcher, query, depth, None).again)
                runs.append(measure(searcher, query, depth, asked))
                allowed = np.flatnonzero(mask)
                exact_rows = allowed[np.argsort(-given.near[allowed, number])[:K]]
                shares.append(held(exact_rows, runs[-1].rows))
                really.append(mask.mean())
            usual, numbers = np.percentile(beside, 99), f"{np.mean(really):.4f}  {np.mean(shares):.4f}"
            for taken in ([each.again for each in runs], [each.first for each in runs]):
                middle, late = np.percentile(taken, [50, 99])
                numbers += f"  {middle:.2f}  {late:.2f}  {late / usual:.2f}    "
            print(f"{share:.1%} {kind:<11} {numbers}", flush=True)


def attributes(given: Given) -> tuple[np.ndarray, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """A number drawn for each document; its clusters, and the centroids of these."""
    drawn = np.random.default_rng(0).integers(0, DRAWN, len(given.corpus))
    found = clusters(given.codebooks, given.codes, min(FINE, len(given.corpus) // 50))
    fine = np.empty(len(given.corpus), dtype=np.int64)
    fine[found.order] = np.repeat(np.arange(len(found.centroids)), np.diff(found.offsets))
    coarse = faiss.Kmeans(found.centroids.shape[1], COARSE, niter=20, seed=0, min_points_per_centroid=1)
    coarse.train(found.centroids)
    of = coarse.index.search(found.centroids, 1)[1][:, 0]
    return drawn, {"fine": fine, "coarse": of[fine]}, {"fine": found.centroids, "coarse": coarse.centroids}


def described(drawn: np.ndarray, labels: dict[str, np.ndarray]) -> Iterator[Document]:
    for row, number in enumerate(drawn.tolist()):
        values = {name: int(of[row]) for name, of in labels.items()}
        yield Document(f"d{row}", "", "", {"drawn": number, **values})


def nearest(scores: np.ndarray, labels: np.ndarray, share: float) -> np.ndarray:
    """The first clusters that hold the share between them, at least one."""
    order = np.argsort(-scores)
    held_there = np.cumsum(np.bincount(labels, minlength=len(scores))[order])
    return order[: int(np.searchsorted(held_there, share * len(labels))) + 1]


class Measured(NamedTuple):
    """Milliseconds of CPU, the first time and the least of some more; and the answers."""

    first: float
    again: float
    rows: np.ndarray


def measure(searcher: Searcher, query: np.ndarray, depth: int, asked: Any) -> Measured:
    both = QueryVectors(query[None], query[None])

    def search() -> Any:
        return searcher.search_vectors(both, K, depth, filter=asked)

    started = time.process_time()
    rows = search().rows[0]
    return Measured(1000 * (time.process_time() - started), fastest(search), rows)


def fastest(search: Callable[[], Any]) -> float:
    """Milliseconds of CPU, the least of a few runs: what the search takes, not what else the machine does."""
    times = []
    for _ in range(REPEATS):
        started = time.process_time()
        search()
        times.append(1000 * (time.process_time() - started))
    return min(times)


def held(wanted: np.ndarray, found: np.ndarray) -> float:
    """The share of what is wanted that was found."""
    wanted = wanted[wanted >= 0]
    return float(np.isin(wanted, found).mean()) if len(wanted) else 1.0


if __name__ == "__main__":
    tyro.cli(main)
