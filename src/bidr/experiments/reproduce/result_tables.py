"""Tables of the report, as headers and cells."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from bidr.experiments.reproduce.claims import Claim, Outcome, get_bits_curve
from bidr.experiments.reproduce.result_groups import STRONGEST, Difference, Measure, ResultGroup
from bidr.experiments.reproduce.row_specs import ROWS
from bidr.index.engines.engine_choice import get_engine_label

EMPTY = "-"
CUTOFFS = (10, 20, 30, 50, 100)
NEEDED_RECALLS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
GIB_PER_BILLION = 1e9 / 2**30


class ResultTable(NamedTuple):
    """A table: title, a sentence of explanation, header and cells."""

    title: str
    description: str
    header: list[str]
    cells: list[list[str]]

    def to_markdown(self) -> str:
        """Format as Markdown; nothing if there are no rows."""
        if not self.cells:
            return ""
        lines = [self.header, ["---"] * len(self.header), *self.cells]
        rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return "\n\n".join(part for part in (f"### {self.title}", self.description, rows) if part)

    def to_json(self) -> dict[str, Any]:
        """Return the rows as dictionaries."""
        rows = [dict(zip(self.header, line, strict=True)) for line in self.cells]
        return {"title": self.title, "description": self.description, "rows": rows}


def make_recall_table(
    group: ResultGroup,
    title: str,
    rows: Sequence[str],
    measures: Sequence[Measure],
    description: str = "",
    beside: Sequence[str] = (),
) -> ResultTable:
    """Recall of rows, with the difference of the first measure to the strongest baseline.

    Args:
        beside: rows that other tables have too, shown below the rows if one of these was measured.
    """
    base = group.strongest
    names = [str(measure) for measure in measures]
    compared = measures[0]
    header = ["method", *names, f"range of {compared}", f"{compared} against {_get_title(base)} [95 %]", "seeds"]
    cells = []
    is_measured = any(group.summarize(row, measures[0]) for row in rows)
    for row in [*rows, *beside] if is_measured else []:
        summaries = [group.summarize(row, measure) for measure in measures]
        first = summaries[0]
        if first is None:
            continue
        difference = group.compare(row, STRONGEST, compared) if base and row != base else None
        values = [EMPTY if summary is None else f"{summary.mean:.4f}" for summary in summaries]
        spread = f"{first.low:.4f} to {first.high:.4f}"
        cells.append([_get_title(row), *values, spread, format_difference(difference), str(first.seeds)])
    return ResultTable(title, description, header, cells)


def make_appendix_table(group: ResultGroup) -> ResultTable:
    """Every cut-off of every row that ranks answers."""
    cells = []
    for name, spec in ROWS.items():
        summaries = [group.summarize(name, Measure("answers", cutoff)) for cutoff in CUTOFFS]
        if all(summaries):
            cells.append([spec.title, *(f"{summary.mean:.4f}" for summary in summaries if summary)])
    return ResultTable("Appendix: all cut-offs", "", ["method", *(f"R@{cutoff}" for cutoff in CUTOFFS)], cells)


def make_claims_table(evaluated: Sequence[tuple[Claim, Outcome]]) -> ResultTable:
    """A measured claim of the paper a line."""
    header = ["claim", "where", "paper: passages, documents, ads", "ours", "difference [95 %]", "seeds", "verdict"]
    cells = [
        [
            claim.text,
            claim.source,
            claim.paper,
            outcome.ours or EMPTY,
            format_difference(outcome.difference, in_full=True),
            str(outcome.seeds or EMPTY),
            f"**{outcome.verdict}**{' (level)' if outcome.is_level else ''}",
        ]
        for claim, outcome in evaluated
        if outcome.verdict != "not measured"
    ]
    return ResultTable("Claims of the paper", "", header, cells)


def make_depths_table(group: ResultGroup) -> ResultTable:
    """Recall and milliseconds by number of candidates."""
    cells = []
    for row in ("star-opq-depths", "bidr-random-walk-depths", "bidr-snowball-depths"):
        times = dict(group.get_curve(row, "candidates", "ms"))
        shallow = dict(group.get_curve(row, "candidates", "R@10"))
        for depth, recall in group.get_curve(row, "candidates", "R@100"):
            title = _get_title(row.removesuffix("-depths"))
            cells.append([title, f"{depth:,.0f}", f"{shallow[depth]:.4f}", f"{recall:.4f}", f"{times[depth]:.3f}"])
    description = "Milliseconds of a query alone on the CPU, without encoding it; the median."
    return ResultTable("Figure 4: candidates", description, ["method", "candidates", "R@10", "R@100", "ms"], cells)


def make_needed_table(group: ResultGroup) -> ResultTable:
    """Candidates that are needed for a recall among the candidates."""
    cells = []
    for row in ("star-opq-depths", "bidr-random-walk-depths", "bidr-snowball-depths"):
        results = group.get_results(row)
        all_ranks = [ranks for result in results if (ranks := result.get_ranks("candidates")) is not None]
        if not all_ranks:
            continue
        line = [_get_title(row.removesuffix("-depths"))]
        for recall in NEEDED_RECALLS:
            counts = [ranks.count_needed(recall) for ranks in all_ranks]
            reached = [count for count in counts if count is not None]
            line.append(f"{sum(reached) / len(reached):,.0f}" if len(reached) == len(counts) else "not reached")
        cells.append(line)
    description = "The mean over the seeds; the paper does not give these."
    header = ["method", *(f"for {recall:.0%}" for recall in NEEDED_RECALLS)]
    return ResultTable("Candidates needed for a recall", description, header, cells)


def make_bits_table(group: ResultGroup) -> ResultTable:
    """R@100 by bits a document."""
    curves = {row: dict(get_bits_curve(group, row)) for row in ("star-opq", "bidr-random-walk")}
    bits = sorted({size for curve in curves.values() for size in curve})
    if len(bits) < 2:
        return ResultTable("Figure 4: bits", "", ["method"], [])
    cells = [
        [_get_title(row), *(f"{curve[size]:.4f}" if size in curve else EMPTY for size in bits)]
        for row, curve in curves.items()
    ]
    return ResultTable("Figure 4: R@100 by bits a document", "", ["method", *(f"{size:,.0f}" for size in bits)], cells)


def make_sizes_table(group: ResultGroup) -> ResultTable:
    """Recall by number of documents."""
    cells = []
    for row in ("star-opq-sizes", "bidr-random-walk-sizes"):
        deep, coded = (dict(group.get_curve(row, "documents", name)) for name in ("R@100", "candidates' R@100"))
        for count, recall in group.get_curve(row, "documents", "R@10"):
            title = _get_title(row.removesuffix("-sizes"))
            cells.append([title, f"{count:,.0f}", f"{recall:.4f}", f"{deep[count]:.4f}", f"{coded[count]:.4f}"])
    description = "Random parts of the corpus with all relevant documents; nothing is trained again, N is the same."
    return ResultTable(
        "Recall by size of the corpus",
        description,
        ["method", "documents", "R@10", "R@100", "candidates’ R@100"],
        cells,
    )


def make_cost_table(group: ResultGroup) -> ResultTable:
    """RAM in full, time of a query, and training cost of every row."""
    cells = []
    for name, spec in ROWS.items():
        train = group.average(name, "train_seconds")
        if train is None:
            continue
        ram, ms, codes = (
            group.average(name, "total", "ram"),
            group.average(name, "ms_per_query"),
            group.average(name, "codes", "ram"),
        )
        constant = group.average(name, "codebooks", "ram") or 0.0
        billion = EMPTY if ram is None else f"{(ram - constant) * GIB_PER_BILLION:,.0f}"
        notes = [format_note(note) for note in group.get_results(name)[0].notes]
        cells.append(
            [
                spec.title,
                EMPTY if codes is None else f"{codes:.1f}",
                EMPTY if ram is None else f"{ram:,.1f}",
                billion,
                EMPTY if ms is None else f"{ms:.2f}",
                f"{train:,.0f}",
                f"{group.average(name, 'new_seconds') or 0:,.0f}",
                "; ".join(notes) or EMPTY,
            ]
        )
    header = [
        "method",
        "codes, B/doc",
        "RAM in all, B/doc",
        "GiB at 1 B docs",
        "ms/query",
        "training s",
        "new stages s",
        "notes",
    ]
    description = (
        "RAM is what an open index holds: codes, lists or links, codebooks, checksums. At a billion documents the "
        "codebooks are as large as here, the rest grows. *Training*: epochs of all stages of the row, shared ones "
        "included. *New stages*: everything in the stages that no row above had trained, with mining, encoding and "
        "distillation."
    )
    return ResultTable("RAM, time and training cost", description, header, cells)


def format_note(note: str) -> str:
    """Name an engine as the other tables do; results hold its name in files."""
    prefix, _, engine = note.partition("engine ")
    return note if prefix or not engine else f"engine {get_engine_label(engine)}"


def format_difference(difference: Difference | None, *, in_full: bool = False, is_relative: bool = False) -> str:
    """Format a difference with its interval; `is_relative`: also as a share of the base; in full: and by seed."""
    if difference is None:
        return EMPTY
    text = f"{difference.difference:+.4f} [{difference.low:+.4f}, {difference.high:+.4f}]"
    if is_relative:
        return f"{text} ({difference.relative:+.1%})"
    if not in_full:
        return text
    seeds = difference.per_seed
    spread = f"; seeds {min(seeds):+.4f} to {max(seeds):+.4f}" if len(seeds) > 1 else ""
    return f"{text} ({difference.relative:+.1%}{spread})"


def _get_title(row: str | None) -> str:
    return ROWS[row].title if row in ROWS else EMPTY
