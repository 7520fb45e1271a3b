"""Which settings find a wanted share of the exact answers, measured: on a sample of vectors, or on an index."""

import itertools
import math
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bidr.data.vector_source import VectorSource, check_same_dim
from bidr.errors import ConfigError, DataError
from bidr.index.builder.build import build_index
from bidr.index.cost_model.sizes import BITS, ENGINES
from bidr.index.engines.graph.engine import GraphEngine
from bidr.index.engines.ivf import IvfEngine
from bidr.index.live.view import LiveView
from bidr.index.reader import IndexReader
from bidr.index.vectors import StorageKind
from bidr.pipeline.open import open_index
from bidr.planning.extrapolation import Growth, visits_of
from bidr.planning.plan import Corpus, fits
from bidr.quantization.exact_search import search_vectors
from bidr.quantization.opq import list_bits
from bidr.quantization.pq_training import fit_pq
from bidr.search.searcher import Searcher
from bidr.search.types import QueryVectors
from bidr.utils.array_types import Floats, Rows

QUESTIONS, SEED = 300, 0
ANY = 1 << 60
SHARES, WIDTHS = (0.02, 0.05, 0.1, 0.2, 0.4, 1.0), (100, 200, 400, 1_000, 2_000)
# Beyond so many candidates for an answer, longer codes are the better remedy.
DEPTH_PER_ANSWER, LEAST_DEPTH, STEP = 20, 1_000, 1.25


class Tried(NamedTuple):
    """What is tried on a sample, for the index that will be.

    docs: how many documents it will have; None: as many as there are vectors.
    ram:  bytes of one machine, above which nothing is tried; None: any.
    """

    code_bytes: tuple[int, ...] = (16,)
    stored: StorageKind = "fp16"
    docs: int | None = None
    ram: int | None = None
    sample: int = 50_000


class Setting(NamedTuple):
    """A way to search that was measured.

    visited: share of the lists, or documents that a graph keeps in view; None: all are compared.
    ef:      the same as `bidr search --ef` takes it, for all documents that there will be.
    ms:      CPU time a query; ms_planned: for all documents, by how many codes are compared then.
    """

    engine: str
    bits: int
    bytes_per_doc: int
    visited: float | None
    ef: int | None
    candidates: int
    recall: float
    ms: float
    ms_planned: float


class LeftOut(NamedTuple):
    """What was not tried, the RAM that it would take, and why."""

    engine: str
    bits: int
    bytes_per_doc: int
    ram: int
    why: str


class Measured(NamedTuple):
    """All ways that were tried, each with the fewest candidates that reach the recall, or with the most tried.

    sampled_from: vectors that the sample is of; planned: documents that there will be.
    """

    documents: int
    sampled_from: int
    planned: int
    questions: int
    k: int
    recall: float
    settings: list[Setting]
    left_out: list[LeftOut]

    @property
    def cheapest(self) -> Setting | None:
        """What takes least CPU time of those that reach the recall, with all documents that there will be."""
        reached = [setting for setting in self.settings if setting.recall >= self.recall]
        return min(reached, key=lambda setting: setting.ms_planned, default=None)


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


