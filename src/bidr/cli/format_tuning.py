"""Format measured search settings, and the commands that apply them."""

import shlex
from typing import TYPE_CHECKING

from bidr.cli.format_plan import format_bytes
from bidr.index.engines.engine_choice import get_engine_label

if TYPE_CHECKING:
    from bidr.cli.plan import Plan
    from bidr.planning.tuning import SearchSetting, SkippedSetting, TuningResult


def format_settings(measured: "TuningResult", make_commands: list[str], *, sampled: bool) -> str:
    """Format measured settings, the cheapest sufficient one, and its commands. sampled: there is no index yet."""
    of = f", a sample of {measured.sampled_from:,}" if measured.documents < measured.sampled_from else ""
    grown = measured.planned > measured.documents
    lines = [
        f"{measured.documents:,} documents{of}; {measured.questions:,} queries; "
        f"target recall@{measured.k}: {measured.recall:g}",
        "",
        *_format_table(measured, grown=grown),
        *_list_left_out(measured.left_out),
        "",
        _format_verdict(measured),
        *(f"    {command}" for command in make_commands),
    ]
    if measured.planned > measured.sampled_from and make_commands:
        lines.append(f"(--vectors: of all {measured.planned:,} documents)")
    if grown:
        lines += [
            f"CPU time at {measured.planned:,} is computed from the number of codes compared. Recall is that of the",
            "sample, and lower on more documents, which compete with the answers.",
        ]
    if sampled:
        lines.append("Everything was in memory. Measure again on the index (--index) once it is built.")
    return "\n".join(lines)


def make_commands(plan: "Plan", measured: "TuningResult", chosen: "SearchSetting") -> list[str]:
    """Return the commands for a setting: a build if there is no index yet, and a search."""
    search = ["bidr", "search", "--index", str(plan.index or "INDEX"), "--query-vectors", str(plan.query_vectors)]
    search += ["--k", str(measured.k), "--candidates", str(chosen.candidates)]
    search += [] if chosen.ef is None else ["--ef", str(chosen.ef)]
    if plan.vectors is None:
        return [shlex.join(search)]
    build = [
        "bidr",
        "build",
        "--vectors",
        str(plan.vectors),
        "--out",
        "INDEX",
        "--engine",
        get_engine_label(chosen.engine),
    ]
    build += ["--bytes-per-doc", str(chosen.bytes_per_doc), "--codewords", str(1 << chosen.bits)]
    build += [] if plan.stored == "fp16" else ["--stored", plan.stored]
    build += [] if plan.metric == "cosine" else ["--metric", plan.metric]
    return [shlex.join(build), shlex.join(search)]


def _format_table(measured: "TuningResult", *, grown: bool) -> list[str]:
    head = ["bits", "bytes", "visited", "candidates", f"recall@{measured.k}", "CPU ms a query"]
    head += [f"at {measured.planned:,}"] if grown else []
    rows = [(get_engine_label(setting.engine), _format_cells(setting, grown=grown)) for setting in measured.settings]
    widths = [max(len(name), *(len(cells[place]) for _, cells in rows)) for place, name in enumerate(head)]
    return [
        f"{name:<6}  " + "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        for name, cells in [("engine", head), *rows]
    ]


def _format_cells(setting: "SearchSetting", *, grown: bool) -> list[str]:
    visited = (
        "all"
        if setting.visited is None
        else f"{setting.visited:.0%}"
        if setting.engine == "lists"
        else f"{setting.visited:,}"
    )
    measured = [str(setting.bits), str(setting.bytes_per_doc), visited, f"{setting.candidates:,}"]
    measured += [f"{setting.recall:.4f}", f"{setting.ms:.2f}"]
    return [*measured, f"{setting.ms_planned:.2f}"] if grown else measured


def _list_left_out(left_out: "list[SkippedSetting]") -> list[str]:
    return [
        f"left out: {get_engine_label(setting.engine)}, {setting.bits}-bit codes of {setting.bytes_per_doc} bytes: "
        f"{setting.why} ({format_bytes(setting.ram)} planned)"
        for setting in left_out
    ]


def _format_verdict(measured: "TuningResult") -> str:
    best = measured.cheapest
    if best is None:
        return "None of these reaches it: take longer codes (--bytes-per-doc), or a lower target."
    how = {"lists": f", {best.visited:.0%} of the lists visited" if best.visited else "", "scan": ""}
    engine = f"{get_engine_label(best.engine)}{how.get(best.engine, f', ef {best.ef}')}"
    return (
        f"Cheapest that reaches it: {engine}, {best.bits}-bit codes "
        f"of {best.bytes_per_doc} bytes, {best.candidates:,} candidates"
    )
