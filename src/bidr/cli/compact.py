"""`bidr compact`: merge the segments of an index."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bidr.cli.base import Command, CommandResult, OptionalSize, format_count
from bidr.cli.index_writer import Index, describe_state, open_plain_writer

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, kw_only=True)
class Compact(Command):
    """Merge the segments of an index into one, and drop what was deleted.

    One that was cut off is continued, if nothing was added or deleted since; the index serves all the while.
    """

    index: Index
    """Folder of an index."""
    ram_budget: OptionalSize = None
    """Most anonymous memory that it may take, such as 1GiB, with the index, which is open; refused at the start where
    that cannot be kept."""

    def run(self) -> CommandResult:
        from bidr.index.cost_model.memory_budget import COMPACTION_BASE, check_budget, estimate_loaded_bytes

        # What could not even be opened within the budget is not.
        check_budget(
            self.ram_budget,
            {"opening": estimate_loaded_bytes(self.index)},
            "compacting this index",
            base=COMPACTION_BASE,
        )
        with open_plain_writer(self.index) as writer:
            segments_before = len(writer.view.segments)
            writer.compact(ram_budget=self.ram_budget)
            value = {
                **describe_state(self.index, writer),
                "segments_before": segments_before,
                "engine": writer.view.manifest.engine,
            }
        merged = f"merged {format_count(segments_before, 'segment')} and the log"
        merged = f"{merged}; {format_count(value['documents'], 'document')}"
        nothing = "no documents are left; codebooks and centroids are kept for later additions"
        return CommandResult(f"{self.index}: {merged if value['documents'] else nothing}", value)
