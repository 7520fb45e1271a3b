"""Compare recipes and BM25 on one dataset, with equal code bytes and candidates.

bidr compare --data FOLDER --out DIR --bytes-per-doc 8

Differences are to the strongest baseline: the recipe with one encoder and codes fitted to its vectors that has the
best R@10 on dev, which the stages are selected on too. BM25 is a row beside them. Where a baseline fused with BM25 is
a row, the default's difference to it is given too: what it gains beyond fusion.
"""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bidr.data.dataset import Dataset, Split, check
from bidr.errors import ConfigError
from bidr.index.storage.live_state import read_model_reference
from bidr.pipeline.build import build
from bidr.pipeline.open import open_index
from bidr.search.evaluation import (
    Scores,
    compare_paired,
    compute_candidate_recall,
    evaluate_run,
    evaluate_searcher,
    rank_run,
    save_recall_curve,
)
from bidr.search.searcher import Searcher
from bidr.search.truncated_searcher import make_truncated_searchers
from bidr.training.config import SamplerName, TrainConfig
from bidr.training.config_validation import check_dims
from bidr.training.data import read_splits, select_unseen_queries
from bidr.training.negatives.bm25_search import Bm25
from bidr.training.presets import DEFAULT, get_recipe, list_contradictions, with_recipe
from bidr.training.run_context import TrainingRun, check_prefixes, check_teacher
from bidr.training.train import open_run, train_model
from bidr.utils.files import write_json
from bidr.utils.progress import say

UNIFIED = ("bidr", "bidr-unified", "bidr-jpq", "bidr-lists", "star-jpq")
SAMPLERS: tuple[SamplerName, ...] = ("random-walk", "snowball")
MEASURES = ("R@10", "R@100")
DEV_MEASURE = "R@10"
FITTED_CODES = ("pq", "opq")
METHOD_NAMES = {
    "warmup-opq": "warm-up + OPQ",
    "warmup-opq-bm25": "warm-up + OPQ + BM25",
    "star-opq-bm25": "STAR + OPQ + BM25",
}
FUSED_METHODS = ("warm-up + OPQ + BM25", "STAR + OPQ + BM25")
CHOSEN_METHOD = "auto"
TIMED_QUERIES = 100


class ComparisonRow(NamedTuple):
    """A recipe (or BM25), measured on the labeled queries of a split."""

    method: str
    r10: float
    r100: float
    candidate_recall: float
    ram_bytes_per_doc: float | None
    ms_per_query: float
    per_query: dict[str, dict[str, float]]
    train_seconds: float = 0.0
    """Training time of the stages that no earlier row trained."""
    dev_r10: float | None = None
    """R@10 of the dev queries that stages are selected on; None: not measured."""
    is_baseline: bool = False
    """Whether the recipe is a baseline: one encoder, and codes fitted to its vectors."""
    ram_parts: Mapping[str, float] | None = None
    """`ram_bytes_per_doc` by part; None: not measured."""
    selected_on: int = 0
    """Number of its queries that training and the choice of the baseline were selected on."""

    def to_json(self) -> dict[str, Any]:
        """Return the row's values for comparison.json."""
        return {
            "method": self.method,
            "R@10": self.r10,
            "R@100": self.r100,
            "candidate_recall": self.candidate_recall,
            "ram_bytes_per_doc": self.ram_bytes_per_doc,
            "ram_parts": self.ram_parts,
            "ms_per_query": self.ms_per_query,
            "train_seconds": self.train_seconds,
            "dev_R@10": self.dev_r10,
            "queries": len(self.per_query[DEV_MEASURE]),
            "queries_selected_on": self.selected_on,
        }


