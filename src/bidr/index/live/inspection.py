"""Describe an index and verify its checksums."""

from typing import Any

from bidr.errors import IndexFolderError
from bidr.index.live.drift import Drift
from bidr.index.live.view import LiveView
from bidr.index.live.wal import ACKNOWLEDGED, LOG, WalReader
from bidr.index.live.wal_record import decode_record
from bidr.index.storage.checksums import list_unverified_files
from bidr.index.storage.live_state import read_state
from bidr.index.storage.manifest import MANIFEST, check_content, hash_file, open_segment


def describe_live(view: LiveView) -> dict[str, Any]:
    """Describe an index as `IndexReader.describe` does, with totals of all segments, and each segment."""
    description, count, files = view.segments[0].reader.describe(), max(view.count, 1), list_files(view)
    disk: dict[str, int] = {}
    for name, size in files:
        disk[name] = disk.get(name, 0) + size
    ram = view.ram_usage
    return {
        **description,
        "generation": view.generation.name,
        "documents": view.count,
        "text": view.documents.has_text,
        "ram_bytes": ram.parts,
        "ram_bytes_per_document": ram.to_json(),
        "unchecked": sorted(
            {name for segment in view.segments for name in list_unverified_files(segment.reader.manifest)}
        ),
        "files": len(files),
        "disk_bytes": disk,
        "disk_bytes_per_document": {name: round(size / count, 2) for name, size in disk.items()},
        "segments": [
            {
                "name": segment.name,
                "documents": segment.count,
                "deleted": segment.deleted_count,
                "changed": len(segment.list_changed_rows()),
                "engine": segment.reader.manifest.engine,
            }
            for segment in view.segments
        ],
        "log": {"documents": int(view.memtable.alive.sum()), "ram_bytes": view.memtable.bytes}
        if view.state.live
        else None,
        "attributes": _list_attributes(view),
        "schema": view.describe_attributes(),
        "drift": _describe_drift(view.state.drift),
    }


def _list_attributes(view: LiveView) -> list[str]:
    """List the attribute names of alive documents."""
    names = {name for segment in view.segments for name in segment.list_attribute_names()}
    return sorted(names.union(*(view.memtable.documents[row].attributes or () for row in view.memtable_rows)))


def _describe_drift(drift: dict[str, float] | None) -> dict[str, Any] | None:
    """Add the warning, if any, to the drift that the writer measured last."""
    return None if drift is None else {**drift, "warning": Drift(**drift).warning}  # type: ignore[arg-type]


def list_files(view: LiveView) -> list[tuple[str, int]]:
    """List names and sizes of all files that `verify_live` reads."""
    state_paths = sorted(view.generation.iterdir()) if view.state.live else []
    files = [(path.name, path.stat().st_size) for path in state_paths]
    for segment in view.segments:
        files.append((MANIFEST, (view.folder / segment.name / MANIFEST).stat().st_size))
        files += [(name, entry.size) for name, entry in sorted(segment.reader.manifest.files.items())]
    return files


def verify_live(view: LiveView, advance: Any = lambda size, note: None) -> None:
    """Verify all checksums of a state; `advance(bytes, name)` reports progress."""
    folder, name = view.folder, view.generation.name
    if view.state.live:
        read_state(folder, name, hash_file(view.generation / MANIFEST))
        advance((view.generation / MANIFEST).stat().st_size, MANIFEST)
        for file, entry in view.state.files.items():
            check_content(view.generation, view.state, file)
            advance(entry.size, file)
        advance(_verify_log(view), LOG)
    for segment in view.segments:
        manifest = open_segment(folder, segment.name, segment.entry.xxh3)
        advance((folder / segment.name / MANIFEST).stat().st_size, MANIFEST)
        for file, entry in manifest.files.items():
            check_content(folder / segment.name, manifest, file)
            advance(entry.size, file)


def _verify_log(view: LiveView) -> int:
    """Verify the log; return the size of it and its durability mark."""
    log = WalReader(view.generation)
    try:
        for content in log.read():
            decode_record(content, log.path)
    finally:
        log.close()
    if log.trailing_bytes:
        raise IndexFolderError(
            f"{log.path}: its last {log.trailing_bytes:,} bytes are not a complete record: a writer was interrupted, "
            "or they are damaged; no acknowledged commit is missing; the next writer (bidr add, bidr compact) drops "
            "them"
        )
    return sum((view.generation / name).stat().st_size for name in (LOG, ACKNOWLEDGED))
