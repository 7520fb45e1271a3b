"""`bidr list`: list documents without a query."""

import json
import os
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from bidr.cli.base import Command, CommandResult, OptionalFile, OptionalFilter, format_count
from bidr.cli.filter_flag import parse_filter_flag
from bidr.cli.index_writer import Index
from bidr.errors import ConfigError

if TYPE_CHECKING:
    from bidr.data.types import Document, DocumentPage
    from bidr.index.live.view import LiveView

LINE_CHARS = 100
OptionalCursor = Annotated[str | None, tyro.conf.arg(metavar="ID", help_behavior_hint="(optional)")]


@dataclass(frozen=True, kw_only=True)
class List(Command):
    """List the documents of an index, or those that match a filter, without a query.

    The order is that of hashes of the ids: a document that stays is listed once, whatever is written meanwhile.
    """

    index: Index
    """Index folder."""
    filter: OptionalFilter = None
    """Filter on attributes, as JSON."""
    limit: int = 20
    """Number of documents to show."""
    cursor: OptionalCursor = None
    """Continue after this id, which the last page ended with."""
    out: OptionalFile = None
    """Write all matching documents to this file instead, as JSON lines that `bidr add` reads."""

    def list_outputs(self) -> list[Path]:
        return [*super().list_outputs(), *([self.out] if self.out else [])]

    def run(self) -> CommandResult:
        from bidr.index.filters.filter_expression import parse_filter
        from bidr.index.live.document_list import list_documents
        from bidr.index.live.live_reader import LiveIndex
        from bidr.search.searcher import check_integer

        check_integer("limit", self.limit)
        with LiveIndex.open(self.index) as reader:
            view = reader.latest()
            condition = None if self.filter is None else parse_filter_flag(self.filter, view.attributes())
            expression = None if condition is None else parse_filter(condition)
            count = view.count if expression is None else view.count_matching(expression)
            if self.out is not None:
                return self._write(view, expression, count, self.out)
            page = list_documents(view, expression, self.limit, self.cursor)
        return _format_page(page, count)

    def _write(self, view: "LiveView", expression: Any, count: int, out: Path) -> CommandResult:
        from bidr.index.live.document_list import scroll_documents
        from bidr.utils.files import NewFile, remove, storage_errors
        from bidr.utils.progress import show_progress

        staging = out.with_name(f".{out.name}.{os.getpid()}.new")
        with storage_errors(out), ExitStack() as stack:
            stack.callback(remove, staging)
            with NewFile(staging) as file, show_progress("list", count, "documents") as advance:
                for document in scroll_documents(view, expression):
                    line = json.dumps(to_record(document), ensure_ascii=False)
                    file.write(line.encode("utf-8", "surrogatepass") + b"\n")
                    advance(1)
            staging.replace(out)
        return CommandResult(f"{out}: {format_count(count, 'document')}", {"documents": count, "out": str(out)})


def to_record(document: "Document") -> dict[str, Any]:
    """Return a document as a JSON line of a corpus."""
    fields = {"_id": document.id, "title": document.title, "text": document.text}
    return fields | ({"metadata": dict(document.attributes)} if document.attributes else {})


def format_documents(documents: "Iterable[Document]") -> list[str]:
    """Format ids, titles or texts, and attributes, a line for each document."""
    lines = []
    for document in documents:
        text = " ".join((document.title or document.text).split())
        attributes = json.dumps(document.attributes, ensure_ascii=False) if document.attributes else ""
        line = "  ".join(part for part in (document.id, text[:LINE_CHARS], attributes) if part)
        lines.append("".join(letter if letter.isprintable() else " " for letter in line))
    return lines


def _format_page(page: "DocumentPage", count: int) -> CommandResult:
    lines = format_documents(page.documents)
    lines.append(f"{len(page.documents):,} of {format_count(count, 'document')}")
    if page.cursor is not None:
        lines.append(f"next page: --cursor {page.cursor!r}")
    records = [to_record(document) for document in page.documents]
    return CommandResult("\n".join(lines), {"documents": records, "count": count, "cursor": page.cursor})


@dataclass(frozen=True, kw_only=True)
class Count(Command):
    """Count the documents of an index, or those that match a filter."""

    index: Index
    """Index folder."""
    filter: OptionalFilter = None
    """Filter on attributes, as JSON."""

    def run(self) -> CommandResult:
        from bidr.index.filters.filter_expression import parse_filter
        from bidr.index.live.live_reader import LiveIndex

        with LiveIndex.open(self.index) as reader:
            view = reader.latest()
            count = view.count
            if self.filter is not None:
                count = view.count_matching(parse_filter(parse_filter_flag(self.filter, view.attributes())))
        return CommandResult(f"{count:,}", {"count": count})


@dataclass(frozen=True, kw_only=True)
class Get(Command):
    """Show documents by id."""

    index: Index
    """Index folder."""
    ids: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="ID ...")] = ()
    """Document ids."""
    missing_ok: bool = False
    """Ignore ids that are not in the index."""

    def run(self) -> CommandResult:
        from bidr.index.live.live_reader import LiveIndex

        if not self.ids:
            raise ConfigError("no ids given; put them after the index")
        with LiveIndex.open(self.index) as reader:
            view = reader.latest()
            rows = view.find_rows(self.ids)
            missing = [doc_id for doc_id in self.ids if doc_id not in rows]
            if missing and not self.missing_ok:
                raise ConfigError(f"{self.index}: no document {missing[0]!r}; leave it out, or pass --missing-ok")
            records = [to_record(view.documents.record(row)) for row in rows.values()]
        lines = [json.dumps(record, ensure_ascii=False) for record in records]
        return CommandResult("\n".join(lines), {"documents": records, "missing": missing})
