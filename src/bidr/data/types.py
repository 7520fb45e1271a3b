"""Record types (documents, queries, judgments) and the validation of lists of them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bidr.data.validation import coerce_id, coerce_text, coerce_title, format_value, is_unicode
from bidr.errors import DataError

Value = str | int | float | bool | Sequence[str]
Attributes = Mapping[str, Value]


class Document(NamedTuple):
    """A searchable document."""

    id: str
    title: str
    text: str
    attributes: Attributes | None = None


class DocumentPage(NamedTuple):
    """Documents of a listing, and where the next page begins; None: there is none."""

    documents: list[Document]
    cursor: str | None


class Query(NamedTuple):
    """A query."""

    id: str
    text: str


class Qrel(NamedTuple):
    """A relevance judgment; score 0 means not relevant."""

    query_id: str
    doc_id: str
    score: int


def to_python_scalar(value: Any) -> Any:
    """Convert a numpy scalar to a Python one; other values are returned unchanged."""
    return value.item() if isinstance(value, np.generic) else value


def validate_ids(ids: Iterable[str]) -> list[str]:
    """Return ids as a list of strings. A single string is refused: it would be read as one id per letter."""
    if isinstance(ids, str):
        raise DataError(f"ids: given the string {ids!r}, expected a list of ids; for one write [{ids!r}]")
    if isinstance(ids, bytes | bytearray) or not isinstance(ids, Iterable):
        raise DataError(f"ids: given {format_value(ids)}, expected a list of ids; for one write [id]")
    names = list(ids)
    for number, name in enumerate(names):
        if type(name) is not str:
            names[number] = coerce_id(name, f"ids: number {number}")
    return names


def validate_documents(documents: Iterable[Document], what: str = "documents") -> list[Document]:
    """Return documents as a list with string fields. A single Document is refused: iterating it yields its fields."""
    if isinstance(documents, Document | str | bytes) or not isinstance(documents, Iterable):
        kind = type(documents).__name__
        raise DataError(f"{what}: given a single {kind}, expected a list of Documents; for one write [document]")
    return [_coerce_document(document, what, number) for number, document in enumerate(documents)]


def _coerce_document(document: Any, what: str, number: int) -> Document:
    if not isinstance(document, Document):
        raise DataError(
            f"{what}: number {number} is a {type(document).__name__}, expected a Document; "
            "write Document(id, title, text, attributes)"
        )
    name, title, text, attributes = document
    if type(name) is type(title) is type(text) is str and name and type(document) is Document:
        if name.isascii() and title.isascii() and text.isascii():
            return document
        if is_unicode(name) and is_unicode(title) and is_unicode(text):
            return document
    place = f"{what}: number {number}"
    name = coerce_id(name, place)
    place = f"{place} (id {name!a})"
    return Document(name, coerce_title(title, place), coerce_text(text, place), attributes)


def validate_queries(queries: Iterable[Query], what: str) -> list[Query]:
    """Return queries as a list with string fields."""
    if isinstance(queries, str | bytes) or not isinstance(queries, Iterable):
        raise DataError(f"{what}: given {format_value(queries)}, expected a list of Queries")
    converted = list(queries)
    for number, query in enumerate(converted):
        if not isinstance(query, Query):
            kind = type(query).__name__
            raise DataError(f"{what}: number {number} is a {kind}, expected a Query; write Query(id, text)")
        place = f"{what}: number {number}"
        converted[number] = Query(coerce_id(query.id, place), coerce_text(query.text, place))
    return converted
