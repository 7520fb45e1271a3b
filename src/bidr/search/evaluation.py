"""Evaluation of search results: measures as in trec_eval, candidate recall, significance, time and memory."""

import json
import re
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from bidr.data.dataset import Split
from bidr.data.readers.trec import Run
from bidr.data.types import Query
from bidr.errors import ConfigError, DataError, IndexFolderError
from bidr.index.engines.engine_choice import get_engine_label
from bidr.index.ram_usage import get_part_label
from bidr.index.storage.manifest import read_current
from bidr.index.vectors import ReadStats
from bidr.search.searcher import Searcher
from bidr.search.types import STEPS, RankedBatch, Timings
from bidr.utils.files import read_regular, write_json

MEASURES = ("R@10", "R@100", "RR@10", "nDCG@10")
MIN_DEPTH = 100
PER_QUERY_FIELDS = ("per_query", "run")
QUERIES_PER_BATCH = 64
CURVE_DEPTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000)
EVALUATED = "evaluated.json"
TIMED_QUERIES = 200
RESAMPLES = 10_000
READ_COUNTS = ("vectors", "hits", "reads", "bytes")
# Numbers of a block of resamples: 10,000 resamples of 10,000 queries at once would take 800 MB.
RESAMPLE_BLOCK = 4_000_000

PerQuery = Mapping[str, float]
Qrels = Mapping[str, Mapping[str, int]]


class Scores(NamedTuple):
    """Measures by name: the mean over the judged queries, and the value of each query."""

    mean: dict[str, float]
    per_query: dict[str, dict[str, float]]


class Comparison(NamedTuple):
    """Paired difference a - b: mean, 95 % interval (bootstrap), p value (randomization test)."""

    difference: float
    low: float
    high: float
    p: float
    queries: int


class JudgedQueries(Protocol):
    """Queries and their judgments, as in a split of a dataset."""

    @property
    def queries(self) -> Sequence[Query]: ...

    @property
    def qrels(self) -> Qrels: ...


def evaluate_run(run: Mapping[str, Mapping[str, float]], qrels: Qrels, measures: Sequence[str] = MEASURES) -> Scores:
    """Compute the measures of a run: scores by query and document id.

    The mean is over all queries in `qrels`; a query without results counts as 0. Documents with equal scores are
    ordered by id, as in trec_eval; use `rank_run` if the order is known.
    """
    import ir_measures

    parsed = [_parse_measure(name) for name in measures]
    if not qrels:
        raise DataError("no judgments given, expected at least one judged query; check the split")
    judged = [ir_measures.Qrel(query, doc, score) for query, docs in qrels.items() for doc, score in docs.items()]
    scored = [ir_measures.ScoredDoc(query, doc, score) for query, docs in run.items() for doc, score in docs.items()]
    per_query: dict[str, dict[str, float]] = {name: dict.fromkeys(qrels, 0.0) for name in measures}
    names = {str(measure): name for measure, name in zip(parsed, measures, strict=True)}
    for metric in ir_measures.iter_calc(parsed, judged, scored):
        per_query[names[str(metric.measure)]][metric.query_id] = float(metric.value)
    return Scores({name: float(np.mean(list(values.values()))) for name, values in per_query.items()}, per_query)


def rank_run(ranking: Mapping[str, Sequence[str]]) -> Run:
    """Make a run from ordered ids, with scores that fall by 1 per rank."""
    return {query: {doc: float(len(docs) - rank) for rank, doc in enumerate(docs)} for query, docs in ranking.items()}


def compute_candidate_recall(candidates: Mapping[str, Collection[str]], qrels: Qrels) -> float:
    """Return the mean share of relevant documents among the candidates, an upper bound of recall."""
    shares = []
    for query, judged in qrels.items():
        relevant = {doc for doc, score in judged.items() if score > 0}
        if relevant:
            shares.append(len(relevant.intersection(candidates.get(query, ()))) / len(relevant))
    if not shares:
        raise DataError("no query has a relevant document (score above 0), expected at least one; check the judgments")
    return float(np.mean(shares))


