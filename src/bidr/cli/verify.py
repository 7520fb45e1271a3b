"""`bidr verify`: check every byte of an index."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from bidr.cli.base import (
    Command,
    CommandResult,
    format_count,
)


@dataclass(frozen=True, kw_only=True)
class Verify(Command):
    """Check every byte of an index against its checksums."""

    index: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="INDEX")]
    """Index folder."""

    def run(self) -> CommandResult:
        from bidr.cli.format_description import format_bytes
        from bidr.index.live.inspection import list_files, verify_live
        from bidr.index.live.live_reader import LiveIndex
        from bidr.utils.progress import show_progress

        with LiveIndex.open(self.index) as index:
            view = index.latest()
            files = list_files(view)
            total = sum(count for _, count in files)
            with show_progress("verify", total, "bytes") as advance:
                verify_live(view, advance)
        value = {"index": str(self.index), "generation": view.generation.name, "files": len(files), "bytes": total}
        return CommandResult(
            f"{self.index}: {format_count(len(files), 'file')}, {format_bytes(total)}, every checksum matches", value
        )
