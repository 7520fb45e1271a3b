"""Hints of GET /v1/index for people: attributes with sample values, and titles as example queries."""

from typing import Any

import numpy as np

from bidr.data.types import Document
from bidr.index.filters.filter_expression import get_kind
from bidr.index.live.view import LiveView

SAMPLED_DOCUMENTS, SAMPLE_VALUES, EXAMPLES = 64, 8, 4
MAX_VALUE_CHARS, MIN_EXAMPLE_CHARS, MAX_EXAMPLE_CHARS = 60, 8, 70
_KINDS = {"truth": "boolean", "word": "string", "number": "number"}


def sample_documents(view: LiveView) -> list[Document]:
    """Read documents spread over the first segment, deleted ones left out."""
    segment = view.segments[0]
    positions = np.unique(np.linspace(0, segment.count - 1, SAMPLED_DOCUMENTS).astype(np.int64))
    bits = segment.get_bitmap(None)
    if bits is not None:
        positions = positions[(bits[positions // 8] >> (positions % 8).astype(np.uint8)) & 1 == 1]
    return [segment.get_record(row) for row in segment.get_rows(positions).tolist()]


def list_attributes(view: LiveView, sample: list[Document]) -> list[dict[str, Any]]:
    """List the attributes by name: kind (of its first value in the sample) and a few of its values."""
    values: dict[str, dict[Any, None]] = {}
    for document in [*sample, *view.memtable.documents[:SAMPLED_DOCUMENTS]]:
        for name, value in (document.attributes or {}).items():
            entries = value if isinstance(value, list | tuple) else [value]
            values.setdefault(name, {}).update(dict.fromkeys(entry for entry in entries if entry is not None))
    attributes = []
    for name in sorted(view.attributes()):
        known_values = list(values.get(name, ()))
        kind = _KINDS[get_kind(known_values[0])] if known_values else _find_column_kind(view, name)
        samples = [value for value in known_values if not isinstance(value, str) or len(value) <= MAX_VALUE_CHARS]
        attributes.append({"name": name, "kind": kind, "values": sorted(samples, key=_get_sort_key)[:SAMPLE_VALUES]})
    return attributes


def choose_examples(sample: list[Document]) -> list[str]:
    """Choose titles as example queries; of documents without one the beginning of the text."""
    titles = [" ".join((document.title or document.text[:500]).split()) for document in sample]
    fitting = [title for title in titles if len(title) >= MIN_EXAMPLE_CHARS] or [title for title in titles if title]
    spread = dict.fromkeys(_cut_at_word(title) for title in fitting[:: max(1, len(fitting) // (2 * EXAMPLES))])
    return sorted(spread, key=len)[:EXAMPLES]


def _find_column_kind(view: LiveView, name: str) -> str:
    kinds = (
        kind for segment in view.segments for column, kind in segment.reader.documents.columns.columns if column == name
    )
    return {"truth": "boolean", "word": "string"}.get(next(kinds, ""), "number")


def _get_sort_key(value: Any) -> tuple[str, Any]:
    """Order values of one kind among themselves: an attribute may have values of several."""
    return get_kind(value), value


def _cut_at_word(title: str) -> str:
    """Cut at a word, so that what is left is a query."""
    if len(title) <= MAX_EXAMPLE_CHARS:
        return title
    return title[: MAX_EXAMPLE_CHARS + 1].rpartition(" ")[0] or title[:MAX_EXAMPLE_CHARS]
