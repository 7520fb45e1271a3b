"""Recall against QPS per core as a plain SVG."""

import math
from typing import Any
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 980, 560, 70, 40, 260, 60
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#e377c2", "#17becf", "#7f7f7f", "#bcbd22")
DASHES = ("", "6 3", "2 3", "8 3 2 3")
LOWEST = 0.7
Point = tuple[float, float]


def svg(rows: list[dict[str, Any]], title: str) -> str:
    """One curve an index: of its settings those that no other of its own beats in both. Up and right is better."""
    curves = {row["name"]: front(row["points"]) for row in rows if row["points"]}
    curves = {name: points for name, points in curves.items() if points}
    speeds = [speed for points in curves.values() for _, speed in points] or [1.0, 10.0]
    low, high = math.floor(math.log10(min(speeds))), math.ceil(math.log10(max(speeds)))
    high = max(high, low + 1)

    def place(point: Point) -> Point:
        right = (point[0] - LOWEST) / (1 - LOWEST)
        up = (math.log10(point[1]) - low) / (high - low)
        return LEFT + right * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">']
    parts += ['<rect width="100%" height="100%" fill="white"/>', _text(LEFT, 22, title, 'font-size="15"')]
    for step in range(7):
        value = LOWEST + step * (1 - LOWEST) / 6
        x, y = place((value, 10.0**low))
        parts += [_line((x, TOP), (x, y)), _text(x, y + 18, f"{value:.2f}", 'text-anchor="middle"')]
    for power in range(low, high + 1):
        x, y = place((LOWEST, 10.0**power))
        parts += [_line((x, y), (WIDTH - RIGHT, y)), _text(x - 8, y + 4, f"{10.0**power:,g}", 'text-anchor="end"')]
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 18, "recall@100", 'text-anchor="middle"'))
    parts.append(_text(10, TOP - 8, "queries a second and core"))
    for number, (name, points) in enumerate(curves.items()):
        parts += _curve(number, name, [place(point) for point in points])
    return "\n".join([*parts, "</svg>", ""])


def front(points: list[dict[str, Any]]) -> list[Point]:
    """(recall@100, QPS) of the settings that are worth choosing, by recall."""
    best: list[Point] = []
    for point in sorted(points, key=lambda one: (-one["recall@100"], -one["qps_per_core"])):
        if point["recall@100"] >= LOWEST and (not best or point["qps_per_core"] > best[-1][1]):
            best.append((point["recall@100"], point["qps_per_core"]))
    return best[::-1]


def _curve(number: int, name: str, places: list[Point]) -> list[str]:
    colour, dash = COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)]
    style = f'stroke="{colour}" stroke-width="2" stroke-dasharray="{dash or "none"}" fill="none"'
    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    key = TOP + 10 + 18 * number
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
    legend = f'<polyline points="{WIDTH - RIGHT + 20},{key} {WIDTH - RIGHT + 50},{key}" {style}/>'
    return [f'<polyline points="{drawn}" {style}/>', *dots, legend, _text(WIDTH - RIGHT + 58, key + 4, name)]


def _text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(words)}</text>'


def _line(start: Point, end: Point) -> str:
    ends = f'x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}"'
    return f'<line {ends} stroke="#ddd"/>'
