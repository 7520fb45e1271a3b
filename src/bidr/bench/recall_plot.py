"""Recall against speed as a plain SVG, in colors and shapes that color-blind readers can tell apart."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 980, 560, 70, 40, 260, 60
# The palette of Okabe and Ito, without its yellow, which is too light on white.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#56b4e9", "#e69f00")
DASHES = ("", "6 3", "2 3", "8 3 2 3")
MARKERS = ("circle", "square", "triangle", "diamond")
MARKER_SIZE = 4.0
Point = tuple[float, float]


class Axes(NamedTuple):
    """Axes of a chart. get_speed: the speed of a measured setting."""

    recall: str
    min_recall: float
    speed_label: str
    get_speed: Callable[[dict[str, Any]], float]


WARM_AXES = Axes("recall@100", 0.7, "queries a second and core", lambda point: float(point["qps_per_core"]))
LIMITED_AXES = Axes("recall@10", 0.85, "queries a second, one client", lambda point: float(point["clients"][0]["qps"]))


def render_svg(rows: list[dict[str, Any]], title: str, axes: Axes = WARM_AXES) -> str:
    """Draw the Pareto front of each index; up and right is better."""
    curves = {row["name"]: compute_pareto_front(row["points"], axes) for row in rows if row["points"]}
    curves = {name: points for name, points in curves.items() if points}
    speeds = [speed for points in curves.values() for _, speed in points] or [1.0, 10.0]
    low, high = math.floor(math.log10(min(speeds))), math.ceil(math.log10(max(speeds)))
    high = max(high, low + 1)

    def place(point: Point) -> Point:
        right = (point[0] - axes.min_recall) / (1 - axes.min_recall)
        up = (math.log10(point[1]) - low) / (high - low)
        return LEFT + right * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">']
    parts += ['<rect width="100%" height="100%" fill="white"/>', _draw_text(LEFT, 22, title, 'font-size="15"')]
    for step in range(7):
        value = axes.min_recall + step * (1 - axes.min_recall) / 6
        x, y = place((value, 10.0**low))
        parts += [_draw_line((x, TOP), (x, y)), _draw_text(x, y + 18, f"{value:.2f}", 'text-anchor="middle"')]
    for power in range(low, high + 1):
        x, y = place((axes.min_recall, 10.0**power))
        parts += [
            _draw_line((x, y), (WIDTH - RIGHT, y)),
            _draw_text(x - 8, y + 4, f"{10.0**power:,g}", 'text-anchor="end"'),
        ]
    parts.append(_draw_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 18, axes.recall, 'text-anchor="middle"'))
    parts.append(_draw_text(10, TOP - 8, axes.speed_label))
    for number, (name, points) in enumerate(curves.items()):
        parts += _draw_curve(number, name, [place(point) for point in points])
    return "\n".join([*parts, "</svg>", ""])


def compute_pareto_front(points: list[dict[str, Any]], axes: Axes = WARM_AXES) -> list[Point]:
    """Return (recall, speed) of the settings that no other one beats in both, by recall."""
    best: list[Point] = []
    for recall, speed in sorted(((point[axes.recall], axes.get_speed(point)) for point in points), reverse=True):
        if recall >= axes.min_recall and (not best or speed > best[-1][1]):
            best.append((recall, speed))
    return best[::-1]


def _draw_curve(number: int, name: str, places: list[Point]) -> list[str]:
    color, dash = COLORS[number % len(COLORS)], DASHES[number // len(COLORS) % len(DASHES)]
    style = f'stroke="{color}" stroke-width="2" stroke-dasharray="{dash or "none"}" fill="none"'
    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    key = TOP + 10 + 18 * number
    legend = f'<polyline points="{WIDTH - RIGHT + 20},{key} {WIDTH - RIGHT + 50},{key}" {style}/>'
    marker = MARKERS[number % len(MARKERS)]
    dots = [_draw_marker(marker, place, color) for place in [*places, (WIDTH - RIGHT + 35.0, float(key))]]
    return [f'<polyline points="{drawn}" {style}/>', legend, *dots, _draw_text(WIDTH - RIGHT + 58, key + 4, name)]


def _draw_marker(shape: str, place: Point, color: str) -> str:
    (x, y), size = place, MARKER_SIZE
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size}" fill="{color}"/>'
    corners = {
        "square": ((-1, -1), (1, -1), (1, 1), (-1, 1)),
        "triangle": ((0, -1.2), (1.1, 0.9), (-1.1, 0.9)),
        "diamond": ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
    }[shape]
    points = " ".join(f"{x + size * right:.1f},{y + size * down:.1f}" for right, down in corners)
    return f'<polygon points="{points}" fill="{color}"/>'


def _draw_text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(words)}</text>'


def _draw_line(start: Point, end: Point) -> str:
    ends = f'x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}"'
    return f'<line {ends} stroke="#ddd"/>'
