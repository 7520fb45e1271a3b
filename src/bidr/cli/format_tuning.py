"""Settings that were measured in words, and the commands that carry them over."""

import shlex
from typing import TYPE_CHECKING

from bidr.cli.format_plan import size

if TYPE_CHECKING:
    from bidr.cli.plan import Plan
    from bidr.planning.tuning import SearchSetting, SkippedSetting, TuningResult


def settings_text(measured: "TuningResult", commands: list[str], *, sampled: bool) -> str:
    """What was measured, the cheapest of it that does, and how to have it. sampled: not on an index that is there."""
    of = f", a sample of {measured.sampled_from:,}" if measured.documents < measured.sampled_from else ""
    grown = measured.planned > measured.documents
    lines = [
        f"{measured.documents:,} documents{of}; {measured.questions:,} questions; wanted: {measured.recall:g} "
        f"of the {measured.k} that exact search finds",
        "",
        *_table(measured, grown=grown),
        *_left_out(measured.left_out),
        "",
        _verdict(measured),
        *(f"    {command}" for command in commands),
    ]
    if measured.planned > measured.sampled_from and commands:
        lines.append(f"(--vectors: of all {measured.planned:,} documents)")
    if grown:
        lines += [
            f"CPU time at {measured.planned:,}: by how many codes are compared then. The recall is the sample's:",
            "too hopeful, as more documents come between a query and its answers.",
        ]
    if sampled:
        lines.append("Everything was in memory. Measure again on the index itself (--index) when it is there.")
    return "\n".join(lines)


def commands(plan: "Plan", measured: "TuningResult", chosen: "SearchSetting") -> list[str]:
    """What to type to have the setting: a build where there is no index yet, and a search."""
    search = ["bidr", "search", "--index", str(plan.index or "INDEX"), "--query-vectors", str(plan.query_vectors)]
    search += ["--k", str(measured.k), "--candidates", str(chosen.candidates)]
    search += [] if chosen.ef is None else ["--ef", str(chosen.ef)]
    if plan.vectors is None:
        return [shlex.join(search)]
    build = ["bidr", "build", "--vectors", str(plan.vectors), "--out", "INDEX", "--engine", chosen.engine]
    build += ["--bytes-per-doc", str(chosen.bytes_per_doc), "--codewords", str(1 << chosen.bits)]
    build += [] if plan.stored == "fp16" else ["--stored", plan.stored]
    build += [] if plan.metric == "cosine" else ["--metric", plan.metric]
    return [shlex.join(build), shlex.join(search)]


def _table(measured: "TuningResult", *, grown: bool) -> list[str]:
    head = ["bits", "bytes", "visited", "candidates", f"recall@{measured.k}", "CPU ms a query"]
    head += [f"at {measured.planned:,}"] if grown else []
    rows = [(each.engine, _cells(each, grown=grown)) for each in measured.settings]
    widths = [max(len(name), *(len(cells[place]) for _, cells in rows)) for place, name in enumerate(head)]
    return [
        f"{name:<6}  " + "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        for name, cells in [("engine", head), *rows]
    ]


def _cells(each: "SearchSetting", *, grown: bool) -> list[str]:
    visited = (
        "all" if each.visited is None else f"{each.visited:.0%}" if each.engine == "lists" else f"{each.visited:,}"
    )
    measured = [str(each.bits), str(each.bytes_per_doc), visited, f"{each.candidates:,}"]
    measured += [f"{each.recall:.4f}", f"{each.ms:.2f}"]
    return [*measured, f"{each.ms_planned:.2f}"] if grown else measured


def _left_out(left_out: "list[SkippedSetting]") -> list[str]:
    return [
        f"left out: {each.engine}, {each.bits}-bit codes of {each.bytes_per_doc} bytes: {each.why} "
        f"({size(each.ram)} planned)"
        for each in left_out
    ]


def _verdict(measured: "TuningResult") -> str:
    best = measured.cheapest
    if best is None:
        return "None of these reaches it: take longer codes (--bytes-per-doc), or want less."
    how = {"lists": f", {best.visited:.0%} of the lists visited" if best.visited else "", "scan": ""}
    return (
        f"Cheapest that reaches it: {best.engine}{how.get(best.engine, f', ef {best.ef}')}, {best.bits}-bit codes "
        f"of {best.bytes_per_doc} bytes, {best.candidates:,} candidates"
    )
