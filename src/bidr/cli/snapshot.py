"""`bidr snapshot`: copy a state of an index."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from bidr.cli.base import Command, CommandResult, format_count
from bidr.cli.index_writer import Index

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, kw_only=True)
class Snapshot(Command):
    """Keep an index as it is now, in another folder, while documents are added to it; that is an index like any other.

    Files are linked (hard links): it takes no space and no time, and what is added or deleted later in one changes
    nothing in the other, but a fault of the disk in a file of one is in both. --copy makes a backup.
    """

    index: Index
    """Folder of an index."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """A folder that does not exist yet."""
    copy: bool = False
    """Copy every byte, where files would be linked; on another file system they are copied anyway."""

    def run(self) -> CommandResult:
        from bidr.index.live.live_index import LiveIndex
        from bidr.pipeline.maintenance import snapshot

        snapshot(self.index, self.out, copy=self.copy)
        with LiveIndex.open(self.out) as copied:
            count = copied.count
        return CommandResult(
            f"{self.out}: {format_count(count, 'document')} of {self.index}",
            {"index": str(self.out), "documents": count},
        )
