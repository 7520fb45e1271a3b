"""Recall against QPS per core as a plain SVG."""

import math
from typing import Any
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 980, 560, 70, 40, 260, 60
COLORS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#e377c2", "#17becf", "#7f7f7f", "#bcbd22")
DASHES = ("", "6 3", "2 3", "8 3 2 3")
MIN_RECALL = 0.7
Point = tuple[float, float]


def render_svg(rows: list[dict[str, Any]], title: str) -> str:
    """Draw the Pareto front of each index; up and right is better."""
    curves = {row["name"]: compute_pareto_front(row["points"]) for row in rows if row["points"]}
    curves = {name: points for name, points in curves.items() if points}
    speeds = [speed for points in curves.values() for _, speed in points] or [1.0, 10.0]
    low, high = math.floor(math.log10(min(speeds))), math.ceil(math.log10(max(speeds)))
    high = max(high, low + 1)

    def place(point: Point) -> Point:
        right = (point[0] - MIN_RECALL) / (1 - MIN_RECALL)
        up = (math.log10(point[1]) - low) / (high - low)
        return LEFT + right * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">']
    parts += ['<rect width="100%" height="100%" fill="white"/>', _draw_text(LEFT, 22, title, 'font-size="15"')]
    for step in range(7):
        value = MIN_RECALL + step * (1 - MIN_RECALL) / 6
        x, y = place((value, 10.0**low))
        parts += [_draw_line((x, TOP), (x, y)), _draw_text(x, y + 18, f"{value:.2f}", 'text-anchor="middle"')]
    for power in range(low, high + 1):
        x, y = place((MIN_RECALL, 10.0**power))
        parts += [
            _draw_line((x, y), (WIDTH - RIGHT, y)),
            _draw_text(x - 8, y + 4, f"{10.0**power:,g}", 'text-anchor="end"'),
        ]
    parts.append(_draw_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 18, "recall@100", 'text-anchor="middle"'))
    parts.append(_draw_text(10, TOP - 8, "queries a second and core"))
    for number, (name, points) in enumerate(curves.items()):
        parts += _draw_curve(number, name, [place(point) for point in points])
    return "\n".join([*parts, "</svg>", ""])


def compute_pareto_front(points: list[dict[str, Any]]) -> list[Point]:
    """Return (recall@100, QPS) of the settings that no other one beats in both, by recall."""
    best: list[Point] = []
    for point in sorted(points, key=lambda candidate: (-candidate["recall@100"], -candidate["qps_per_core"])):
        if point["recall@100"] >= MIN_RECALL and (not best or point["qps_per_core"] > best[-1][1]):
            best.append((point["recall@100"], point["qps_per_core"]))
    return best[::-1]


def _draw_curve(number: int, name: str, places: list[Point]) -> list[str]:
    color, dash = COLORS[number % len(COLORS)], DASHES[number // len(COLORS) % len(DASHES)]
    style = f'stroke="{color}" stroke-width="2" stroke-dasharray="{dash or "none"}" fill="none"'
    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    key = TOP + 10 + 18 * number
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in places]
    legend = f'<polyline points="{WIDTH - RIGHT + 20},{key} {WIDTH - RIGHT + 50},{key}" {style}/>'
    return [f'<polyline points="{drawn}" {style}/>', *dots, legend, _draw_text(WIDTH - RIGHT + 58, key + 4, name)]


def _draw_text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(words)}</text>'


def _draw_line(start: Point, end: Point) -> str:
    ends = f'x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}"'
    return f'<line {ends} stroke="#ddd"/>'