def compare(
    data: Dataset,
    out: Path,
    config: TrainConfig,
    *,
    engine: str = "auto",
    split: str = "test",
    recipes: Sequence[str] = DEFAULT,
    shrink: Sequence[int] = (),
) -> list[ComparisonRow]:
    """Train, build and measure BM25 and each recipe; finished stages are not trained again.

    All share the text settings, the code bytes, the number of candidates and every stage whose settings are equal. A
    recipe with one encoder trains it for as many steps as the method's stages together; only `warmup-opq` stops after
    the warm-up. Explicit settings override a recipe's, with a message. comparison.json is written after each row.

    Args:
        shrink: Dimensions at which to measure truncated vectors, besides int8.
    """
    ways = [get_recipe(name) for name in recipes]
    configs = {way.name: with_recipe(config, way.name) for way in ways}
    for name, settings in configs.items():
        if name in UNIFIED and settings.unify.epochs < 1:
            raise ConfigError(f"unify.epochs: given 0, expected 1 or more: the recipe {name!r} fits a query encoder")
        check_teacher(settings)
    check_prefixes(config, config.dim)
    _check_cuts(configs, shrink, config.dim)
    test_split = _read_split(data, split, config)
    for name in configs:
        for line in list_contradictions(config, name):
            say(line)
    run = open_run(data, config, out)
    _check_cuts(configs, shrink, run.dim)
    test_split = _hold_out(test_split, run.dev_split)
    selected_on = len(test_split.queries) - len(select_unseen_queries(test_split, run.dev_split).queries)
    rows = [_measure_bm25(data, test_split, run.dev_split, config)._replace(selected_on=selected_on)]
    for name, settings in configs.items():
        recipe_run = run.with_config(settings)
        if name == "bidr-unified":
            recipe_run = run.with_config(
                replace(settings, dense=replace(settings.dense, sampler=choose_sampler(recipe_run)))
            )
        measured = _measure(name, recipe_run, out, test_split, engine, sorted({*settings.dense.prefixes, *shrink}))
        rows += [row._replace(selected_on=selected_on) for row in measured]
        write_json(out / "comparison.json", report(rows))
    return rows


def _check_cuts(configs: Mapping[str, TrainConfig], shrink: Sequence[int], dim: int | None) -> None:
    """Check truncation before training: untruncated vectors would be measured as another recipe."""
    check_dims("shrink", shrink, dim)
    for name, settings in configs.items():
        check_dims(f"recipe {name!r}, dense.prefixes", settings.dense.prefixes, dim, "leave the recipe out")


def _read_split(data: Dataset, split: str, config: TrainConfig) -> Split:
    """Read the split to measure on; a missing dev split is the part that training splits off."""
    if split == "dev" and "dev" not in data.splits():
        return read_splits(data, config.dev_queries, config.seed, config.min_dev_queries).dev
    judged = data.split(split)
    check(data, [split])
    return judged


def _hold_out(split: Split, dev: Split) -> Split:
    """Leave out the queries that training selects on.

    Of a dev split that has few others all are measured; the rows say that they were selected on.
    """
    unseen = select_unseen_queries(split, dev)
    shared = len(split.queries) - len(unseen.queries)
    if not shared:
        return split
    counts = f"{shared:,} of the {len(split.queries):,} queries of {split.name!r}"
    if len(unseen.queries) > shared:
        say(f"{counts} are those that training selects on: measured are the other {len(unseen.queries):,}")
        return unseen
    if split.name != "dev":
        raise ConfigError(f"split: {counts} are those that training selects on; report on another split")
    say(f"{counts} are those that training selects on: choose by these figures, report on another split")
    return split


def choose_sampler(run: TrainingRun) -> SamplerName:
    """Choose the trained sampler with the best dev recall, to be unified."""
    trained = [sampler for sampler in SAMPLERS if run.is_finished(run.get_stage_name(f"dense-{sampler}"))]

    def get_best_recall(sampler: SamplerName) -> float:
        return max(epoch["R@10"] for epoch in run.read_history(run.get_stage_name(f"dense-{sampler}")))

    return max(trained, key=get_best_recall) if trained else run.config.dense.sampler


