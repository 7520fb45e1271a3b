"""Flags and helpers of the commands that change an index."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

if TYPE_CHECKING:
    from bidr.index.live.writer import LiveWriter


Index = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="INDEX")]


def open_plain_writer(index: Path) -> "LiveWriter":
    """Open a writer for deletions and compaction, which need no model."""
    from bidr.index.live.writer import LiveWriter
    from bidr.index.storage.commit import WRITER_WAIT_SECONDS
    from bidr.pipeline.document_encoders import refuse_documents

    return LiveWriter(index, refuse_documents, wait=WRITER_WAIT_SECONDS)


def describe_state(index: Path, writer: "LiveWriter") -> dict[str, Any]:
    return {"index": str(index), "documents": writer.view.count, "segments": len(writer.view.segments)}
