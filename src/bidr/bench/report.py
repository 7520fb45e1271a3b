"""Render the tables of a comparison: size, speed at a recall, cold latency, and failures."""

from typing import Any

TARGETS = (0.95, 0.98, 0.99)
Row = dict[str, Any]
Point = dict[str, Any]


def find_fastest(row: Row, target: float) -> Point | None:
    """Return the setting with the least CPU time that reaches a recall@100."""
    enough = [point for point in row["points"] if point["recall@100"] >= target]
    return min(enough, key=lambda point: float(point["cpu_ms"]), default=None)


def render_tables(rows: list[Row]) -> str:
    """Return all tables in Markdown."""
    ran = [row for row in rows if "error" not in row]
    parts = [_render_sizes(ran)] + [_render_target(ran, target) for target in TARGETS] + [_render_cold(ran)]
    failed = [[row["name"], row["error"]] for row in rows if "error" in row]
    stopped = [[row["name"], row["stopped"]] for row in ran if "stopped" in row]
    if failed:
        parts.append(render_table("Not measured", ["index", "why"], failed))
    if stopped:
        parts.append(render_table("Fewer rounds than the others", ["index", "why"], stopped))
    return "\n\n".join(part for part in parts if part)


def _render_sizes(rows: list[Row]) -> str:
    head = ["index", "anonymous B/doc", "RSS B/doc", "disk B/doc", "build s", "build CPU s", "build peak MiB"]
    lines = []
    for row in rows:
        ram, build = row["ram_per_document"], row["build"]
        sizes = (ram["anonymous_bytes"], ram["rss_end_bytes"], row["disk_per_document"])
        cost = (build["seconds"], build["cpu_seconds"], build["peak_bytes"] / 2**20)
        lines.append([row["name"], *(f"{number:,.0f}" for number in (*sizes, *cost))])
    return render_table("What each takes", head, lines) if lines else ""


def _render_target(rows: list[Row], target: float) -> str:
    head = ["index", "setting", "R@10", "R@100", "CPU ms", "of which ranking", "QPS/core", "p50 ms", "p99 ms", "B/doc"]
    best_points = [(find_fastest(row, target), row) for row in rows]
    reached = sorted(((point, row) for point, row in best_points if point), key=lambda pair: float(pair[0]["cpu_ms"]))
    lines = [
        [row["name"], *_format_point(point), f"{row['ram_per_document']['anonymous_bytes']:,.0f}"]
        for point, row in reached
    ]
    for point, row in best_points:
        if point is None:
            best = max(other["recall@100"] for other in row["points"])
            lines.append([row["name"], f"not reached: {best:.3f} at most", *[""] * 8])
    return render_table(f"Fastest setting with recall@100 of {target} or more", head, lines) if lines else ""


def _format_point(point: Point) -> list[str]:
    setting = ", ".join(f"{name} {value}" for name, value in point["setting"].items())
    ranking = (
        f"{point['ranking_cpu_ms']:.2f} ({point['ranked_by']})" if "ranking_cpu_ms" in point else point["ranked_by"]
    )
    times = (f"{1000 / point['cpu_ms']:,.0f}", f"{point['p50_ms']:.2f}", f"{point['p99_ms']:.2f}")
    return [
        setting,
        f"{point['recall@10']:.4f}",
        f"{point['recall@100']:.4f}",
        f"{point['cpu_ms']:.3f}",
        ranking,
        *times,
    ]


def _render_cold(rows: list[Row]) -> str:
    lines = []
    for row in rows:
        if "not_cold" in row:
            lines.append([row["name"], f"not measured: {row['not_cold']['error']}", "", "", ""])
        elif "cold" in row:
            cold = row["cold"]
            times = [f"{cold[name]:.1f}" for name in ("p50_ms", "p99_ms")]
            lines.append([row["name"], *times, str(cold["queries"]), f"{cold['resident']:.3%}"])
    head = ["index", "cold p50 ms", "cold p99 ms", "queries", "vectors in memory before, at most (mincore)"]
    return render_table("Cold, some 1,000 candidates", head, lines) if lines else ""


def render_table(title: str, head: list[str], lines: list[list[str]]) -> str:
    """Return a titled table in Markdown."""
    rendered = [" | ".join(line) for line in [head, ["---"] * len(head), *lines]]
    return "\n".join([f"### {title}", "", *(f"| {line} |" for line in rendered)])
