"""Compact an index, and copy a state of it."""

from pathlib import Path

from bidr.index.cost_model.memory_budget import COMPACTION_BASE, check_budget, estimate_loaded_bytes
from bidr.index.live.snapshot import write_snapshot
from bidr.index.live.writer import LiveWriter
from bidr.index.storage.commit import WRITER_WAIT_SECONDS
from bidr.pipeline.document_encoders import refuse_documents


def compact(folder: Path | str, *, ram_budget: int | str | None = None, wait: float = WRITER_WAIT_SECONDS) -> None:
    """Merge the segments of an index into one, without what is deleted.

    One that was killed is gone on with, if nothing was added or deleted since. Its model is not needed.
    ram_budget: most anonymous memory that it may take (bytes, or "1GiB"); what cannot be kept is refused.
    wait: seconds to wait for another writer.
    """
    # The index is open while it is compacted; what could not even be opened is not.
    check_budget(
        ram_budget, {"opening": estimate_loaded_bytes(Path(folder))}, "compacting this index", base=COMPACTION_BASE
    )
    with LiveWriter(folder, refuse_documents, wait=wait) as writer:
        writer.compact(ram_budget=ram_budget)


def snapshot(folder: Path | str, out: Path | str, *, copy: bool = False) -> Path:
    """An index as it is now, in a folder of its own, while a writer goes on.

    Files that never change are linked where the file system can: no space, no time, but the same bytes on the disk,
    which one fault damages for both. copy: copy them, for a backup.
    """
    return write_snapshot(Path(folder), Path(out), copy=copy)
