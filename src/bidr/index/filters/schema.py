"""Schema of the attributes of an index: type, number of documents, examples and range of each."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from bidr.data.types import Attributes
from bidr.index.documents.attribute_columns import ABSENT, AttributeColumns, Mask
from bidr.index.filters.filter_expression import get_kind
from bidr.index.filters.iso_time import NO_TIME, parse_time
from bidr.utils.deadline import check_deadline

EXAMPLES, EXAMPLES_BY_PART = 3, 8
VALUES_PER_BLOCK = 1 << 20
MAX_EXAMPLE_CHARS = 80
TYPE_NAMES = {"number": "number", "truth": "boolean", "word": "string"}


@dataclass
class FieldSummary:
    """Values of one attribute of one type.

    documents:  documents that have a value of this type.
    low, high:  range of numbers, or of strings that are all times.
    strings:    the most frequent strings, and how often they occur.
    has_lists:  whether a document has several strings.
    are_times:  whether all strings are ISO 8601 times.
    """

    kind: str
    documents: int = 0
    low: Any = None
    high: Any = None
    strings: Counter[str] = field(default_factory=Counter)
    trues: int = 0
    has_lists: bool = False
    are_times: bool = True

    def extend_range(self, low: Any, high: Any) -> None:
        """Extend the range; times are compared as such."""
        order = _get_time if self.kind == "word" else float
        self.low = low if self.low is None else min(self.low, low, key=order)
        self.high = high if self.high is None else max(self.high, high, key=order)

    def describe(self, name: str) -> dict[str, Any]:
        """Return the summary as JSON values."""
        is_time = self.kind == "word" and self.are_times
        description = {"name": name, "type": "time" if is_time else TYPE_NAMES[self.kind], "documents": self.documents}
        if self.kind == "truth":
            return description | {"true": self.trues, "false": self.documents - self.trues}
        if self.kind == "word":
            examples = [string[:MAX_EXAMPLE_CHARS] for string, _ in self.strings.most_common(EXAMPLES)]
            description |= {"examples": examples, "lists": self.has_lists}
        return description | ({"min": self.low, "max": self.high} if self.kind == "number" or is_time else {})


def _get_time(string: str) -> int:
    return parse_time(string) or 0


class SchemaBuilder:
    """Adds up the attributes of the parts of an index."""

    def __init__(self) -> None:
        self._fields: dict[tuple[str, str], FieldSummary] = {}

    def describe(self) -> list[dict[str, Any]]:
        """Describe all attributes, by name and type."""
        summaries = sorted(self._fields.items())
        return [summary.describe(name) for (name, _), summary in summaries if summary.documents]

    def _get_summary(self, name: str, kind: str) -> FieldSummary:
        return self._fields.setdefault((name, kind), FieldSummary(kind))

    def add_columns(self, columns: AttributeColumns, selected: Mask | None) -> None:
        """Add the rows of a segment that are set in a mask; None: all rows."""
        for number, (name, stored) in enumerate(columns.columns):
            summary = self._get_summary(name, "number" if stored == "whole" else stored)
            if stored == "word":
                _add_strings(summary, columns, number, selected)
            else:
                _add_values(summary, columns.load_values(number), stored, selected)

    def add_documents(self, attributes: Iterable[Attributes | None]) -> None:
        """Add documents one by one."""
        for values in attributes:
            check_deadline()
            for name, value in (values or {}).items():
                items: list[Any] = [*value] if isinstance(value, list | tuple) else [value]
                for kind in {get_kind(item) for item in items}:
                    self._get_summary(name, kind).documents += 1
                for item in items:
                    _add_value(self._get_summary(name, get_kind(item)), item, has_lists=len(items) > 1)


def _add_value(summary: FieldSummary, value: Any, *, has_lists: bool) -> None:
    if summary.kind == "truth":
        summary.trues += bool(value)
    elif summary.kind == "number":
        summary.extend_range(value, value)
    else:
        summary.strings[value] += 1
        summary.has_lists |= has_lists
        if parse_time(value) is None:
            summary.are_times = False
        elif summary.are_times:
            summary.extend_range(value, value)


def _add_values(summary: FieldSummary, values: npt.NDArray[Any], stored: str, selected: Mask | None) -> None:
    """Add a column of numbers or booleans."""
    for start in range(0, len(values), VALUES_PER_BLOCK):
        check_deadline()
        block = values[start : start + VALUES_PER_BLOCK]
        present = ~np.isnan(block) if stored == "number" else block != ABSENT[stored]
        if selected is not None:
            present &= selected[start : start + VALUES_PER_BLOCK]
        block = block[present]
        summary.documents += len(block)
        if stored == "truth":
            summary.trues += int(np.count_nonzero(block == 1))
        elif len(block):
            summary.extend_range(block.min().item(), block.max().item())


def _add_strings(summary: FieldSummary, columns: AttributeColumns, number: int, selected: Mask | None) -> None:
    """Add a column of strings."""
    codes, rows = columns.load_codes(number), columns.load_rows(number)
    counts, last_row, dictionary = np.zeros(columns.count_strings(number), np.int64), -1, columns.get_string
    for start in range(0, len(codes), VALUES_PER_BLOCK):
        check_deadline()
        block, block_rows = codes[start : start + VALUES_PER_BLOCK], rows[start : start + VALUES_PER_BLOCK]
        if selected is not None:
            is_selected = selected[block_rows]
            block, block_rows = block[is_selected], block_rows[is_selected]
        np.add.at(counts, block, 1)
        is_new = np.diff(block_rows, prepend=last_row) != 0
        summary.documents += int(np.count_nonzero(is_new))
        summary.has_lists |= not is_new.all()
        last_row = int(block_rows[-1]) if len(block_rows) else last_row
    used = np.flatnonzero(counts)
    if not len(used):
        return
    top = used[np.argsort(-counts[used], kind="stable")[:EXAMPLES_BY_PART]]
    for code in top.tolist():
        summary.strings[dictionary(number, code)] += int(counts[code])
    times = columns.load_times(number)[used]
    if (times == NO_TIME).any():
        summary.are_times = False
    elif summary.are_times:
        summary.extend_range(*(dictionary(number, int(used[place])) for place in (times.argmin(), times.argmax())))
