"""Looking into a live index: what it takes, and whether every byte is as it was written."""

from typing import Any

from bidr.errors import IndexFolderError
from bidr.index.live.drift import Drift
from bidr.index.live.view import LiveView
from bidr.index.live.wal import ACKNOWLEDGED, LOG, LogReader
from bidr.index.live.wal_record import from_bytes
from bidr.index.storage.checksums import unchecked
from bidr.index.storage.live_state import read_state
from bidr.index.storage.manifest import MANIFEST, check_content, file_checksum, open_segment


def describe_live(view: LiveView) -> dict[str, Any]:
    """The facts of an `IndexReader`, for all segments together, and each segment's own."""
    about, count, files = view.parts[0].open.reader.describe(), max(view.count, 1), files_of(view)
    disk: dict[str, int] = {}
    for name, size in files:
        disk[name] = disk.get(name, 0) + size
    ram = view.ram_bytes
    return {
        **about,
        "generation": view.generation.name,
        "documents": view.count,
        "text": view.documents.has_text,
        "ram_bytes": ram,
        "ram_bytes_per_document": {
            **{name: round(size / count, 2) for name, size in ram.items()},
            "total": round(sum(ram.values()) / count, 2),
        },
        "unchecked": sorted({name for part in view.parts for name in unchecked(part.open.reader.manifest)}),
        "files": len(files),
        "disk_bytes": disk,
        "disk_bytes_per_document": {name: round(size / count, 2) for name, size in disk.items()},
        "segments": [
            {
                "name": part.open.segment.name,
                "documents": part.count,
                "deleted": part.count - part.alive,
                "engine": part.open.reader.manifest.engine,
            }
            for part in view.parts
        ],
        "log": {"documents": int(view.memory.alive.sum()), "ram_bytes": view.memory.bytes} if view.state.live else None,
        "attributes": _attributes(view),
        "drift": _drift(view.state.drift),
    }


def _attributes(view: LiveView) -> list[str]:
    """The names of those that documents have, in segments and in the log."""
    names = {name for part in view.parts for name, _ in part.open.reader.documents.columns.columns}
    return sorted(names.union(*(view.memory.documents[row].attributes or () for row in view.in_log)))


def _drift(found: dict[str, float] | None) -> dict[str, Any] | None:
    """What the writer found last, with what it would tell of it."""
    return None if found is None else {**found, "warning": Drift(**found).warning}  # type: ignore[arg-type]


def files_of(view: LiveView) -> list[tuple[str, int]]:
    """Every file of the state and its size: what `verify_live` looks at."""
    own = sorted(view.generation.iterdir()) if view.state.live else []
    found = [(path.name, path.stat().st_size) for path in own]
    for part in view.parts:
        found.append((MANIFEST, (view.folder / part.open.segment.name / MANIFEST).stat().st_size))
        found += [(name, entry.size) for name, entry in sorted(part.open.reader.manifest.files.items())]
    return found


def verify_live(view: LiveView, advance: Any = lambda done, note: None) -> None:
    """Refuse a state of which any byte is not as it was written."""
    folder, name = view.folder, view.generation.name
    if view.state.live:
        read_state(folder, name, file_checksum(view.generation / MANIFEST))
        advance((view.generation / MANIFEST).stat().st_size, MANIFEST)
        for file, entry in view.state.files.items():
            check_content(view.generation, view.state, file)
            advance(entry.size, file)
        advance(_verify_log(view), LOG)
    for part in view.parts:
        segment = part.open.segment
        manifest = open_segment(folder, segment.name, segment.xxh3)
        advance((folder / segment.name / MANIFEST).stat().st_size, MANIFEST)
        for file, entry in manifest.files.items():
            check_content(folder / segment.name, manifest, file)
            advance(entry.size, file)


def _verify_log(view: LiveView) -> int:
    """Refuse a log that is not whole; how many bytes it and what says how much of it is durable have."""
    log = LogReader(view.generation)
    try:
        for record in log.read():
            from_bytes(record, log.path)
    finally:
        log.close()
    if log.rest:
        raise IndexFolderError(
            f"{log.path}: its last {log.rest:,} bytes are no whole record: a writer was cut off in them, or they are "
            "damaged; nothing acknowledged before them is missing; the next writer (bidr add, bidr compact) drops them"
        )
    return sum((view.generation / name).stat().st_size for name in (LOG, ACKNOWLEDGED))
