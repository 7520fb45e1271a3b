"""`bidr delete`: delete documents from an index by their ids."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from bidr.cli.base import Command, CommandResult, OptionalFile, OptionalFilter, format_count
from bidr.cli.filter_flag import parse_filter_flag
from bidr.cli.index_writer import Index, describe_state, open_plain_writer
from bidr.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Delete(Command):
    """Delete documents from an index by id, or those that match a filter."""

    index: Index
    """Index folder."""
    ids: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="ID ...")] = ()
    """Document ids."""
    file: OptionalFile = None
    """File of further ids, one per line."""
    filter: OptionalFilter = None
    """Filter on attributes, as JSON: delete the documents that match."""
    missing_ok: bool = False
    """Ignore ids that are not in the index."""

    def run(self) -> CommandResult:
        from bidr.data.line_reader import read_lines

        ids = [*self.ids, *((line for _, line in read_lines(self.file)) if self.file else ())]
        if ids and self.filter is not None:
            raise ConfigError("ids and --filter given, expected one of them; delete by id first, then by filter")
        if not ids and self.filter is None:
            raise ConfigError("no ids given; put them after the index, or one per line into a file: --file FILE")
        with open_plain_writer(self.index) as writer:
            if self.filter is not None:
                deleted = writer.delete_where(parse_filter_flag(self.filter, writer.view.attributes()))
            else:
                deleted = writer.delete(ids, missing_ok=self.missing_ok)
            value = {**describe_state(self.index, writer), "deleted": deleted}
        return CommandResult(
            f"{self.index}: {deleted:,} deleted; {format_count(value['documents'], 'document')}", value
        )