def _measure_bm25(data: Dataset, test_split: Split, dev: Split, config: TrainConfig) -> ComparisonRow:
    ids = [document.id for document in data.corpus]
    engine = Bm25(data.corpus.iter_texts(config.text.titles))

    def rank(judged: Split) -> dict[str, list[str]]:
        top_rows = engine.search([query.text for query in judged.queries], config.candidates).rows
        return {
            query.id: [ids[row] for row in rows if row >= 0]
            for query, rows in zip(judged.queries, top_rows.tolist(), strict=True)
        }

    def score(ranked: dict[str, list[str]], judged: Split) -> Scores:
        return evaluate_run(rank_run({query: docs[:100] for query, docs in ranked.items()}), judged.qrels, MEASURES)

    ranked = rank(test_split)
    scores = score(ranked, test_split)
    times = []
    for text in [query.text for query in test_split.queries[:TIMED_QUERIES]]:
        started = time.perf_counter()
        engine.search([text], config.candidates, quiet=True)
        times.append(1000 * (time.perf_counter() - started))
    depth = {query: docs[: config.candidates] for query, docs in ranked.items()}
    return ComparisonRow(
        "BM25",
        scores.mean["R@10"],
        scores.mean["R@100"],
        compute_candidate_recall(depth, test_split.qrels),
        None,
        median(times),
        scores.per_query,
        dev_r10=score(rank(dev), dev).mean[DEV_MEASURE],
    )


def _measure(
    name: str, run: TrainingRun, out: Path, judged: Split, engine: str, shrink: Sequence[int]
) -> list[ComparisonRow]:
    """Measure a recipe, and its vectors as int8 and truncated."""
    folder, method = out / name, METHOD_NAMES.get(name, re.sub("^bidr-", "bidr ", name))
    folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    model = train_model(run, folder, name)
    seconds = time.monotonic() - started
    index = build(run.dataset, model, folder / "index", engine=engine, tokens=run.folder / "tokens")
    with open_index(index, device=run.device) as searcher:
        row = _measure_searcher(method, searcher, judged, seconds, index)
        dev_r10 = evaluate_searcher(searcher, run.dev_split, (DEV_MEASURE,)).measures[DEV_MEASURE]
        rows = [row._replace(dev_r10=dev_r10, is_baseline=_is_baseline(run.config))]
        for how, smaller in make_truncated_searchers(searcher, shrink).items() if shrink else ():
            rows.append(_measure_searcher(f"{method}, {how}", smaller, judged, 0.0))
    return rows


def _measure_searcher(
    method: str, searcher: Searcher, judged: Split, seconds: float, index: Path | None = None
) -> ComparisonRow:
    evaluation = evaluate_searcher(searcher, judged, MEASURES)
    if index is not None:
        stamp = read_model_reference(index)
        save_recall_curve(index, evaluation, stamp.fingerprint if stamp else None, judged.name)
    say(f"{method}: R@10 {evaluation.measures['R@10']:.4f}, R@100 {evaluation.measures['R@100']:.4f}")
    return ComparisonRow(
        method,
        evaluation.measures["R@10"],
        evaluation.measures["R@100"],
        evaluation.candidate_recall,
        evaluation.ram_bytes_per_doc,
        evaluation.single_median_ms["total"],
        evaluation.per_query,
        seconds,
        ram_parts=evaluation.ram_parts,
    )


def _is_baseline(config: TrainConfig) -> bool:
    """Check for a conventional recipe whose codes are fitted to its vectors."""
    return config.method == "conventional" and config.conventional.codes in FITTED_CODES


