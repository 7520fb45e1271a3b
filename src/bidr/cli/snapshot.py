"""`bidr snapshot`: copy a state of an index."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from bidr.cli.base import Command, CommandResult, format_count
from bidr.cli.index_writer import Index


@dataclass(frozen=True, kw_only=True)
class Snapshot(Command):
    """Freeze the current state of an index in another folder.

    The snapshot is an index of its own. Files are hard-linked, so it takes no space and no time, and later changes in
    one index do not affect the other; but disk damage to a shared file affects both. For a backup use --copy.
    """

    index: Index
    """Index folder."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """Folder for the snapshot; must not exist."""
    copy: bool = False
    """Copy the files instead of linking them. Across file systems they are always copied."""

    def run(self) -> CommandResult:
        from bidr.index.live.live_reader import LiveIndex
        from bidr.pipeline.maintenance import snapshot

        snapshot(self.index, self.out, copy=self.copy)
        with LiveIndex.open(self.out) as copied:
            count = copied.count
        return CommandResult(
            f"{self.out}: {format_count(count, 'document')} of {self.index}",
            {"index": str(self.out), "documents": count},
        )
