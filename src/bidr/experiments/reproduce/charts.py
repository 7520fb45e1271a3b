"""Charts as plain SVG: lines and intervals, with labels, readable in light and dark."""

import math
from collections.abc import Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

# Okabe and Ito's palette without yellow, which white hides; shapes and dashes tell the series apart without color.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES = ("none", "7 3", "2 3", "9 3 2 3", "none", "7 3")
SHAPES = ("circle", "square", "triangle", "diamond")
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 860, 410, 70, 62, 240, 56
ROW_HEIGHT, LABEL_WIDTH, VALUE_WIDTH = 24, 300, 190
TICKS = 5
STYLE = (
    "<style>text{font:13px sans-serif;fill:#222}.title{font-weight:700;font-size:15px}.grid{stroke:#ddd}"
    ".axis{stroke:#888}.back{fill:#fff}@media(prefers-color-scheme:dark){text{fill:#ddd}.grid{stroke:#444}"
    ".back{fill:#1b1b1f}}</style>"
)
Point = tuple[float, float]


class Series(NamedTuple):
    """A named line."""

    name: str
    points: Sequence[Point]


class IntervalRow(NamedTuple):
    """A named value with its interval."""

    name: str
    value: float
    low: float
    high: float


def render_lines(series: Sequence[Series], title: str, x_label: str, y_label: str, *, log_x: bool = True) -> str:
    """Draw lines over a common axis, logarithmic to the right unless `log_x` is False."""
    drawn = [line for line in series if line.points]
    xs = [x for line in drawn for x, _ in line.points]
    ys = [y for line in drawn for _, y in line.points]
    ticks = choose_ticks(min(ys), max(ys))
    scale_x = _make_scale([_transform(x, log=log_x) for x in xs], LEFT, WIDTH - RIGHT)
    scale_y = _make_scale([ticks[0], ticks[-1]], HEIGHT - BOTTOM, TOP)
    parts = _open_svg(WIDTH, HEIGHT, title)
    for value in ticks:
        y = scale_y(value)
        parts.append(_draw_line((LEFT, y), (WIDTH - RIGHT, y), "grid"))
        parts.append(_draw_text(LEFT - 8, y + 4, _format_number(value, ticks[1] - ticks[0]), "end"))
    for value in choose_x_ticks(xs, log=log_x):
        x = scale_x(_transform(value, log=log_x))
        parts.append(_draw_line((x, HEIGHT - BOTTOM), (x, HEIGHT - BOTTOM + 5), "axis"))
        parts.append(_draw_text(x, HEIGHT - BOTTOM + 20, f"{value:,.4g}" if value < 10 else f"{value:,.0f}", "middle"))
    parts.append(_draw_line((LEFT, HEIGHT - BOTTOM), (WIDTH - RIGHT, HEIGHT - BOTTOM), "axis"))
    parts.append(_draw_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, x_label, "middle"))
    parts.append(_draw_text(LEFT, TOP - 12, y_label))
    for number, line in enumerate(drawn):
        places = [(scale_x(_transform(x, log=log_x)), scale_y(y)) for x, y in line.points]
        parts += _draw_series(number, places)
        key = TOP + 8 + 22 * number
        parts += _draw_series(number, [(WIDTH - RIGHT + 18, key), (WIDTH - RIGHT + 48, key)])
        parts.append(_draw_text(WIDTH - RIGHT + 58, key + 4, line.name))
    return "\n".join([*parts, "</svg>", ""])


