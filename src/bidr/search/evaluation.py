"""How good the answers are: measures as trec_eval defines them, what the codes lose, significance, time and memory."""

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
from bidr.index.storage.manifest import current_generation
from bidr.search.searcher import Searcher
from bidr.search.types import STEPS, RankedBatch, Timings
from bidr.utils.files import read_regular, write_json

MEASURES = ("R@10", "R@100", "RR@10", "nDCG@10")
DEPTH = 100
BY_QUERY = ("per_query", "run")
BATCH = 64
CURVE = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000)
EVALUATED = "evaluated.json"
TIMED_QUERIES = 200
RESAMPLES = 10_000
# Resamples are drawn some at a time: 10,000 resamples of 10,000 queries at once would take 800 MB.
RESAMPLE_NUMBERS = 4_000_000

PerQuery = Mapping[str, float]
Qrels = Mapping[str, Mapping[str, int]]


class Scores(NamedTuple):
    """Measures by name: the mean over the judged queries, and each query's own value."""

    mean: dict[str, float]
    per_query: dict[str, dict[str, float]]


class Comparison(NamedTuple):
    """a minus b over the same queries: mean, 95 % interval (paired bootstrap), p value (paired randomisation)."""

    difference: float
    low: float
    high: float
    p: float
    queries: int


class Judged(Protocol):
    """Queries and their judgements, as a split of a data set has them."""

    @property
    def queries(self) -> Sequence[Query]: ...

    @property
    def qrels(self) -> Qrels: ...


def evaluate_run(run: Mapping[str, Mapping[str, float]], qrels: Qrels, measures: Sequence[str] = MEASURES) -> Scores:
    """Measures of a run: scores by query and document id.

    The mean is over all queries in `qrels`; one without answers counts as 0. Documents with equal scores are ordered by
    their ids, as trec_eval does: give scores that differ (see `rank_run`) where the order is known.
    """
    import ir_measures

    parsed = [_parse(name) for name in measures]
    if not qrels:
        raise DataError("no judgements given, expected at least one judged query; check the split")
    judged = [ir_measures.Qrel(query, doc, score) for query, found in qrels.items() for doc, score in found.items()]
    scored = [ir_measures.ScoredDoc(query, doc, score) for query, found in run.items() for doc, score in found.items()]
    per_query: dict[str, dict[str, float]] = {name: dict.fromkeys(qrels, 0.0) for name in measures}
    names = {str(measure): name for measure, name in zip(parsed, measures, strict=True)}
    for metric in ir_measures.iter_calc(parsed, judged, scored):
        per_query[names[str(metric.measure)]][metric.query_id] = float(metric.value)
    return Scores({name: float(np.mean(list(values.values()))) for name, values in per_query.items()}, per_query)


def rank_run(found: Mapping[str, Sequence[str]]) -> Run:
    """A run from ordered ids: scores fall by one a rank, so no tie lets another order in."""
    return {query: {doc: float(len(docs) - rank) for rank, doc in enumerate(docs)} for query, docs in found.items()}


def compute_candidate_recall(candidates: Mapping[str, Collection[str]], qrels: Qrels) -> float:
    """Share of the relevant documents that are among the candidates, mean over queries: what no ranking can exceed."""
    shares = []
    for query, judged in qrels.items():
        relevant = {doc for doc, score in judged.items() if score > 0}
        if relevant:
            shares.append(len(relevant.intersection(candidates.get(query, ()))) / len(relevant))
    if not shares:
        raise DataError("no query has a relevant document (score above 0), expected at least one; check the judgements")
    return float(np.mean(shares))


