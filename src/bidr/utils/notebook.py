"""Short texts and HTML tables of objects in notebooks."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

MAX_CELL_CHARS = 120
# Colours are those of the notebook, light or dark.
_STYLE = "border-collapse:collapse;text-align:left;color:inherit;background:none"
_CELL = "text-align:left;padding:2px 12px 2px 0;vertical-align:top;border-bottom:1px solid rgba(128,128,128,.35)"


def truncate_text(value: Any, max_chars: int = MAX_CELL_CHARS) -> str:
    """Return the start of a text on one line, without control characters and unpaired surrogates."""
    text = str(value)[: 4 * max_chars].encode("utf-8", "replace").decode()
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return line if len(line) <= max_chars else line[: max_chars - 1].rstrip() + "…"


def render_table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return an HTML table; all texts are escaped."""
    head = "".join(f'<th style="{_CELL}">{escape(name)}</th>' for name in columns)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{escape(truncate_text(cell))}</td>' for cell in row) + "</tr>"
        for row in rows
    )
    return (
        f'<div><p style="margin:.3em 0">{escape(caption)}</p><table style="{_STYLE}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def format_attributes(attributes: Any) -> str:
    """Format attributes as "name: value" pairs."""
    return ", ".join(f"{name}: {value}" for name, value in (attributes or {}).items())
