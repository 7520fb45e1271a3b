"""`bidr update`: change attributes of documents."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from bidr.cli.base import Command, CommandResult, OptionalFilter, format_count
from bidr.cli.filter_flag import parse_filter_flag
from bidr.cli.index_writer import Index, describe_state, open_plain_writer
from bidr.errors import ConfigError, DataError

OptionalChanges = Annotated[str | None, tyro.conf.arg(metavar="JSON", help_behavior_hint="(optional)")]
OptionalPositionalFile = Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]


@dataclass(frozen=True, kw_only=True)
class Update(Command):
    """Change attributes of documents; codes, vectors and texts stay as they are.

    Either FILE with a change for each document, or --filter and --set with one change for all that match. Searches see
    the new attributes within a second.
    """

    index: Index
    """Index folder."""
    file: OptionalPositionalFile = None
    """JSON lines: {"_id": ..., "metadata": {"price": 3, "stock": null}}; null removes an attribute."""
    filter: OptionalFilter = None
    """Filter on attributes, as JSON: which documents to change."""
    set: OptionalChanges = None
    """New values, as JSON: '{"price": 3, "stock": null}'; null removes an attribute."""
    missing_ok: bool = False
    """Ignore ids that are not in the index."""

    def run(self) -> CommandResult:
        by_filter = self.filter is not None and self.set is not None
        if (self.file is None) != by_filter or (self.file is not None and (self.filter or self.set)):
            raise ConfigError("give either FILE with a change for each document, or --filter and --set together")
        changes = None if self.file is None else read_changes(self.file)
        values = None if self.set is None else _parse_values(self.set)
        with open_plain_writer(self.index) as writer:
            if changes is not None:
                changed = writer.set_attributes(changes, missing_ok=self.missing_ok)
            else:
                condition = parse_filter_flag(self.filter or "", writer.view.attributes())
                changed = writer.set_attributes_where(condition, values or {})
            value = {**describe_state(self.index, writer), "changed": changed}
        return CommandResult(f"{self.index}: attributes of {format_count(changed, 'document')} changed", value)


def _parse_values(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"--set: {text!r} is not JSON ({error}); expected an object such as '{{\"price\": 3}}'"
        ) from error


def read_changes(path: Path) -> dict[str, dict[str, Any]]:
    """Read and validate a file of changes before any is made; the last change of an attribute counts."""
    from bidr.index.live.attribute_overlay import validate_changes

    changes: dict[str, dict[str, Any]] = {}
    for where, record in _read_records(path):
        doc_id, values = record.get("_id", record.get("id")), record.get("metadata", record.get("attributes"))
        if not isinstance(doc_id, str) or not doc_id:
            raise DataError(f"{where}: _id is {doc_id!r}, expected a string that is not empty")
        changes.setdefault(doc_id, {}).update(validate_changes(values, where))
    if not changes:
        raise DataError(f"{path} has no changes; expected at least one a line")
    return changes


def _read_records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    from bidr.data.line_reader import read_lines

    for number, line in read_lines(path):
        where = f"{path} line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: not JSON ({error}); expected an object with _id and metadata") from error
        if not isinstance(record, dict):
            raise DataError(f"{where}: {line[:60]!r}, expected an object with _id and metadata")
        yield where, record
