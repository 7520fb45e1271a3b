"""The small tuples that pass between the parts."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bidr.errors import DataError

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


def plain(value: Any) -> Any:
    """A number or truth value of numpy as Python's own; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def several_ids(ids: Iterable[str]) -> list[str]:
    """Ids as a list. A string is refused: it would be taken for the ids that its letters are."""
    if isinstance(ids, str):
        raise DataError(f"ids: given the string {ids!r}, expected a list of ids; for one write [{ids!r}]")
    found = list(ids)
    for number, name in enumerate(found):
        if not isinstance(name, str):
            raise DataError(f"ids: number {number} is {name!r}, expected a string; write {str(name)!r} if that is one")
    return found


def several_documents(documents: Iterable[Document]) -> list[Document]:
    """Documents as a list. One alone is refused: it would be taken for the documents that its fields are."""
    if isinstance(documents, (Document, str)):
        kind = type(documents).__name__
        raise DataError(f"documents: given a single {kind}, expected a list of Documents; for one write [document]")
    found = list(documents)
    for number, document in enumerate(found):
        if not isinstance(document, Document):
            raise DataError(
                f"documents: number {number} is a {type(document).__name__}, expected a Document; "
                "write Document(id, title, text, attributes)"
            )
    return found
