"""Looking into a live index: what it takes, and whether every byte is as it was written."""

from typing import Any

from bidr.errors import IndexFolderError
from bidr.index.checks import unchecked
from bidr.index.folder import MANIFEST, check_content, file_checksum, open_segment
from bidr.index.live.changes import from_bytes
from bidr.index.live.log import LogReader
from bidr.index.live.view import LiveView
from bidr.index.state import read_state


def describe_live(view: LiveView) -> dict[str, Any]:
    """The facts of an `IndexReader`, for all segments together, and each segment's own."""
    about, count = view.parts[0].open.reader.describe(), max(view.count, 1)
    disk: dict[str, int] = {}
    for part in view.parts:
        for name, size in part.open.reader.describe()["disk_bytes"].items():
            disk[name] = disk.get(name, 0) + size
    if view.state.live:
        own = sorted(path for path in view.generation.iterdir() if path.name != MANIFEST)
        disk.update({path.name: path.stat().st_size for path in own})
    ram = view.candidates.ram_bytes
    return {
        **about,
        "generation": view.generation.name,
        "documents": view.count,
        "text": view.documents.has_text,
        "ram_bytes_per_document": {
            **{name: round(size / count, 2) for name, size in ram.items()},
            "total": round(sum(ram.values()) / count, 2),
        },
        "unchecked": sorted({name for part in view.parts for name in unchecked(part.open.reader.manifest)}),
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
        "attributes": sorted({name for part in view.parts for name, _ in part.open.reader.documents.columns.columns}),
        "drift": view.state.drift,
    }


def files_of(view: LiveView) -> list[tuple[str, int]]:
    """Every file of the state and its size, for who shows progress."""
    found = [(name, entry.size) for name, entry in view.state.files.items()]
    for part in view.parts:
        found += [(name, entry.size) for name, entry in part.open.reader.manifest.files.items()]
    return found


def verify_live(view: LiveView, advance: Any = lambda done, note: None) -> None:
    """Refuse a state of which any byte is not as it was written."""
    folder, name = view.folder, view.generation.name
    if view.state.live:
        read_state(folder, name, file_checksum(view.generation / MANIFEST))
        for file, entry in view.state.files.items():
            check_content(view.generation, view.state, file)
            advance(entry.size, file)
        _verify_log(view)
    for part in view.parts:
        segment = part.open.segment
        manifest = open_segment(folder, segment.name, segment.xxh3)
        for file, entry in manifest.files.items():
            check_content(folder / segment.name, manifest, file)
            advance(entry.size, file)


def _verify_log(view: LiveView) -> None:
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
