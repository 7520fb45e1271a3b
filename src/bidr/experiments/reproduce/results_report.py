"""Assemble the rows found into one report: Markdown, SVG and JSON."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bidr._version import __version__
from bidr.errors import DataError
from bidr.experiments.reproduce.charts import IntervalRow, Series, render_intervals, render_lines
from bidr.experiments.reproduce.claims import Claim, Outcome, describe_outcome, evaluate_claims, get_bits_curve
from bidr.experiments.reproduce.default_comparison import make_default_summary, make_default_table
from bidr.experiments.reproduce.paper_settings import list_deviations
from bidr.experiments.reproduce.result_groups import STRONGEST, Measure, ResultGroup, make_groups
from bidr.experiments.reproduce.result_tables import (
    EMPTY,
    ResultTable,
    format_difference,
    make_appendix_table,
    make_bits_table,
    make_claims_table,
    make_cost_table,
    make_depths_table,
    make_needed_table,
    make_recall_table,
    make_sizes_table,
)
from bidr.experiments.reproduce.row_files import RowStore
from bidr.experiments.reproduce.row_specs import BASELINES, ROWS, WITH_BM25
from bidr.utils.files import write_atomically, write_json

REPORT = "report"
ANSWERS = tuple(Measure("answers", cutoff) for cutoff in (10, 50, 100))
SWEPT = {"star-opq": "STAR + OPQ", "bidr-random-walk": "bidr, random walk", "bidr-snowball": "bidr, snowball"}
ENCODERS = {
    "built-in": "sum of word-piece vectors, trained from random ones",
    "static": "sum of word-piece vectors, trained from pretrained ones",
    "transformer": "transformer",
}
RULES = """\
A difference is paired over the queries, each with its mean over the seeds; its 95 % interval is a bootstrap over
the queries. *range* is over the seeds. Differences are to the strongest baseline: one encoder and codes fitted to
its vectors, chosen by R@10 on dev. A gain **holds** if its interval lies above 0; *level*: its interval includes 0.
A loss that the paper calls small
holds if ours is no larger than the paper's largest. A claim on a curve holds if the curves of the means show it.
All rows have the same texts, code bytes and number of candidates, and are trained for as many steps, except warm-up
+ OPQ, which stops after the warm-up, and the rows that leave a stage out."""


class Report(NamedTuple):
    """The written report: summary for the terminal, and JSON."""

    text: str
    value: dict[str, Any]


def write_report(out: Path) -> Report:
    """Write DIR/report from all rows in DIR/rows."""
    results = RowStore(out).load_all()
    if not results:
        raise DataError(
            f"{out} holds no rows, expected {out}/rows/*.json; run bidr reproduce --data FOLDER --out {out}"
        )
    groups = make_groups(results)
    folder = out / REPORT
    folder.mkdir(parents=True, exist_ok=True)
    evaluated = {describe_group(group): evaluate_claims(group) for group in groups}
    sections = [render_group(group, evaluated[describe_group(group)], folder) for group in groups]
    blocks = [
        "# The paper, reproduced",
        f"Written by `bidr reproduce`, version {__version__}.",
        make_setup_table(groups),
    ]
    blocks += [
        "## Results",
        describe_results(evaluated),
        make_default_summary(groups).to_markdown(),
        "### The paper's claims",
        make_summary_table(evaluated),
        RULES,
        *(block for section, _ in sections for block in section),
    ]
    write_atomically(folder / "report.md", ("\n\n".join(block for block in blocks if block) + "\n").encode())
    value = {"version": __version__, "groups": [values for _, values in sections]}
    write_json(folder / "report.json", value)
    return Report(format_summary(evaluated, folder / "report.md"), value)


def describe_group(group: ResultGroup) -> str:
    """Name a group in headings: what its rows have in common."""
    first = group.first
    return f"{group.name}, {first.settings.get('bytes_per_doc')} bytes, N = {first.candidates:,}"


def make_setup_table(groups: Sequence[ResultGroup]) -> str:
    """One line a group: data, settings, machine."""
    header = [
        "data",
        "encoder",
        "kind of encoder",
        "documents",
        "queries",
        "split",
        "N",
        "bytes",
        "seeds",
        "rows",
        "machine",
    ]
    cells = []
    for group in groups:
        first = group.first
        machines = sorted({str(result.environment.get("device", "-")) for result in group.results})
        versions = sorted({f"torch {result.environment.get('torch', '-')}" for result in group.results})
        numbers = (
            first.documents,
            first.queries,
            first.split,
            f"{first.candidates:,}",
            first.settings.get("bytes_per_doc"),
        )
        seeds = ", ".join(map(str, group.seeds))
        counts = [f"{number:,}" if isinstance(number, int) else str(number) for number in numbers]
        machine = "; ".join(machines + versions)
        cells.append(
            [first.data, first.encoder, ENCODERS[group.encoder_kind], *counts, seeds, str(len(group.results)), machine]
        )
    lines = [header, ["---"] * len(header), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def describe_results(evaluated: dict[str, list[tuple[Claim, Outcome]]]) -> str:
    """Say which claims hold in every group that measured them, which in some, which in none, and which nowhere."""
    sentences: dict[str, list[str]] = {"in all": [], "in some": [], "in none": [], "not measured": []}
    for number, (claim, _) in enumerate(next(iter(evaluated.values()))):
        group_outcomes = [outcomes[number][1] for outcomes in evaluated.values()]
        measured = [outcome for outcome in group_outcomes if outcome.verdict != "not measured"]
        holding = sum(outcome.verdict == "holds" for outcome in measured)
        level = sum(outcome.is_level for outcome in measured)
        count = f"{holding} of {len(measured)}{f', level in {level}' if level else ''}"
        if not measured:
            sentences["not measured"].append(claim.text)
        elif holding == len(measured):
            sentences["in all"].append(f"{claim.text} ({holding})")
        elif holding:
            sentences["in some"].append(f"{claim.text} ({count})")
        else:
            sentences["in none"].append(f"{claim.text} ({count})")
    heads = {
        "in all": "Holds wherever it was measured",
        "in some": "Holds on some of the datasets",
        "in none": "Holds nowhere",
        "not measured": "Not measured",
    }
    return "\n\n".join(f"**{heads[name]}**: {'; '.join(texts)}." for name, texts in sentences.items() if texts)


def make_summary_table(evaluated: dict[str, list[tuple[Claim, Outcome]]]) -> str:
    """One line a measured claim: the paper's figures, and the groups in which it holds and in which it does not."""
    cells, labels = [], abbreviate_names(list(evaluated))
    for number, (claim, _) in enumerate(next(iter(evaluated.values()))):
        outcomes = {labels[name]: claims[number][1] for name, claims in evaluated.items()}
        sides = [
            "<br>".join(f"{name}: {_format_outcome(o)}" for name, o in outcomes.items() if o.verdict == verdict)
            for verdict in ("holds", "does not hold here")
        ]
        if any(sides):
            cells.append([claim.text, claim.source, claim.paper, *(side or EMPTY for side in sides)])
    header = ["claim", "where", "paper: passages, documents, ads", "holds", "does not hold"]
    lines = [header, ["---"] * len(header), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def abbreviate_names(names: Sequence[str]) -> dict[str, str]:
    """Leave code size and number of candidates out of the names of groups, if they are those of all groups."""
    parts = {name: name.rsplit(", ", 2) for name in names}
    is_shared = len({tuple(part[1:]) for part in parts.values()}) == 1
    return {name: part[0] if is_shared else name for name, part in parts.items()}


def _format_outcome(outcome: Outcome) -> str:
    return format_difference(outcome.difference) if outcome.difference is not None else outcome.ours


def render_group(
    group: ResultGroup, evaluated: list[tuple[Claim, Outcome]], folder: Path
) -> tuple[list[str], dict[str, Any]]:
    """Render the section of a group; returns its Markdown blocks and its JSON."""
    tables = list_tables(group)
    charts = draw_charts(group)
    prefix = re.sub(r"\W+", "-", f"{group.name} {group.first.settings.get('bytes_per_doc')} {group.first.candidates}")
    blocks = [f"## {describe_group(group)}", f"{count_verdicts(evaluated)} {describe_baseline(group)}"]
    blocks.append(make_claims_table(evaluated).to_markdown())
    unmeasured_claims = [claim.text for claim, outcome in evaluated if outcome.verdict == "not measured"]
    blocks += [f"Not measured: {'; '.join(unmeasured_claims)}."] if unmeasured_claims else []
    for table in tables:
        blocks.append(table.to_markdown())
        if table.title in charts:
            name = f"{prefix}-{re.sub(r'[^a-z0-9]+', '-', table.title.lower()).strip('-')}.svg"
            write_atomically(folder / name, charts[table.title].encode())
            blocks.append(f"![{table.title}, {group.name}]({name})")
    unmeasured = group.list_unmeasured()
    blocks += ["### Not measured", *(f"- {row}: {reason}" for row, reason in unmeasured.items())] if unmeasured else []
    deviations = list_differences(group)
    blocks += (
        ["### Settings that differ from the paper", "\n".join(f"- {line}" for line in deviations)] if deviations else []
    )
    value = {
        "group": describe_group(group),
        "strongest_baseline": group.strongest,
        "seeds": group.seeds,
        "settings": group.first.settings,
        "claims": [
            {"claim": claim.text, "source": claim.source, "paper": claim.paper, **describe_outcome(outcome)}
            for claim, outcome in evaluated
        ],
        "tables": [table.to_json() for table in tables if table.cells],
        "not_measured": unmeasured,
        "deviations": deviations,
    }
    return blocks, value


def count_verdicts(evaluated: list[tuple[Claim, Outcome]]) -> str:
    """Say how many of the claims hold."""
    verdicts = [outcome.verdict for _, outcome in evaluated]
    holding, unmeasured = verdicts.count("holds"), verdicts.count("not measured")
    count = len(verdicts) - unmeasured
    return f"**{holding} of the {count} claims measured hold here**; {unmeasured} were not measured."


def describe_baseline(group: ResultGroup) -> str:
    """Say which baseline is the strongest on dev, and how the others did there."""
    scores = {
        ROWS[row].title: score
        for row in (*BASELINES, *WITH_BM25)
        if (score := group.average(row, "R@10", "dev")) is not None
    }
    words = ", ".join(f"{title} {score:.4f}" for title, score in sorted(scores.items(), key=lambda item: -item[1]))
    chosen = ROWS[group.strongest].title if group.strongest else "none was measured"
    return f"Strongest baseline on dev: **{chosen}**. R@10 on dev: {words or 'not measured'}."


def list_tables(group: ResultGroup) -> list[ResultTable]:
    """List the tables of a group, in the paper's order."""
    candidates = [Measure("candidates", min(cutoff, group.deepest)) for cutoff in (50, 100, 1_000)]
    baselines = list(BASELINES)
    method = ["bidr-random-walk", "bidr-snowball"]
    samplers = ["bidr-ann", "bidr-ann-in-batch"]
    unified = [f"{row}-unified" for row in method]
    ablation = [f"{row}-{name}" for row in method for name in ("ann-first", "opq")]
    codes = ["star-pq", "star-opq", "star-dpq", "star-contrastive", "bidr-random-walk", "bidr-random-walk-unquantized"]
    extras = [*WITH_BM25, "auto", "star-distilled", "bidr-random-walk-graph"]
    ram = [f"{name}-hnsw" for name in ("dpr", "de-bert", "ance", "star")]
    quantization = (
        "Candidates’ recall: what the codes find before vectors are read. The method’s codes are those of its rows."
    )
    return [
        make_recall_table(
            group, "Table 1: codes in RAM, vectors on disk", [*baselines, "star-diskann", *method], ANSWERS
        ),
        make_recall_table(group, "Table 2: baselines with full vectors in RAM", ram, ANSWERS, beside=method),
        make_recall_table(group, "Table 3: quantization", codes, list(dict.fromkeys(candidates[::-1])), quantization),
        make_recall_table(group, "Table 3: sampling of the dense stage", samplers, ANSWERS, beside=method),
        make_recall_table(group, "Table 3: query unification", unified, ANSWERS, beside=method),
        make_recall_table(group, "Stage one", ablation, ANSWERS, beside=method),
        make_recall_table(group, "Beyond the paper", extras, ANSWERS, beside=[*baselines[:1], *method]),
        make_default_table(group),
        make_appendix_table(group),
        make_depths_table(group),
        make_needed_table(group),
        make_bits_table(group),
        make_sizes_table(group),
        make_cost_table(group),
    ]


def draw_charts(group: ResultGroup) -> dict[str, str]:
    """Draw the charts of a group, by the title of the table that they stand under."""
    charts = {}
    intervals = []
    for row, spec in ROWS.items():
        difference = group.compare(row, STRONGEST, ANSWERS[0]) if row != group.strongest else None
        if difference is not None and spec.kind in ("index", "bm25", "diskann") and "figure4-bits" not in spec.tables:
            intervals.append(IntervalRow(spec.title, difference.difference, difference.low, difference.high))
    if intervals:
        title = f"R@10 against {ROWS[group.strongest or ''].title}, {group.name}"
        charts["Table 1: codes in RAM, vectors on disk"] = render_intervals(
            intervals, title, "difference, 95 % interval"
        )
    latency = []
    for row, title in SWEPT.items():
        times = dict(group.get_curve(f"{row}-depths", "candidates", "ms"))
        recalls = group.get_curve(f"{row}-depths", "candidates", "R@100")
        latency.append(Series(title, [(times[depth], recall) for depth, recall in recalls]))
    _add_lines(
        charts,
        "Figure 4: candidates",
        latency,
        f"Recall by time of a query, each point a number of candidates, {group.name}",
        "ms a query, without encoding it",
        "R@100",
    )
    bits = [Series(title, get_bits_curve(group, row)) for row, title in SWEPT.items()]
    _add_lines(
        charts, "Figure 4: R@100 by bits a document", bits, f"Code size, {group.name}", "bits a document", "R@100"
    )
    sizes = [Series(title, group.get_curve(f"{row}-sizes", "documents", "R@10")) for row, title in SWEPT.items()]
    _add_lines(charts, "Recall by size of the corpus", sizes, f"Size of the corpus, {group.name}", "documents", "R@10")
    return charts


def _add_lines(charts: dict[str, str], key: str, series: list[Series], title: str, x_label: str, y_label: str) -> None:
    drawn = [line for line in series if len(line.points) > 1]
    if drawn:
        charts[key] = render_lines(drawn, title, f"{x_label} (log scale)", y_label)


def list_differences(group: ResultGroup) -> list[str]:
    """List in which settings the rows differ from the paper's, and in which from each other."""
    lines = list_deviations(group.first.settings, group.encoder_kind)
    others = {result.row for result in group.results if result.settings != group.first.settings}
    if others:
        lines.append(f"rows measured with other settings than {group.first.row}: {', '.join(sorted(others))}")
    return lines


def format_summary(evaluated: dict[str, list[tuple[Claim, Outcome]]], path: Path) -> str:
    """Format the verdicts for the terminal."""
    lines = []
    for name, outcomes in evaluated.items():
        measured = [(claim, outcome) for claim, outcome in outcomes if outcome.verdict != "not measured"]
        count = sum(outcome.verdict == "holds" for _, outcome in measured)
        lines.append(f"{name}: {count} of {len(measured)} claims hold, {len(outcomes) - len(measured)} not measured")
        for claim, outcome in measured:
            mark = "+" if outcome.verdict == "holds" else "-"
            lines.append(f"  {mark} {claim.text}: {outcome.ours}")
    return "\n".join([*lines, f"report: {path}"])
