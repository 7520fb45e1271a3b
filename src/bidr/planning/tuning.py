"""Find search settings that reach a recall, by measuring on a sample of vectors or on an index."""

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
from bidr.index.engines.engine_choice import get_engine_label
from bidr.index.engines.graph.engine import GraphEngine
from bidr.index.engines.ivf import IvfEngine
from bidr.index.live.view import LiveView
from bidr.index.reader import IndexReader
from bidr.index.vectors import StorageKind
from bidr.pipeline.open import open_index
from bidr.planning.extrapolation import Extrapolation, count_probed_lists
from bidr.planning.plan import CorpusSpec, can_hold
from bidr.quantization.exact_search import search_vectors
from bidr.quantization.opq_config import list_bits
from bidr.quantization.pq_training import fit_pq
from bidr.search.searcher import Searcher
from bidr.search.types import QueryVectors
from bidr.utils.array_types import Floats, Rows

MAX_QUERIES, SEED = 300, 0
UNLIMITED = 1 << 60
SHARES, WIDTHS = (0.02, 0.05, 0.1, 0.2, 0.4, 1.0), (100, 200, 400, 1_000, 2_000)
# Limit of candidates, per result and at least: beyond it, longer codes are cheaper.
CANDIDATES_PER_RESULT, MIN_CANDIDATE_LIMIT, GROWTH = 20, 1_000, 1.25


class TuningConfig(NamedTuple):
    """Settings to try on a sample, and the planned index.

    docs: planned documents; None: the number of vectors.
    ram: bytes of one machine; settings that take more are skipped; None: unlimited.
    """

    code_bytes: tuple[int, ...] = (16,)
    stored: StorageKind = "fp16"
    docs: int | None = None
    ram: int | None = None
    sample: int = 50_000