def render_intervals(rows: Sequence[IntervalRow], title: str, x_label: str) -> str:
    """Draw differences and their intervals, a row each, and a line at 0."""
    height = TOP + ROW_HEIGHT * len(rows) + BOTTOM
    bounds = [0.0, *(row.low for row in rows), *(row.high for row in rows)]
    ticks = choose_ticks(min(bounds), max(bounds))
    scale = _make_scale([ticks[0], ticks[-1]], LABEL_WIDTH, WIDTH - VALUE_WIDTH)
    bottom = height - BOTTOM
    parts = _open_svg(WIDTH, height, title)
    for value in ticks:
        parts.append(_draw_line((scale(value), TOP), (scale(value), bottom), "grid"))
        parts.append(_draw_text(scale(value), bottom + 18, _format_signed(value, ticks[1] - ticks[0]), "middle"))
    parts.append(_draw_line((scale(0), TOP), (scale(0), bottom), "axis"))
    for number, row in enumerate(rows):
        y = TOP + ROW_HEIGHT * (number + 0.5)
        color = COLORS[2] if row.low > 0 else COLORS[1] if row.high < 0 else "#888888"
        ends = f'x1="{scale(row.low):.1f}" y1="{y:.1f}" x2="{scale(row.high):.1f}" y2="{y:.1f}"'
        parts.append(f'<line {ends} stroke="{color}" stroke-width="2.5"/>')
        parts.append(f'<circle cx="{scale(row.value):.1f}" cy="{y:.1f}" r="4.5" fill="{color}"/>')
        parts.append(_draw_text(LABEL_WIDTH - 12, y + 4, row.name, "end"))
        words = f"{row.value:+.4f} [{row.low:+.4f}, {row.high:+.4f}]"
        parts.append(_draw_text(WIDTH - VALUE_WIDTH + 12, y + 4, words))
    parts.append(_draw_text((LABEL_WIDTH + WIDTH - VALUE_WIDTH) / 2, height - 14, x_label, "middle"))
    return "\n".join([*parts, "</svg>", ""])


def choose_ticks(low: float, high: float) -> list[float]:
    """Choose round numbers that enclose a range."""
    span = max(high - low, 1e-3)
    unit = 10.0 ** math.floor(math.log10(span / TICKS))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= span / TICKS)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, max(last, first + 1) + 1)]


def choose_x_ticks(values: Sequence[float], *, log: bool) -> list[float]:
    """Choose the labels of the axis: the values themselves if there are few, else round numbers."""
    distinct = sorted(set(values))
    if len(distinct) <= 6:
        return distinct
    if not log:
        return [tick for tick in choose_ticks(distinct[0], distinct[-1]) if distinct[0] <= tick <= distinct[-1]]
    low, high = math.floor(math.log10(distinct[0])), math.ceil(math.log10(distinct[-1]))
    factors = (1, 2, 5) if high - low <= 3 else (1,)
    ticks = [factor * 10.0**power for power in range(low, high + 1) for factor in factors]
    within = [value for value in ticks if distinct[0] <= value * 1.0001 and value <= distinct[-1] * 1.0001]
    return within if len(within) > 2 else choose_x_ticks(distinct, log=False)


def _transform(x: float, *, log: bool) -> float:
    return math.log10(max(x, 1e-9)) if log else x


class _Scale(NamedTuple):
    """Linear map of a range to pixels."""

    low: float
    span: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / self.span * (self.stop - self.start)


def _make_scale(values: Sequence[float], start: float, stop: float) -> _Scale:
    return _Scale(min(values), max(max(values) - min(values), 1e-9), start, stop)


def _open_svg(width: int, height: int, title: str) -> list[str]:
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>{escape(title)}</title>",
        STYLE,
        '<rect class="back" width="100%" height="100%"/>',
        f'<text class="title" x="12" y="22">{escape(title)}</text>',
    ]


def _draw_series(number: int, places: Sequence[Point]) -> list[str]:
    color, dash = COLORS[number % len(COLORS)], DASHES[number % len(DASHES)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    line = f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2.2" stroke-dasharray="{dash}"/>'
    return [line, *(_draw_marker(SHAPES[number % len(SHAPES)], place, color) for place in places)]


def _draw_marker(shape: str, place: Point, color: str) -> str:
    x, y = place
    corners = {
        "square": [(x - 4, y - 4), (x + 4, y - 4), (x + 4, y + 4), (x - 4, y + 4)],
        "triangle": [(x, y - 5), (x + 5, y + 4), (x - 5, y + 4)],
        "diamond": [(x, y - 5.5), (x + 5.5, y), (x, y + 5.5), (x - 5.5, y)],
    }.get(shape)
    if corners is None:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{color}"/>'
    points = " ".join(f"{right:.1f},{down:.1f}" for right, down in corners)
    return f'<polygon points="{points}" fill="{color}"/>'


def _draw_text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _draw_line(start: Point, end: Point, kind: str) -> str:
    ends = f'x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}"'
    return f'<line class="{kind}" {ends}/>'


def _format_number(value: float, step: float) -> str:
    return f"{value:.{max(0, -math.floor(math.log10(step) + 1e-9))}f}"


def _format_signed(value: float, step: float) -> str:
    return "0" if abs(value) < step / 2 else f"{value:+.{max(0, -math.floor(math.log10(step) + 1e-9))}f}"
