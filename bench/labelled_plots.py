"""Plots of `labelled_curves.py`: R@100 against candidates read, bytes of codes and speed."""

import math
from collections.abc import Callable
from typing import Any

from bidr.bench.recall_plot import COLORS
from bidr.bench.run import Row

Panel = list[tuple[str, list[tuple[float, float]]]]
WIDTH, HEIGHT, LEFT, TOP, GAP = 420, 360, 60, 40, 70


def at_depth(row: Row, depth: int) -> list[dict[str, Any]]:
    """The points at which so many candidates are read."""
    return [point for point in row["points"] if point["setting"]["candidates"] == depth]


def draw(rows: list[Row], exact: float) -> str:
    """R@100 against candidates read, against bytes of RAM (200 read), and against queries a second, side by side."""
    rows = [row for row in rows if row["points"]]
    kinds = list(dict.fromkeys(row["name"].rpartition(", ")[0] for row in rows))
    curves: list[tuple[str, Panel]] = []
    by_read = [(row["name"], _front(row, lambda one: one["setting"]["candidates"], low=True)) for row in rows]
    curves.append(("documents read", by_read))
    by_bytes = []
    for kind in kinds:
        own = [row for row in rows if row["name"].rpartition(", ")[0] == kind]
        sizes = [float(row["name"].rpartition(", ")[2].split()[0]) for row in own]
        best = [max(one["labelled@100"] for one in at_depth(row, 200)) for row in own]
        by_bytes.append((kind, list(zip(sizes, best, strict=True))))
    curves.append(("bytes of code a document, 200 read", by_bytes))
    by_speed = [(row["name"], _front(row, lambda one: one["qps_per_core"], low=False)) for row in rows]
    curves.append(("queries a second and core", by_speed))
    values = [value for _, panel in curves for _, points in panel for _, value in points]
    low, high = math.floor(20 * min(values)) / 20, math.ceil(20 * max(*values, exact)) / 20
    colour = {kind: COLORS[number % len(COLORS)] for number, kind in enumerate(kinds)}
    whole = 3 * (WIDTH + GAP) + LEFT
    tall = HEIGHT + TOP + 70 + 18 * (len(kinds) // 4 + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole} {tall}" font-family="sans-serif" font-size="12">'
    ]
    parts.append('<rect width="100%" height="100%" fill="white"/>')
    for number, (title, panel) in enumerate(curves):
        parts += _panel(LEFT + number * (WIDTH + GAP), title, panel, (low, high), exact, colour)
    for number, kind in enumerate(kinds):
        x, y = LEFT + (number % 4) * 300, HEIGHT + TOP + 60 + 18 * (number // 4)
        parts.append(
            f'<circle cx="{x}" cy="{y - 4}" r="5" fill="{colour[kind]}"/><text x="{x + 12}" y="{y}">{kind}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def _front(row: Row, of: Callable[[dict[str, Any]], float], *, low: bool) -> list[tuple[float, float]]:
    """The points that no other of the same index beats in both."""
    points = sorted(((float(of(one)), one["labelled@100"]) for one in row["points"]), reverse=not low)
    kept: list[tuple[float, float]] = []
    for x, value in points:
        if not kept or value > kept[-1][1]:
            kept.append((x, value))
    return kept


def _panel(
    left: int,
    title: str,
    panel: Panel,
    span: tuple[float, float],
    exact: float,
    colour: dict[str, str],
) -> list[str]:
    """One plot; the scale to the right is logarithmic. Dashed: the fewer bytes of a kind; dotted: exact search."""
    every = [x for _, points in panel for x, _ in points]
    first, last = math.log(min(every)), math.log(max(every)) + 1e-9

    def place(x: float, value: float) -> tuple[float, float]:
        right = (math.log(x) - first) / (last - first)
        return left + right * WIDTH, TOP + HEIGHT * (1 - (value - span[0]) / (span[1] - span[0]))

    frame = f'<rect x="{left}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#888"/>'
    parts = [frame, f'<text x="{left}" y="{TOP - 10}">labelled R@100 against {title}</text>']
    for step in range(6):
        value = span[0] + step * (span[1] - span[0]) / 5
        _, y = place(min(every), value)
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.2f}</text>')
    for x in sorted(set(every)) if len(set(every)) <= 12 else [min(every), max(every)]:
        parts.append(
            f'<text x="{place(x, span[0])[0]:.1f}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{x:,.0f}</text>'
        )
    y = place(min(every), exact)[1]
    parts.append(f'<path d="M{left} {y:.1f}h{WIDTH}" stroke="#444" stroke-dasharray="1 3"/>')
    sizes = sorted(
        {name.rpartition(", ")[2] for name, _ in panel if name not in colour}, key=lambda one: int(one.split()[0])
    )
    for name, points in panel:
        kind, _, size = name.rpartition(", ") if name not in colour else (name, "", "")
        dash = "5 4" if len(sizes) > 1 and size == sizes[0] else "none"
        parts += _curve([place(*point) for point in points], colour[kind], dash)
    return parts


def _curve(points: list[tuple[float, float]], colour: str, dash: str) -> list[str]:
    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    style = f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"'
    line = f'<polyline points="{drawn}" {style}/>'
    return [line, *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in points)]
