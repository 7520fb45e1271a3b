"""`bidr repair`: save the intact documents of a damaged index."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from bidr.cli.base import Command, CommandResult, Folder, OptionalFile, OptionalFolder, format_columns, format_count

if TYPE_CHECKING:
    from bidr.index.repair.salvage import RepairReport

SOME_LOST = 3
"""Exit code if documents are lost or incomplete."""
SHOWN = 8


@dataclass(frozen=True, kw_only=True)
class Repair(Command):
    """Save every intact document of a damaged index into a new index.

    The damaged index is only read. Lost documents are listed by id; the exit code is 3 if there are any.
    """

    index: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="INDEX")]
    """Folder of the damaged index."""
    out: Folder
    """Folder for the new index: must not exist, and not inside INDEX."""
    lost: OptionalFile = None
    """File for the list of lost documents, one JSON object per line; by default OUT.lost.jsonl."""
    keep_incomplete: bool = False
    """Also save documents whose vector and id are intact but whose text or attributes are lost, without these."""
    model: OptionalFolder = None
    """Model folder, if it has moved since the index was built. Needed for damaged codes or codebooks."""
    refit: bool = False
    """If both the codebooks and the model are lost: fit OPQ codes to the vectors. The new index has no model and is
    searched by vectors."""
    device: str = "cpu"
    """Device of the encoder, if codes must be computed again: 'auto', 'cpu', 'cuda'."""

    def run(self) -> CommandResult:
        from bidr.pipeline.repair import repair_index

        report = repair_index(
            self.index,
            self.out,
            model=self.model,
            lost=self.lost,
            keep_incomplete=self.keep_incomplete,
            refit=self.refit,
            device=self.device,
        )
        return CommandResult(describe_repair(report), report.as_fields(), 0 if report.is_complete else SOME_LOST)


def describe_repair(report: "RepairReport") -> str:
    """Format what was saved and what was lost."""
    rows = [("saved", f"{format_count(report.saved, 'document')}, in {report.out}")]
    if report.incomplete:
        rows.append(("incomplete", f"{report.incomplete:,} of them without a text or attributes, which are lost"))
    rows.append(("lost", _describe_lost(report)))
    if report.lost_file:
        rows.append(("listed in", report.lost_file))
    if report.again_file:
        rows.append(("to add again", f"{report.again:,} of them, with intact text: {report.again_file} (bidr add)"))
    if report.partly_whole:
        rows.append(
            ("hint", f"{report.partly_whole:,} of them lack a text or attributes alone; --keep-incomplete saves these")
        )
    if report.superseded:
        rows.append(("left out", f"{format_count(report.superseded, 'older version')} of saved documents"))
    for number, (name, much) in enumerate(report.damaged.items()):
        if number == SHOWN:
            rows.append(("", f"and {format_count(len(report.damaged) - SHOWN, 'more file')} (--json FILE has all)"))
            break
        rows.append(("damaged" if number == 0 else "", f"{name}: {much}"))
    rows += [("note", note) for note in report.notes[:SHOWN]]
    if not report.damaged and not report.notes:
        rows.append(("damaged", "nothing found"))
    return format_columns(rows)


def _describe_lost(report: "RepairReport") -> str:
    if not report.lost:
        return "no document"
    reasons = ", ".join(f"{many:,} by {name}" for name, many in report.reasons.items())
    unnamed = f"; of {report.unnamed:,} the id is lost too" if report.unnamed else ""
    return f"{format_count(report.lost, 'document')} ({reasons}){unnamed}"
