"""The small tuples that pass between the parts."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

Value = str | int | float | bool | Sequence[str]
Attributes = Mapping[str, Value]


class Document(NamedTuple):
    """One thing that can be found."""

    id: str
    title: str
    text: str
    attributes: Attributes | None = None


class Query(NamedTuple):
    """One question."""

    id: str
    text: str


class Qrel(NamedTuple):
    """One judgement: how well a document answers a query (0: not at all)."""

    query_id: str
    doc_id: str
    score: int
