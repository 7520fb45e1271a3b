"""Data sets by their ir_datasets id, such as "irds:msmarco-passage/train"."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from bidr.data.dropped_fields import LeftOut
from bidr.data.sources import Source, SplitTables, Table, score
from bidr.data.types import Document, Qrel, Query
from bidr.data.validation import coerce_id, coerce_text
from bidr.errors import DataError, MissingExtraError

PREFIX = "irds:"
_OWN_SPLIT = "test"


def detect(identifier: str) -> Source:
    """The data set of an id, with or without the prefix "irds:".

    The documents are those of the id; the splits are all judged sets over the same documents, named by what follows
    the id of the documents: "train" and "dev/small" for msmarco-passage. Judgements of the bare id are split "test".
    """
    identifier = identifier.removeprefix(PREFIX)
    package = _package()
    if not _load(identifier).has_docs():
        raise DataError(f"{PREFIX}{identifier} has no documents; choose an id that has some")
    documents = package.docs_parent_id(identifier)
    splits = {}
    for name in sorted({identifier, documents, *_below(package, documents)}):
        dataset = _load(name)
        if dataset.has_queries() and dataset.has_qrels() and package.docs_parent_id(name) == documents:
            split = name.removeprefix(documents).removeprefix("/") or _OWN_SPLIT
            queries = Table(f"{PREFIX}{name} queries", partial(read_queries, name), "number")
            splits[split] = SplitTables(
                queries, Table(f"{PREFIX}{name} qrels", partial(read_judgements, name), "number")
            )
    read = partial(read_documents, documents)
    table = Table(f"{PREFIX}{documents} documents", read, "number", telling=read)
    return Source(identifier, table, splits)


def _package() -> Any:
    try:
        import ir_datasets
    except ImportError as error:
        raise MissingExtraError("an irds: data set", "ir_datasets", extra="data") from error
    return ir_datasets


def _below(package: Any, identifier: str) -> Iterator[str]:
    return (name for name in package.registry if name.startswith(f"{identifier}/"))


def _load(identifier: str) -> Any:
    try:
        return _package().load(identifier)
    except KeyError as error:
        raise DataError(f"ir_datasets has no data set {identifier!r}; its ids are on ir-datasets.com") from error


def _records(identifier: str, kind: str) -> Iterator[tuple[int, Any]]:
    """Records by number; what ir_datasets reports when a download fails or has to be made by hand becomes DataError."""
    dataset = _load(identifier)
    try:
        yield from enumerate(getattr(dataset, f"{kind}_iter")(), start=1)
    except (OSError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"ir_datasets cannot give the {kind} of {identifier!r}: {reason}") from error


def read_documents(identifier: str, left_out: LeftOut | None = None) -> Iterator[tuple[int, Document]]:
    """The documents; a record without a text or body field gives its default text.

    `left_out` counts titles and texts with half of a surrogate pair.
    """
    left_out = left_out or LeftOut()
    for number, record in _records(identifier, "docs"):
        text = getattr(record, "text", None) or getattr(record, "body", None)
        title = getattr(record, "title", None) or ""
        if text is None:
            title, text = "", record.default_text()
        if not (type(title) is str and type(text) is str and title.isascii() and text.isascii()):
            place = f"{PREFIX}{identifier} documents number {number}"
            title, text = left_out.repair(str(title), place, "title"), left_out.repair(str(text), place, "text")
        yield number, Document(coerce_id(record.doc_id, f"{PREFIX}{identifier} documents number {number}"), title, text)


def read_queries(identifier: str) -> Iterator[tuple[int, Query]]:
    """The queries, by the text that ir_datasets searches with."""
    for number, record in _records(identifier, "queries"):
        place, text = f"{PREFIX}{identifier} queries number {number}", getattr(record, "text", None)
        text = record.default_text() if text is None else text
        yield number, Query(coerce_id(record.query_id, place), coerce_text(text, place))


def read_judgements(identifier: str) -> Iterator[tuple[int, Qrel]]:
    """The judgements."""
    for number, record in _records(identifier, "qrels"):
        place = f"{PREFIX}{identifier} qrels number {number}"
        query, document = coerce_id(record.query_id, place), coerce_id(record.doc_id, place)
        yield number, Qrel(query, document, score(record.relevance, place))
