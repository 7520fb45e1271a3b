"""ir_datasets datasets, by ids such as "irds:msmarco-passage/train"."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from bidr.data.record_sources import DroppedFieldCounter, Source, SplitTables, Table, parse_score
from bidr.data.types import Document, Qrel, Query
from bidr.data.validation import coerce_id, coerce_text
from bidr.errors import DataError, MissingExtraError

PREFIX = "irds:"
_BARE_ID_SPLIT = "test"


def detect(identifier: str) -> Source:
    """Open the dataset of an id, with or without the prefix "irds:".

    The splits are all judged sets over the same documents, named by the suffix after the id of the documents: "train"
    and "dev/small" for msmarco-passage. Judgments of the bare id are split "test".
    """
    identifier = identifier.removeprefix(PREFIX)
    package = _import_package()
    if not _load(identifier).has_docs():
        raise DataError(f"{PREFIX}{identifier} has no documents; choose an id that has some")
    documents = package.docs_parent_id(identifier)
    splits = {}
    for name in sorted({identifier, documents, *_list_children(package, documents)}):
        dataset = _load(name)
        if dataset.has_queries() and dataset.has_qrels() and package.docs_parent_id(name) == documents:
            split = name.removeprefix(documents).removeprefix("/") or _BARE_ID_SPLIT
            queries = Table(f"{PREFIX}{name} queries", partial(read_queries, name), "number")
            splits[split] = SplitTables(
                queries, Table(f"{PREFIX}{name} qrels", partial(read_judgments, name), "number")
            )
    read = partial(read_documents, documents)
    table = Table(f"{PREFIX}{documents} documents", read, "number", read_counting=read)
    return Source(identifier, table, splits)


def _import_package() -> Any:
    try:
        import ir_datasets
    except ImportError as error:
        raise MissingExtraError("an irds: dataset", "ir_datasets", extra="data") from error
    return ir_datasets


def _list_children(package: Any, identifier: str) -> Iterator[str]:
    return (name for name in package.registry if name.startswith(f"{identifier}/"))


def _load(identifier: str) -> Any:
    try:
        return _import_package().load(identifier)
    except KeyError as error:
        raise DataError(f"ir_datasets has no dataset {identifier!r}; its ids are on ir-datasets.com") from error


def _read_records(identifier: str, kind: str) -> Iterator[tuple[int, Any]]:
    """Yield numbered records; errors of ir_datasets, such as a failed or manual download, become DataError."""
    dataset = _load(identifier)
    try:
        yield from enumerate(getattr(dataset, f"{kind}_iter")(), start=1)
    except (OSError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"ir_datasets cannot read the {kind} of {identifier!r}: {reason}") from error


def read_documents(identifier: str, dropped: DroppedFieldCounter | None = None) -> Iterator[tuple[int, Document]]:
    """Yield the documents; without a text or body field, a record's default text is used.

    `dropped` counts titles and texts with half of a surrogate pair.
    """
    dropped = dropped or DroppedFieldCounter()
    for number, record in _read_records(identifier, "docs"):
        text = getattr(record, "text", None) or getattr(record, "body", None)
        title = getattr(record, "title", None) or ""
        if text is None:
            title, text = "", record.default_text()
        if not (type(title) is str and type(text) is str and title.isascii() and text.isascii()):
            place = f"{PREFIX}{identifier} documents number {number}"
            title, text = dropped.repair(str(title), place, "title"), dropped.repair(str(text), place, "text")
        yield number, Document(coerce_id(record.doc_id, f"{PREFIX}{identifier} documents number {number}"), title, text)


def read_queries(identifier: str) -> Iterator[tuple[int, Query]]:
    """Yield the queries with their text or default text."""
    for number, record in _read_records(identifier, "queries"):
        place, text = f"{PREFIX}{identifier} queries number {number}", getattr(record, "text", None)
        text = record.default_text() if text is None else text
        yield number, Query(coerce_id(record.query_id, place), coerce_text(text, place))


def read_judgments(identifier: str) -> Iterator[tuple[int, Qrel]]:
    """Yield the judgments."""
    for number, record in _read_records(identifier, "qrels"):
        place = f"{PREFIX}{identifier} qrels number {number}"
        query, document = coerce_id(record.query_id, place), coerce_id(record.doc_id, place)
        yield number, Qrel(query, document, parse_score(record.relevance, place))