class SearchSetting(NamedTuple):
    """A measured search setting.

    visited: share of lists that are probed, or ef of a graph; None: exhaustive.
    ef:      the value of `bidr search --ef` for all planned documents.
    ms:      CPU time of a query; ms_planned: extrapolated to all planned documents.
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


class SkippedSetting(NamedTuple):
    """A setting that was not tried, the RAM it needs, and why."""

    engine: str
    bits: int
    bytes_per_doc: int
    ram: int
    why: str


class TuningResult(NamedTuple):
    """All settings tried, each with the fewest candidates that reach the recall, or with the most tried.

    sampled_from: number of vectors that the sample was drawn from; planned: planned documents.
    """

    documents: int
    sampled_from: int
    planned: int
    questions: int
    k: int
    recall: float
    settings: list[SearchSetting]
    left_out: list[SkippedSetting]

    @property
    def cheapest(self) -> SearchSetting | None:
        """The setting with the least extrapolated CPU time among those that reach the recall."""
        sufficient = [setting for setting in self.settings if setting.recall >= self.recall]
        return min(sufficient, key=lambda setting: setting.ms_planned, default=None)


class GroundTruth(NamedTuple):
    """Queries, and the rows that exact search returns for them."""

    queries: QueryVectors
    rows: Rows


def check_target(recall: float, k: int) -> None:
    """Raise ConfigError for a recall or k out of range."""
    if not 0 < recall <= 1:
        raise ConfigError(f"recall: given {recall:g}, expected a share above 0 and up to 1, such as .95")
    if k < 1:
        raise ConfigError(f"k: given {k}, expected 1 or more")


def tune_on_sample(
    documents: VectorSource, queries: VectorSource, recall: float, k: int, config: TuningConfig
) -> TuningResult:
    """Train codes of 8 and of 4 bits on a sample, build every engine that fits the RAM, and measure them."""
    check_target(recall, k)
    check_same_dim(documents, queries)
    count, planned = min(config.sample, len(documents)), config.docs or len(documents)
    minimum = max(k, 256)
    if count < minimum:
        raise DataError(f"{documents.name}: {count:,} vectors to measure on, expected {minimum} or more")
    if planned < count:
        raise ConfigError(f"docs: given {planned:,}, expected {count:,} or more, as many as the sample has")
    shapes, skipped = _choose_shapes(documents.dim, planned, config)
    rows = np.sort(np.random.default_rng(SEED).choice(len(documents), count, replace=False))
    vectors, query_vectors = documents[rows], queries[:MAX_QUERIES]
    truth = GroundTruth(QueryVectors(query_vectors, query_vectors), search_vectors(query_vectors, vectors, k).rows)
    settings: list[SearchSetting] = []
    extrapolation = Extrapolation(count, planned)
    for (code_bytes, bits), engines in shapes.items():
        codebooks = fit_pq(vectors, code_bytes * 8 // bits, 1 << bits)
        codes = codebooks.encode(vectors)
        extrapolation.calibrate(codebooks, codes, query_vectors, k)
        for engine in engines:
            with tempfile.TemporaryDirectory() as folder:
                options: dict[str, Any] = {"engine": engine, "stored": config.stored}
                build_index(folder, codebooks=codebooks, codes=codes, vectors=vectors, **options)
                with IndexReader.open(folder) as reader:
                    settings += _measure_settings(Searcher(reader), truth, recall, k, extrapolation)
    return TuningResult(count, len(documents), planned, len(query_vectors), k, recall, settings, skipped)


def _choose_shapes(
    dim: int, docs: int, config: TuningConfig
) -> tuple[dict[tuple[int, int], list[str]], list[SkippedSetting]]:
    """Return engines by bytes and bits of the codes, and those skipped; raise ConfigError if all are."""
    shapes: dict[tuple[int, int], list[str]] = {}
    skipped: list[SkippedSetting] = []
    for code_bytes, bits, engine in itertools.product(config.code_bytes, BITS, ENGINES):
        books, possible = code_bytes * 8 // bits, list_bits(dim, code_bytes)
        corpus = CorpusSpec(
            docs=docs, dim=dim, ram=config.ram or UNLIMITED, code_bytes=code_bytes, stored=config.stored
        )
        ram = sum(corpus.estimate_ram(corpus.make_shape(engine, bits)).values())
        if bits not in possible:
            skipped.append(
                SkippedSetting(engine, bits, code_bytes, ram, f"{books} books do not divide {dim} dimensions")
            )
        elif ram > corpus.ram:
            skipped.append(SkippedSetting(engine, bits, code_bytes, ram, "exceeds the RAM limit"))
        elif not can_hold(corpus, corpus.make_shape(engine, bits)):
            skipped.append(SkippedSetting(engine, bits, code_bytes, ram, "more documents than it can hold"))
        else:
            shapes.setdefault((code_bytes, bits), []).append(engine)
    if not shapes:
        smallest = min(skipped, key=lambda setting: setting.ram)
        raise ConfigError(
            f"ram: given {config.ram or UNLIMITED:,} bytes, but {docs:,} documents take {smallest.ram:,} or more "
            f"(engine {get_engine_label(smallest.engine)}, codes of {smallest.bytes_per_doc} bytes); give more RAM, or "
            "shorter codes (--bytes-per-doc)"
        )
    return shapes, skipped


def tune_on_index(folder: Path, vectors: Path, recall: float, k: int) -> TuningResult:
    """Measure settings of an existing index; reads all its vectors once."""
    check_target(recall, k)
    with open_index(folder) as searcher:
        queries = searcher.query_vectors(vectors)
        queries = QueryVectors(queries.codes[:MAX_QUERIES], queries.vectors[:MAX_QUERIES])
        view = searcher.reader.latest()
        if view.count < k:
            raise DataError(f"{folder}: {view.count:,} documents, expected {k} or more; choose a smaller --k")
        positions = view.places()
        stored: Any = _IndexVectors(view, positions)
        exact = search_vectors(stored.convert_queries(view.manifest.truncate(queries.vectors)), stored, k).rows
        truth = GroundTruth(queries, view.rows_of(positions[exact]))
        count = len(positions)
        settings = list(_measure_settings(searcher, truth, recall, k, Extrapolation(count, count)))
    return TuningResult(count, count, count, len(queries.codes), k, recall, settings, [])


class _IndexVectors:
    """Vectors of an index as a sliceable array for `search_vectors`, which compares inner products.

    For L2 they have one more component, minus half of the squared norm, and queries 1.
    """

    def __init__(self, view: IndexReader | LiveView, positions: Rows) -> None:
        self.view, self.positions = view, positions

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, part: slice) -> Floats:
        rows = self.view.vectors.read(self.positions[part])
        if self.view.manifest.similarity != "l2":
            return rows
        return np.concatenate([rows, -np.square(rows).sum(axis=1, keepdims=True) / 2], axis=1)

    def convert_queries(self, queries: Floats) -> Floats:
        """Return queries whose inner products with the vectors rank as the index does."""
        if self.view.manifest.similarity != "l2":
            return queries
        return np.pad(queries, ((0, 0), (0, 1)), constant_values=1)


def _measure_settings(
    searcher: Searcher, truth: GroundTruth, recall: float, k: int, extrapolation: Extrapolation
) -> Iterator[SearchSetting]:
    """Yield every width of the engine with the fewest candidates that reach the recall."""
    engine = _get_engines(searcher)[0]
    widths = SHARES if isinstance(engine, IvfEngine) else WIDTHS if isinstance(engine, GraphEngine) else (None,)
    books = engine.codebooks
    limit = min(searcher.reader.latest().count, max(MIN_CANDIDATE_LIMIT, CANDIDATES_PER_RESULT * k))
    for width in widths:
        _set_width(searcher, width, extrapolation.planned if extrapolation.is_needed else None)
        candidates = _estimate_candidates(searcher, truth, recall, k, limit)
        while True:
            measured_recall, ms = _measure_recall(searcher, truth, k, candidates)
            if measured_recall >= recall or candidates == limit:
                break
            candidates = min(limit, math.ceil(GROWTH * candidates))
        planned_ms = ms + extrapolation.estimate_extra_ms(engine, width, candidates, truth.queries.codes)
        ef, code_bytes = extrapolation.scale_ef(engine, width), books.bytes_per_doc
        yield SearchSetting(engine.name, books.bits, code_bytes, width, ef, candidates, measured_recall, ms, planned_ms)


def _estimate_candidates(searcher: Searcher, truth: GroundTruth, recall: float, k: int, limit: int) -> int:
    """Return the number of candidates that contain the required share of exact results, by one deep search."""
    candidates = searcher.search_vectors(truth.queries, k, limit).candidate_rows
    ranks = np.concatenate([_find_ranks(*pair) for pair in zip(truth.rows, candidates, strict=True)])
    return min(limit, max(k, int(np.sort(ranks)[math.ceil(recall * len(ranks)) - 1]) + 1))


def _find_ranks(rows: npt.NDArray[np.int64], candidates: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the rank of each row among the candidates; their number if it is missing."""
    order = np.argsort(candidates)
    ranks = order[np.searchsorted(candidates, rows, sorter=order).clip(max=len(candidates) - 1)]
    return np.where(candidates[ranks] == rows, ranks, len(candidates))


def _measure_recall(searcher: Searcher, truth: GroundTruth, k: int, candidates: int) -> tuple[float, float]:
    """Return the recall, and CPU milliseconds per query with everything in memory."""
    start = time.process_time()
    results = searcher.search_vectors(truth.queries, k, candidates).rows
    ms = 1000 * (time.process_time() - start) / len(results)
    shares = [np.isin(exact_rows, rows).mean() for exact_rows, rows in zip(truth.rows, results, strict=True)]
    return float(np.mean(shares)), ms


def _get_engines(searcher: Searcher) -> list[Any]:
    view = searcher.reader.latest()
    return [part.reader.candidates for part in view.segments] if isinstance(view, LiveView) else [view.candidates]


def _set_width(searcher: Searcher, width: float | None, stands_for: int | None) -> None:
    for engine in _get_engines(searcher):
        if isinstance(engine, IvfEngine):
            engine.nprobe = count_probed_lists(engine, width or 1)
        elif isinstance(engine, GraphEngine):
            engine.ef, engine.simulated_count = int(width or 0) or None, stands_for