def compare_paired(a: PerQuery, b: PerQuery, *, resamples: int = RESAMPLES, seed: int = 0) -> Comparison:
    """Whether a differs from b, by the values each gave the same queries."""
    if not a or a.keys() != b.keys():
        only = sorted(a.keys() ^ b.keys())[:3]
        raise DataError(f"{len(a)} and {len(b)} queries to compare, expected the same ones; only in one: {only}")
    differences = np.array([a[query] - b[query] for query in a])
    random = np.random.default_rng(seed)
    count, observed = len(differences), abs(differences.mean())
    means, as_large, done = [], 0, 0
    while done < resamples:
        rows = min(resamples - done, max(1, RESAMPLE_NUMBERS // count))
        means.append(differences[random.integers(0, count, (rows, count))].mean(axis=1))
        signs = random.integers(0, 2, (rows, count), dtype=np.int8) * 2 - 1
        # Rounding must not make a shuffle that only reorders the same numbers look smaller than what was observed.
        as_large += int((np.abs((signs * differences).mean(axis=1)) >= observed * (1 - 1e-12)).sum())
        done += rows
    low, high = np.quantile(np.concatenate(means), [0.025, 0.975])
    return Comparison(float(differences.mean()), float(low), float(high), (as_large + 1) / (resamples + 1), count)


@dataclass(frozen=True, kw_only=True)
class Report:
    """What `evaluate_searcher` found. Times are milliseconds a query; `single` is one query at a time."""

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
    """What was found for each query, scored so that whoever reads it ranks it the same."""
    recall_curve: list[tuple[int, float]] = field(default_factory=list)
    """`candidate_recall` of the first so many candidates."""
    lexical: int = 0
    generation: str = ""
    """Of the index that was asked."""

    def json(self) -> str:
        """Everything but the values and rankings of each query, for another program."""
        return json.dumps({name: value for name, value in vars(self).items() if name not in BY_QUERY}, indent=2)

    def table(self) -> str:
        """The same for a person."""
        rows = [(name, f"{value:.4f}") for name, value in self.measures.items()]
        rows.append((f"relevant among {self.candidates} candidates", f"{self.candidate_recall:.4f}"))
        rows += [
            (f"ms a query, {step}", f"{self.single_median_ms[step]:.2f} median, {self.single_mean_ms[step]:.2f} mean")
            for step in (*STEPS, "total")
        ]
        rows.append(("queries a second, in batches", f"{self.batch_queries_per_second:,.0f}"))
        rows.append(("RAM, bytes a document", f"{self.ram_bytes_per_doc:.1f} ({self.engine})"))
        rows.append(("queries, documents", f"{self.queries:,}, {self.documents:,}"))
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def depth_of(measures: Sequence[str]) -> int:
    """How deep rankings must go for the measures to mean what they say."""
    return max([DEPTH, *(int(cutoff) for name in measures for cutoff in re.findall(r"@(\d+)", name))])


def evaluate(
    searcher: Searcher, split: Split, measures: Sequence[str] = MEASURES, *, candidates: int | None = None
) -> Report:
    """Measure an open index on the judged questions of a split."""
    return evaluate_searcher(searcher, split, measures, candidates=candidates)


def evaluate_searcher(
    searcher: Searcher,
    split: Judged,
    measures: Sequence[str] = MEASURES,
    k: int | None = None,
    candidates: int | None = None,
) -> Report:
    """Measure answers, candidates, time and memory over the judged queries of a split.

    k: how many answers are ranked; None: as many as the measures need, at most the candidates.
    """
    for name in measures:
        _parse(name)
    candidates = searcher.candidates if candidates is None else candidates
    k = min(depth_of(measures), candidates) if k is None else k
    queries = _judged(split)
    qrels = {query.id: split.qrels[query.id] for query in queries}
    rankings, seconds = _answer_all(searcher, queries, k, candidates)
    run = rank_run(_ids(searcher, queries, [found.rows for found in rankings]))
    scores = evaluate_run(run, qrels, measures)
    depths = _ids(searcher, queries, [found.candidate_rows for found in rankings])
    singles = time_queries(searcher, [query.text for query in queries[:TIMED_QUERIES]], k, candidates)
    return Report(
        measures=scores.mean,
        candidate_recall=compute_candidate_recall(depths, qrels),
        candidates=rankings[0].candidate_positions.shape[1],
        queries=len(queries),
        documents=searcher.reader.count,
        engine=searcher.reader.candidates.name,
        ram_bytes_per_doc=searcher.reader.ram_bytes_per_doc,
        single_median_ms=_by_step(np.median(singles, axis=0).tolist()),
        single_mean_ms=_by_step(np.mean(singles, axis=0).tolist()),
        timed_queries=len(singles),
        batch_queries_per_second=len(queries) / seconds,
        per_query=scores.per_query,
        run=run,
        recall_curve=_curve(depths, qrels),
        lexical=searcher.lexical,
        generation=(rankings[0].view or searcher.reader.latest()).generation.name,
    )


def save_recall_curve(index: Path, report: Report, model: str | None, split: str) -> None:
    """Leave in the index folder what was measured, for whoever serves it; a folder that is read-only stays as it is.

    Not what words helped to find, which says nothing about the codes, nor what another generation answered.
    """
    told = {"split": split, "queries": report.queries, "documents": report.documents, "model": model}
    told |= {"measures": report.measures, "recall_curve": report.recall_curve}
    with suppress(OSError, IndexFolderError):
        generation = current_generation(index)
        if not report.lexical and report.generation == generation[0]:
            write_json(index / EVALUATED, {**told, "generation": generation})


def load_recall_curve(index: Path, model: str | None) -> list[list[float]] | None:
    """The curve that `remember` left, if it was of this model and of the generation in force."""
    try:
        found = json.loads(read_regular(index / EVALUATED))
        curve: list[list[float]] = found["recall_curve"]
        measured = (found["model"], *found["generation"])
        return curve if measured == (model, *current_generation(index)) else None
    except (OSError, ValueError, LookupError, TypeError, IndexFolderError):
        return None


def _judged(split: Judged) -> list[Query]:
    queries = [query for query in split.queries if query.id in split.qrels]
    if not queries:
        raise DataError("the split has no judged queries, expected at least one; check queries and judgements")
    return queries


def _curve(candidates: Mapping[str, Sequence[str]], qrels: Qrels) -> list[tuple[int, float]]:
    deepest = max(map(len, candidates.values()))
    depths = [n for n in CURVE if n < deepest] + [deepest]
    return [
        (n, compute_candidate_recall({query: found[:n] for query, found in candidates.items()}, qrels)) for n in depths
    ]


def time_queries(searcher: Searcher, texts: Sequence[str], k: int, candidates: int) -> list[tuple[float, ...]]:
    """Milliseconds of each step and their sum, one query at a time; one more query warms up first."""
    _answer(searcher, texts[:1], k, candidates)
    timings: list[Timings] = [_answer(searcher, [text], k, candidates).timings for text in texts]
    return [(*steps, steps.total) for steps in timings]


def _answer(searcher: Searcher, texts: Sequence[str], k: int, candidates: int) -> RankedBatch:
    queries, milliseconds = searcher.encode(texts)
    ranking = searcher.search_vectors(queries, k, candidates, words=texts)
    return ranking._replace(timings=ranking.timings._replace(encode=milliseconds))


def _answer_all(
    searcher: Searcher, queries: Sequence[Query], k: int, candidates: int
) -> tuple[list[RankedBatch], float]:
    """Rankings batch by batch, and the seconds they took."""
    started = time.perf_counter()
    rankings = [
        _answer(searcher, [query.text for query in queries[start : start + BATCH]], k, candidates)
        for start in range(0, len(queries), BATCH)
    ]
    return rankings, time.perf_counter() - started


def _ids(searcher: Searcher, queries: Sequence[Query], rows: Sequence[Any]) -> dict[str, list[str]]:
    every = (found for batch in rows for found in batch)
    return {
        query.id: searcher.reader.documents.ids(found[found >= 0].tolist())
        for query, found in zip(queries, every, strict=True)
    }


def _by_step(values: Sequence[float]) -> dict[str, float]:
    return {step: round(float(value), 4) for step, value in zip((*STEPS, "total"), values, strict=True)}


def _parse(name: str) -> Any:
    import ir_measures

    try:
        return ir_measures.parse_measure(name)
    except (NameError, ValueError, TypeError, SyntaxError) as error:
        raise ConfigError(
            f"measure {name!r} is not known ({error}); use names such as {', '.join(MEASURES)}"
        ) from error