def compare_paired(a: PerQuery, b: PerQuery, *, resamples: int = RESAMPLES, seed: int = 0) -> Comparison:
    """Compare the values of two systems for the same queries."""
    if not a or a.keys() != b.keys():
        only = sorted(a.keys() ^ b.keys())[:3]
        raise DataError(f"{len(a)} and {len(b)} queries to compare, expected the same ones; only in one: {only}")
    differences = np.array([a[query] - b[query] for query in a])
    random = np.random.default_rng(seed)
    count, observed = len(differences), abs(differences.mean())
    means, as_large, drawn = [], 0, 0
    while drawn < resamples:
        rows = min(resamples - drawn, max(1, RESAMPLE_BLOCK // count))
        means.append(differences[random.integers(0, count, (rows, count))].mean(axis=1))
        signs = random.integers(0, 2, (rows, count), dtype=np.int8) * 2 - 1
        # Tolerance: rounding must not make a shuffle of the same numbers smaller than the observed difference.
        as_large += int((np.abs((signs * differences).mean(axis=1)) >= observed * (1 - 1e-12)).sum())
        drawn += rows
    low, high = np.quantile(np.concatenate(means), [0.025, 0.975])
    return Comparison(float(differences.mean()), float(low), float(high), (as_large + 1) / (resamples + 1), count)


@dataclass(frozen=True, kw_only=True)
class Report:
    """Results of `evaluate_searcher`. Times are milliseconds per query; `single`: one query at a time."""

    measures: dict[str, float]
    candidate_recall: float
    candidates: int
    queries: int
    documents: int
    engine: str
    ram_bytes_per_doc: float
    single_median_ms: dict[str, float]
    single_mean_ms: dict[str, float]
    timed_queries: int
    batch_queries_per_second: float
    per_query: dict[str, dict[str, float]]
    run: Run
    """The ranking of each query, with scores that preserve the order."""
    recall_curve: list[tuple[int, float]] = field(default_factory=list)
    """`candidate_recall` by number of candidates."""
    lexical: int = 0
    generation: str = ""
    """The generation of the index."""
    ram_parts: dict[str, float] = field(default_factory=dict)
    """`ram_bytes_per_doc` by part."""
    reads: dict[str, float] = field(default_factory=dict)
    """Of the timed queries: vectors ranked, those of them in memory, reads from the disk, and bytes, per query."""

    def json(self) -> str:
        """Return the report as JSON, without the values and rankings of each query."""
        return json.dumps({name: value for name, value in vars(self).items() if name not in PER_QUERY_FIELDS}, indent=2)

    def table(self) -> str:
        """Return the report as text."""
        rows = [(name, f"{value:.4f}") for name, value in self.measures.items()]
        rows.append((f"relevant among {self.candidates} candidates", f"{self.candidate_recall:.4f}"))
        rows += [
            (f"ms a query, {step}", f"{self.single_median_ms[step]:.2f} median, {self.single_mean_ms[step]:.2f} mean")
            for step in (*STEPS, "total")
        ]
        if self.reads:
            vectors, hits, reads, size = (self.reads[name] for name in READ_COUNTS)
            rows.append(("vectors ranked a query", f"{vectors:,.1f}, of them in memory {hits:,.1f}"))
            rows.append(("reads a query", f"{reads:,.1f} of {size / 1e3:,.1f} KB"))
        rows.append(("queries a second, in batches", f"{self.batch_queries_per_second:,.0f}"))
        rows.append(("RAM, bytes a document", f"{self.ram_bytes_per_doc:.1f} ({get_engine_label(self.engine)})"))
        rows += [(f"  {get_part_label(part)}", f"{size:.2f}") for part, size in self.ram_parts.items() if size]
        rows.append(("queries, documents", f"{self.queries:,}, {self.documents:,}"))
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def get_depth(measures: Sequence[str]) -> int:
    """Return the number of results that the measures need."""
    return max([MIN_DEPTH, *(int(cutoff) for name in measures for cutoff in re.findall(r"@(\d+)", name))])


def evaluate(
    searcher: Searcher, split: Split, measures: Sequence[str] = MEASURES, *, candidates: int | None = None
) -> Report:
    """Measure an open index on the judged questions of a split."""
    return evaluate_searcher(searcher, split, measures, candidates=candidates)


def evaluate_searcher(
    searcher: Searcher,
    split: JudgedQueries,
    measures: Sequence[str] = MEASURES,
    k: int | None = None,
    candidates: int | None = None,
) -> Report:
    """Measure results, candidates, time and memory over the judged queries of a split.

    Args:
        k: number of results; None: as many as the measures need, at most the candidates.
        candidates: number of candidates; None: as set in the searcher.
    """
    for name in measures:
        _parse_measure(name)
    candidates = searcher.candidates if candidates is None else candidates
    k = min(get_depth(measures), candidates) if k is None else k
    queries = _select_judged(split)
    qrels = {query.id: split.qrels[query.id] for query in queries}
    rankings, seconds = _search_batches(searcher, queries, k, candidates)
    run = rank_run(_get_ids(searcher, queries, [batch.rows for batch in rankings]))
    scores = evaluate_run(run, qrels, measures)
    depths = _get_ids(searcher, queries, [batch.candidate_rows for batch in rankings])
    timed = time_batches(searcher, [query.text for query in queries[:TIMED_QUERIES]], k, candidates)
    singles = [(*batch.timings, batch.timings.total) for batch in timed]
    usage = searcher.reader.ram_usage
    return Report(
        measures=scores.mean,
        candidate_recall=compute_candidate_recall(depths, qrels),
        candidates=rankings[0].candidate_positions.shape[1],
        queries=len(queries),
        documents=searcher.reader.count,
        engine=searcher.reader.candidates.name,
        ram_bytes_per_doc=usage.per_document,
        ram_parts={name: size for name, size in usage.to_json().items() if name != "total"},
        single_median_ms=_name_steps(np.median(singles, axis=0).tolist()),
        single_mean_ms=_name_steps(np.mean(singles, axis=0).tolist()),
        timed_queries=len(singles),
        reads=_average_reads([batch.read_stats for batch in timed]),
        batch_queries_per_second=len(queries) / seconds,
        per_query=scores.per_query,
        run=run,
        recall_curve=_compute_curve(depths, qrels),
        lexical=searcher.lexical,
        generation=(rankings[0].view or searcher.reader.latest()).generation.name,
    )


def save_recall_curve(index: Path, report: Report, model: str | None, split: str) -> None:
    """Save the measures in the index folder for the server, unless it is read-only.

    Results with BM25 candidates, which say nothing about the codes, and of other generations are not saved.
    """
    content = {"split": split, "queries": report.queries, "documents": report.documents, "model": model}
    content |= {"measures": report.measures, "recall_curve": report.recall_curve}
    with suppress(OSError, IndexFolderError):
        generation = read_current(index)
        if not report.lexical and report.generation == generation[0]:
            write_json(index / EVALUATED, {**content, "generation": generation})


class RecallCurve(NamedTuple):
    """A saved curve of (candidates, recall). `is_outdated`: documents were added, deleted or merged since."""

    points: list[list[float]]
    is_outdated: bool


def load_recall_curve(index: Path, model: str | None) -> RecallCurve | None:
    """Load the curve that `save_recall_curve` saved, if it is of this model."""
    try:
        content = json.loads(read_regular(index / EVALUATED))
        if content["model"] != model:
            return None
        is_outdated = tuple(content["generation"]) != read_current(index)
        return RecallCurve(_parse_curve(content["recall_curve"]), is_outdated)
    except (OSError, ValueError, LookupError, TypeError, RecursionError, IndexFolderError):
        return None


def _parse_curve(points: Any) -> list[list[float]]:
    """Check and return the points (candidates, recall) of a saved curve."""
    curve = [[int(depth), float(recall)] for depth, recall in points]
    if not all(depth >= 1 and 0 <= recall <= 1 for depth, recall in curve):
        raise ValueError("a point outside the curve's bounds")
    return curve


def _select_judged(split: JudgedQueries) -> list[Query]:
    queries = [query for query in split.queries if query.id in split.qrels]
    if not queries:
        raise DataError("the split has no judged queries, expected at least one; check queries and judgments")
    return queries


def _compute_curve(candidates: Mapping[str, Sequence[str]], qrels: Qrels) -> list[tuple[int, float]]:
    deepest = max(map(len, candidates.values()))
    depths = [n for n in CURVE_DEPTHS if n < deepest] + [deepest]
    return [(n, compute_candidate_recall({query: ids[:n] for query, ids in candidates.items()}, qrels)) for n in depths]


def time_batches(searcher: Searcher, texts: Sequence[str], k: int, candidates: int) -> list[RankedBatch]:
    """Search one query at a time after a warm-up query."""
    _search_batch(searcher, texts[:1], k, candidates)
    return [_search_batch(searcher, [text], k, candidates) for text in texts]


def time_queries(searcher: Searcher, texts: Sequence[str], k: int, candidates: int) -> list[tuple[float, ...]]:
    """Return the milliseconds of each step and their sum (see `time_batches`)."""
    timings: list[Timings] = [batch.timings for batch in time_batches(searcher, texts, k, candidates)]
    return [(*steps, steps.total) for steps in timings]


def _average_reads(stats: Sequence[ReadStats]) -> dict[str, float]:
    means = np.mean(stats, axis=0).tolist()
    return dict(zip(READ_COUNTS, (round(mean, 1) for mean in means), strict=True))


def _search_batch(searcher: Searcher, texts: Sequence[str], k: int, candidates: int) -> RankedBatch:
    queries, milliseconds = searcher.encode(texts)
    ranking = searcher.search_vectors(queries, k, candidates, words=texts)
    return ranking._replace(timings=ranking.timings._replace(encode=milliseconds))


def _search_batches(
    searcher: Searcher, queries: Sequence[Query], k: int, candidates: int
) -> tuple[list[RankedBatch], float]:
    """Return the rankings batch by batch, and the seconds they took."""
    started = time.perf_counter()
    rankings = [
        _search_batch(searcher, [query.text for query in queries[start : start + QUERIES_PER_BATCH]], k, candidates)
        for start in range(0, len(queries), QUERIES_PER_BATCH)
    ]
    return rankings, time.perf_counter() - started


def _get_ids(searcher: Searcher, queries: Sequence[Query], batches: Sequence[Any]) -> dict[str, list[str]]:
    every = (rows for batch in batches for rows in batch)
    return {
        query.id: searcher.reader.documents.ids(rows[rows >= 0].tolist())
        for query, rows in zip(queries, every, strict=True)
    }


def _name_steps(values: Sequence[float]) -> dict[str, float]:
    return {step: round(float(value), 4) for step, value in zip((*STEPS, "total"), values, strict=True)}


def _parse_measure(name: str) -> Any:
    import ir_measures

    try:
        return ir_measures.parse_measure(name)
    except (NameError, ValueError, TypeError, SyntaxError) as error:
        raise ConfigError(f"unknown measure {name!r} ({error}); use names such as {', '.join(MEASURES)}") from error
