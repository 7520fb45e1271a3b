"""Which settings find a wanted share of the exact answers, measured: on a sample of vectors, or on an index."""

import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bidr.answers import QueryVectors
from bidr.api import open_index
from bidr.codes.codebooks import Floats
from bidr.codes.exact import top_k
from bidr.codes.fit import fit
from bidr.codes.plain import bits_for
from bidr.codes.vectors import VectorRows, check_same_dim
from bidr.errors import ConfigError, DataError
from bidr.index.build import build_index
from bidr.index.candidates import Rows
from bidr.index.engines.graph import Graph
from bidr.index.engines.lists import Lists
from bidr.index.live.view import LiveView
from bidr.index.reader import IndexReader
from bidr.search import Searcher

QUESTIONS, SEED = 300, 0
SHARES, WIDTHS = (0.02, 0.05, 0.1, 0.2, 0.4, 1.0), (100, 200, 400, 1_000, 2_000)
# Beyond so many candidates for an answer, longer codes are the better remedy.
DEPTH_PER_ANSWER, LEAST_DEPTH, STEP = 20, 1_000, 1.25


class Setting(NamedTuple):
    """A way to search that was measured. visited: share of the lists, or documents that a graph keeps in view."""

    engine: str
    bits: int
    bytes_per_doc: int
    visited: float | None
    candidates: int
    recall: float
    ms: float


class Measured(NamedTuple):
    """All ways that were tried, each with the fewest candidates that reach the recall, or with the most tried."""

    documents: int
    sampled_from: int
    questions: int
    k: int
    recall: float
    settings: list[Setting]

    @property
    def cheapest(self) -> Setting | None:
        """What takes least CPU time of those that reach the recall."""
        reached = [setting for setting in self.settings if setting.recall >= self.recall]
        return min(reached, key=lambda setting: setting.ms, default=None)


class Exact(NamedTuple):
    """Questions, and the rows that exact search finds for them."""

    queries: QueryVectors
    rows: Rows


def check_goal(recall: float, k: int) -> None:
    """Refuse what no search can reach."""
    if not 0 < recall <= 1:
        raise ConfigError(f"recall: given {recall:g}, expected a share above 0 and up to 1, such as .95")
    if k < 1:
        raise ConfigError(f"k: given {k}, expected 1 or more")


def on_sample(
    documents: VectorRows, questions: VectorRows, recall: float, k: int, code_bytes: int, sample: int
) -> Measured:
    """Fit codes of 8 and of 4 bits to a sample of vectors, build a scan and lists of each, and measure them.

    Of the two, those that can have the size: their books divide the dimensions.
    """
    check_goal(recall, k)
    check_same_dim(documents, questions)
    count = min(sample, len(documents))
    least = max(k, 256)
    if count < least:
        raise DataError(f"{documents.name}: {count:,} vectors to measure on, expected {least} or more")
    rows = np.sort(np.random.default_rng(SEED).choice(len(documents), count, replace=False))
    vectors, asked = documents[rows], questions[:QUESTIONS]
    exact = Exact(QueryVectors(asked, asked), top_k(asked, vectors, k).rows)
    found: list[Setting] = []
    for bits in bits_for(documents.dim, code_bytes):
        codebooks = fit(vectors, code_bytes * 8 // bits, 1 << bits)
        codes = codebooks.encode(vectors)
        for engine in ("scan", "lists"):
            with tempfile.TemporaryDirectory() as folder:
                build_index(folder, codebooks=codebooks, codes=codes, vectors=vectors, engine=engine)
                with IndexReader.open(folder) as reader:
                    found += _settings(Searcher(reader), exact, recall, k)
    return Measured(count, len(documents), len(asked), k, recall, found)


def on_index(folder: Path, vectors: Path, recall: float, k: int) -> Measured:
    """Measure an index that is there, with the engine that it has; all its vectors are read once."""
    check_goal(recall, k)
    with open_index(folder) as searcher:
        asked = searcher.query_vectors(vectors)
        asked = QueryVectors(asked.codes[:QUESTIONS], asked.vectors[:QUESTIONS])
        view = searcher.reader.latest()
        if view.count < k:
            raise DataError(f"{folder}: {view.count:,} documents, expected {k} or more; choose a smaller --k")
        places = view.places()
        stored: Any = _Stored(view, places)
        exact = Exact(asked, view.rows_of(places[top_k(view.manifest.cut(asked.vectors), stored, k).rows]))
        found = list(_settings(searcher, exact, recall, k))
    return Measured(len(places), len(places), len(asked.codes), k, recall, found)


class _Stored:
    """The vectors of an index as `top_k` takes them, a slice at a time."""

    def __init__(self, view: IndexReader | LiveView, places: Rows) -> None:
        self.view, self.places = view, places

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, part: slice) -> Floats:
        return self.view.vectors.read(self.places[part])


def _settings(searcher: Searcher, exact: Exact, recall: float, k: int) -> Iterator[Setting]:
    """Every width of the engine, with as few candidates as reach the recall."""
    engine = _engines(searcher)[0]
    widths = SHARES if isinstance(engine, Lists) else WIDTHS if isinstance(engine, Graph) else (None,)
    books = engine.codebooks
    most = min(searcher.reader.latest().count, max(LEAST_DEPTH, DEPTH_PER_ANSWER * k))
    for width in widths:
        _set_width(searcher, width)
        candidates = _fewest(searcher, exact, recall, k, most)
        while True:
            reached, ms = _measure(searcher, exact, k, candidates)
            if reached >= recall or candidates == most:
                break
            candidates = min(most, math.ceil(STEP * candidates))
        yield Setting(engine.name, books.bits, books.bytes_per_doc, width, candidates, reached, ms)


def _fewest(searcher: Searcher, exact: Exact, recall: float, k: int, most: int) -> int:
    """How many candidates hold the wanted share of the exact answers, by one deep search."""
    found = searcher.search_vectors(exact.queries, k, most).candidate_rows
    places = np.concatenate([_places(*pair) for pair in zip(exact.rows, found, strict=True)])
    wanted = math.ceil(recall * len(places)) - 1
    return min(most, max(k, int(np.sort(places)[wanted]) + 1))


def _places(wanted: npt.NDArray[np.int64], found: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where among the found rows each wanted one is; beyond the end where it is not."""
    order = np.argsort(found)
    at = order[np.searchsorted(found, wanted, sorter=order).clip(max=len(found) - 1)]
    return np.where(found[at] == wanted, at, len(found))


def _measure(searcher: Searcher, exact: Exact, k: int, candidates: int) -> tuple[float, float]:
    """The recall of the answers, and milliseconds of CPU time a query, everything in memory."""
    started = time.process_time()
    found = searcher.search_vectors(exact.queries, k, candidates).rows
    ms = 1000 * (time.process_time() - started) / len(found)
    shares = [np.isin(wanted, rows).mean() for wanted, rows in zip(exact.rows, found, strict=True)]
    return float(np.mean(shares)), ms


def _engines(searcher: Searcher) -> list[Any]:
    view = searcher.reader.latest()
    return [part.open.reader.candidates for part in view.parts] if isinstance(view, LiveView) else [view.candidates]


def _set_width(searcher: Searcher, width: float | None) -> None:
    for engine in _engines(searcher):
        if isinstance(engine, Lists):
            engine.visits = max(1, round((width or 1) * engine.lists))
        elif isinstance(engine, Graph):
            engine.ef = int(width or 0) or None
