"""Render the tables of a comparison in limited memory."""

from typing import Any

from bidr.bench.report import render_table

Row = dict[str, Any]
Point = dict[str, Any]
MIB, KIB = 1 << 20, 1 << 10
TARGETS = (0.95, 0.96, 0.98, 0.99)


def render_limited_tables(rows: list[Row], cache: int, read_ahead: int = 0) -> str:
    """Return all tables in Markdown. read_ahead: bytes that the disk reads ahead; 0: unknown."""
    ran = [row for row in rows if row["points"]]
    limit = f"Page cache beside the anonymous memory that each needs: {cache / MIB:,.1f} MiB."
    ahead = f" The disk reads {read_ahead / MIB:,.1f} MiB ahead in files mapped without advice." if read_ahead else ""
    parts = [limit + ahead, _render_sizes(ran)]
    parts += [_render_target(ran, target) for target in TARGETS]
    parts += [_render_points(ran), _render_clients(ran)]
    reasons = [[row["name"], row.get("error") or row["stopped"]] for row in rows if row.keys() & {"error", "stopped"}]
    if reasons:
        parts.append(render_table("Not measured, or not to the end", ["index", "why"], reasons))
    return "\n\n".join(part for part in parts if part)


def find_quickest(row: Row, target: float) -> Point | None:
    """Return the reported setting with the lowest median that reaches a recall@10."""
    enough = [point for point in row["points"] if point["recall@10"] >= target]
    return min(enough, key=lambda point: float(point["p50_ms"]), default=None)


def _render_sizes(rows: list[Row]) -> str:
    head = ["index", "RAM of the index, B/doc", "process, anonymous MiB", "disk B/doc", "opened in s"]
    head += ["build s", "build CPU s", "build peak MiB"]
    lines = []
    for row in rows:
        build = row["build"]
        sizes = (row["index_bytes_per_document"], row["anonymous_bytes"] / MIB, row["disk_per_document"])
        cost = (build["seconds"], build["cpu_seconds"], build["peak_bytes"] / MIB)
        numbers = [*(f"{number:,.0f}" for number in sizes), f"{row['opened_seconds']:.1f}"]
        lines.append([row["name"], *numbers, *(f"{number:,.0f}" for number in cost)])
    return render_table("What each takes", head, lines) if lines else ""


def _render_target(rows: list[Row], target: float) -> str:
    pairs = [(find_quickest(row, target), row) for row in rows]
    reached = sorted(((point, row) for point, row in pairs if point), key=lambda pair: float(pair[0]["p50_ms"]))
    head = [
        "index",
        "setting",
        "R@10",
        "reads",
        "KiB",
        "p50 ms",
        "p99 ms",
        "CPU ms",
        "QPS, 1 client",
        "most QPS",
        "B/doc",
    ]
    lines = [
        [row["name"], *_format_setting(point), *_format_costs(point), f"{row['index_bytes_per_document']:,.0f}"]
        for point, row in reached
    ]
    for point, row in pairs:
        if point is None:
            best = max(other["recall@10"] for other in row["points"])
            lines.append([row["name"], f"not reached: {best:.3f} at most", *[""] * 9])
    return render_table(f"Lowest median with recall@10 of {target} or more", head, lines) if lines else ""


def _format_setting(point: Point) -> list[str]:
    return [", ".join(f"{name} {value:g}" for name, value in point["setting"].items()), f"{point['recall@10']:.3f}"]


def _format_costs(point: Point) -> list[str]:
    speeds = [level["qps"] for level in point["clients"]]
    times = [f"{point[name]:.2f}" for name in ("p50_ms", "p99_ms", "cpu_ms")]
    return [*_format_reads(point), *times, f"{speeds[0]:,.0f}", f"{max(speeds):,.0f}"]


def _format_reads(point: Point) -> list[str]:
    return [f"{point['reads']:,.0f}" if "reads" in point else "-", f"{point['read_bytes'] / KIB:,.0f}"]


def _render_points(rows: list[Row]) -> str:
    head = ["index", "setting", "R@10", "R@100", "reads", "KiB", "p50 ms", "p95 ms", "p99 ms", "CPU ms"]
    head += ["anonymous MiB", "page cache MiB"]
    lines = []
    for row in rows:
        for point in sorted(row["points"], key=lambda point: float(point["recall@10"])):
            times = [f"{point[name]:.2f}" for name in ("p50_ms", "p95_ms", "p99_ms", "cpu_ms")]
            memory = [f"{point[name] / MIB:,.0f}" for name in ("anonymous_bytes", "cache_bytes")]
            recalls = [*_format_setting(point), f"{point['recall@100']:.3f}"]
            lines.append([row["name"], *recalls, *_format_reads(point), *times, *memory])
    return render_table("Every reported setting, one client", head, lines) if lines else ""


def _render_clients(rows: list[Row]) -> str:
    counts = [level["clients"] for row in rows for point in row["points"][:1] for level in point["clients"]]
    counts = list(dict.fromkeys(counts))
    head = ["index", "setting", "R@10", *(f"{count} QPS (p99 ms)" for count in counts)]
    lines = []
    for row in rows:
        for point in sorted(row["points"], key=lambda point: float(point["recall@10"])):
            levels = [f"{level['qps']:,.0f} ({level['p99_ms']:,.1f})" for level in point["clients"]]
            lines.append([row["name"], *_format_setting(point), *levels])
    return render_table("Clients", head, lines) if lines else ""
