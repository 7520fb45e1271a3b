"""`bidr compact`: merge the segments of an index."""

from dataclasses import dataclass

from bidr.cli.base import Command, CommandResult, OptionalSize, format_count
from bidr.cli.index_writer import Index, describe_state, open_plain_writer


@dataclass(frozen=True, kw_only=True)
class Compact(Command):
    """Merge the segments of an index into one and drop deleted documents.

    An interrupted compaction continues when repeated, unless documents were added or deleted since. The index stays
    searchable.
    """

    index: Index
    """Index folder."""
    ram_budget: OptionalSize = None
    """Maximum anonymous memory, the open index included, such as 1GiB. Refused at the start if it cannot be met."""

    def run(self) -> CommandResult:
        from bidr.index.cost_model.build_memory import check_budget, estimate_loaded_bytes

        # Refuse an index that cannot even be opened within the budget.
        check_budget(
            self.ram_budget,
            {"opening": estimate_loaded_bytes(self.index)},
            "compacting this index",
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