def on_sample(documents: VectorSource, questions: VectorSource, recall: float, k: int, tried: Tried) -> Measured:
    """Fit codes of 8 and of 4 bits to a sample of vectors, build every engine that fits the RAM, and measure them."""
    check_goal(recall, k)
    check_same_dim(documents, questions)
    count, planned = min(tried.sample, len(documents)), tried.docs or len(documents)
    least = max(k, 256)
    if count < least:
        raise DataError(f"{documents.name}: {count:,} vectors to measure on, expected {least} or more")
    if planned < count:
        raise ConfigError(f"docs: given {planned:,}, expected the {count:,} that are measured on, or more")
    shapes, left_out = _shapes(documents.dim, planned, tried)
    rows = np.sort(np.random.default_rng(SEED).choice(len(documents), count, replace=False))
    vectors, asked = documents[rows], questions[:QUESTIONS]
    exact = Exact(QueryVectors(asked, asked), search_vectors(asked, vectors, k).rows)
    found: list[Setting] = []
    growth = Growth(count, planned)
    for (code_bytes, bits), engines in shapes.items():
        codebooks = fit_pq(vectors, code_bytes * 8 // bits, 1 << bits)
        codes = codebooks.encode(vectors)
        growth.begin(codebooks, codes, asked, k)
        for engine in engines:
            with tempfile.TemporaryDirectory() as folder:
                how: dict[str, Any] = {"engine": engine, "stored": tried.stored}
                build_index(folder, codebooks=codebooks, codes=codes, vectors=vectors, **how)
                with IndexReader.open(folder) as reader:
                    found += _settings(Searcher(reader), exact, recall, k, growth)
    return Measured(count, len(documents), planned, len(asked), k, recall, found, left_out)


def _shapes(dim: int, docs: int, tried: Tried) -> tuple[dict[tuple[int, int], list[str]], list[LeftOut]]:
    """Engines by bytes and bits of the codes, and those that are left out; refused where nothing is left."""
    shapes: dict[tuple[int, int], list[str]] = {}
    left_out: list[LeftOut] = []
    for code_bytes, bits, engine in itertools.product(tried.code_bytes, BITS, ENGINES):
        books, possible = code_bytes * 8 // bits, list_bits(dim, code_bytes)
        corpus = Corpus(docs=docs, dim=dim, ram=tried.ram or ANY, code_bytes=code_bytes, stored=tried.stored)
        need = sum(corpus.ram_parts(corpus.shape(engine, bits)).values())
        if bits not in possible:
            left_out.append(LeftOut(engine, bits, code_bytes, need, f"{dim} dimensions are not {books} times any"))
        elif need > corpus.ram:
            left_out.append(LeftOut(engine, bits, code_bytes, need, "more RAM than there is"))
        elif not fits(corpus, corpus.shape(engine, bits)):
            left_out.append(LeftOut(engine, bits, code_bytes, need, "more documents than it can hold"))
        else:
            shapes.setdefault((code_bytes, bits), []).append(engine)
    if not shapes:
        least = min(left_out, key=lambda each: each.ram)
        raise ConfigError(
            f"ram: given {tried.ram or ANY:,} bytes, but {docs:,} documents take {least.ram:,} or more (engine "
            f"{least.engine}, codes of {least.bytes_per_doc} bytes); give more RAM, or shorter codes (--bytes-per-doc)"
        )
    return shapes, left_out


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
        exact = Exact(asked, view.rows_of(places[search_vectors(view.manifest.cut(asked.vectors), stored, k).rows]))
        found = list(_settings(searcher, exact, recall, k, Growth(len(places), len(places))))
    return Measured(len(places), len(places), len(places), len(asked.codes), k, recall, found, [])


class _Stored:
    """The vectors of an index as `top_k` takes them, a slice at a time."""

    def __init__(self, view: IndexReader | LiveView, places: Rows) -> None:
        self.view, self.places = view, places

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, part: slice) -> Floats:
        return self.view.vectors.read(self.places[part])


def _settings(searcher: Searcher, exact: Exact, recall: float, k: int, growth: Growth) -> Iterator[Setting]:
    """Every width of the engine, with as few candidates as reach the recall."""
    engine = _engines(searcher)[0]
    widths = SHARES if isinstance(engine, IvfEngine) else WIDTHS if isinstance(engine, GraphEngine) else (None,)
    books = engine.codebooks
    most = min(searcher.reader.latest().count, max(LEAST_DEPTH, DEPTH_PER_ANSWER * k))
    for width in widths:
        _set_width(searcher, width, growth.planned if growth.any else None)
        candidates = _fewest(searcher, exact, recall, k, most)
        while True:
            reached, ms = _measure(searcher, exact, k, candidates)
            if reached >= recall or candidates == most:
                break
            candidates = min(most, math.ceil(STEP * candidates))
        expected, ef = ms + growth.more_ms(engine, width, candidates, exact.queries.codes), growth.ef(engine, width)
        yield Setting(engine.name, books.bits, books.bytes_per_doc, width, ef, candidates, reached, ms, expected)


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


def _set_width(searcher: Searcher, width: float | None, stands_for: int | None) -> None:
    for engine in _engines(searcher):
        if isinstance(engine, IvfEngine):
            engine.nprobe = visits_of(engine, width or 1)
        elif isinstance(engine, GraphEngine):
            engine.ef, engine.simulated_count = int(width or 0) or None, stands_for