def report(rows: list[ComparisonRow]) -> dict[str, Any]:
    """Build comparison.json: rows, and differences to the strongest baseline with confidence intervals."""
    base = _choose_baseline(rows)
    fused = [row for row in rows if row.method in FUSED_METHODS]
    differences = {
        f"against_{other.method}": {row.method: _compare_rows(row, other) for row in rows if row is not other}
        for other in (base, *fused)
    }
    choice = {
        "method": base.method,
        "chosen_by": f"{DEV_MEASURE} on dev" if base.is_baseline else None,
        "dev_R@10": {row.method: row.dev_r10 for row in rows if row.is_baseline},
    }
    return {"rows": [row.to_json() for row in rows], "baseline": choice, **differences}


def _compare_rows(row: ComparisonRow, other: ComparisonRow) -> dict[str, dict[str, float]]:
    """Compare the queries' recall of two rows, with 95 % intervals."""
    return {name: compare_paired(row.per_query[name], other.per_query[name])._asdict() for name in MEASURES}


def _choose_baseline(rows: list[ComparisonRow]) -> ComparisonRow:
    """Choose the baseline with the best R@10 on dev; without one, the first trained recipe."""
    baselines = [row for row in rows if row.is_baseline]
    if not baselines:
        return rows[min(1, len(rows) - 1)]
    return max(baselines, key=_get_dev_r10)


def _get_dev_r10(row: ComparisonRow) -> float:
    return row.dev_r10 or 0.0


def _describe_choice(rows: list[ComparisonRow]) -> str:
    """Describe which row the differences are to, and how it was chosen."""
    base = _choose_baseline(rows)
    if not base.is_baseline:
        return f"differences are to {base.method}: no row has one encoder and codes fitted to its vectors"
    baselines = sorted((row for row in rows if row.is_baseline), key=_get_dev_r10, reverse=True)
    others = [row for row in rows if row.method == "BM25"]
    values = [
        ", ".join(f"{row.method} {_get_dev_r10(row):.4f}" for row in some) for some in (baselines, others) if some
    ]
    return f"differences are to {base.method}, the strongest baseline by {DEV_MEASURE} on dev: {'; '.join(values)}"


def format_table(rows: list[ComparisonRow]) -> str:
    """Format the rows as text, with R@10 differences to the strongest baseline and 95 % intervals."""
    comparison = report(rows)
    base = comparison["baseline"]["method"]
    against = comparison[f"against_{base}"]
    names = ("method", "R@10", "R@100", "candidates", "RAM bytes/doc, of codes", "ms/query", f"R@10 against {base}")
    cells: list[tuple[str, ...]] = [names]
    for row in rows:
        difference = ""
        if row.method in against:
            interval = against[row.method]["R@10"]
            difference = f"{interval['difference']:+.4f} [{interval['low']:+.4f}, {interval['high']:+.4f}]"
        ram = "-"
        if row.ram_bytes_per_doc is not None:
            ram = f"{row.ram_bytes_per_doc:.1f}, {(row.ram_parts or {}).get('codes', 0):.1f}"
        recalls = (f"{value:.4f}" for value in (row.r10, row.r100, row.candidate_recall))
        cells.append((row.method, *recalls, ram, f"{row.ms_per_query:.2f}", difference))
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    lines = ["  ".join(f"{cell:<{w}}" for cell, w in zip(line, widths, strict=True)).rstrip() for line in cells]
    lines.append(_describe_choice(rows))
    for fused in FUSED_METHODS:
        if lead := comparison.get(f"against_{fused}", {}).get(CHOSEN_METHOD):
            parts = (f"{name} {d['difference']:+.4f} [{d['low']:+.4f}, {d['high']:+.4f}]" for name, d in lead.items())
            lines.append(f"{CHOSEN_METHOD} against {fused}: {', '.join(parts)}: its gain beyond fusion")
    lines.append("RAM is all that the open index holds, codebooks included; ram_parts in comparison.json has the split")
    if rows[0].selected_on:
        count = f"{rows[0].selected_on:,} of {len(rows[0].per_query[DEV_MEASURE]):,}"
        lines.append(f"{count} queries are those that training selected on: report on another split")
    return "\n".join(lines)
