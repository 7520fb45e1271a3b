"""Compact an index, and copy a state of it."""

from pathlib import Path

from bidr.index.cost_model.build_memory import check_budget, estimate_loaded_bytes
from bidr.index.live.snapshot import write_snapshot
from bidr.index.live.writer import LiveWriter
from bidr.index.storage.commit import WRITER_WAIT_SECONDS
from bidr.pipeline.document_encoders import refuse_documents


def compact(folder: Path | str, *, ram_budget: int | str | None = None, wait: float = WRITER_WAIT_SECONDS) -> None:
    """Merge the segments of an index into one, without deleted documents.

    A killed compaction is resumed, if nothing was added or deleted since. The model is not needed.
    ram_budget: most anonymous memory (bytes, or "1GiB"); raises ConfigError if too small.
    wait: seconds to wait for another writer.
    """
    # The index is open during compaction: refuse one that cannot be opened within the budget.
    check_budget(ram_budget, {"opening": estimate_loaded_bytes(Path(folder))}, "compacting this index")
    with LiveWriter(folder, refuse_documents, wait=wait) as writer:
        writer.compact(ram_budget=ram_budget)


def snapshot(folder: Path | str, out: Path | str, *, copy: bool = False) -> Path:
    """Copy the current state of an index to a new folder; writers may continue.

    Immutable files become hard links where the file system allows it: no space and no time, but damage to a shared file
    affects both. copy: copy them, for a backup.
    """
    return write_snapshot(Path(folder), Path(out), copy=copy)
