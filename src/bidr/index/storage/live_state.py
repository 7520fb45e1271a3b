"""State of an updated index: its segments and their deleted rows.

INDEX/000009/manifest.json     segments, each with the checksum of its manifest
INDEX/000009/000003.deleted    deleted rows of segment 000003, one bit per row
INDEX/000009/000003.changed.npy, .attributes.*, .column.*  changed attributes (`live/attribute_overlay.py`)
INDEX/000009/log               write-ahead log of later commits (`live/wal.py`); the only file that grows
INDEX/000009/acknowledged      durable length of the log
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bidr.errors import REBUILD, IndexFolderError
from bidr.index.storage.manifest import (
    CHECKSUM,
    FORMAT,
    GENERATION,
    LIVE_FORMAT,
    MANIFEST,
    PARSE_ERRORS,
    FileEntry,
    ModelReference,
    check_sizes,
    is_count,
    parse_fields,
    parse_file_entries,
    parse_manifest,
    parse_model_reference,
    read_manifest,
    render_fields,
    resolve_generation,
)
from bidr.utils.files import read_regular


@dataclass(frozen=True)
class SegmentEntry:
    """A segment as listed in a state: folder name, manifest checksum, counts of documents, deleted and changed ones."""

    name: str
    xxh3: str
    count: int
    deleted: int = 0
    changed: int = 0

    @property
    def changed_file(self) -> str:
        """Name of the file of rows with changed attributes, in the folder of the state."""
        return f"{self.name}.changed.npy"

    @property
    def tombstones(self) -> str:
        """Name of the file of deleted rows, in the folder of the state."""
        return f"{self.name}.deleted"


@dataclass(frozen=True, kw_only=True)
class IndexState:
    """Segments of an index. `live`: it has a write-ahead log; an index without updates has none."""

    segments: tuple[SegmentEntry, ...]
    model: ModelReference | None
    files: dict[str, FileEntry] = field(default_factory=dict)
    drift: dict[str, float] | None = None
    live: bool = True


def render_state(state: IndexState) -> bytes:
    """Serialize a state canonically, so that any changed byte is detected."""
    return render_fields(
        {
            "format": LIVE_FORMAT,
            "segments": [_render_segment(segment) for segment in state.segments],
            "model": state.model._asdict() if state.model else None,
            "files": {name: entry.as_fields() for name, entry in sorted(state.files.items())},
            "drift": state.drift,
        }
    )


def _render_segment(segment: SegmentEntry) -> dict[str, Any]:
    """Omit `changed` where it is 0, as earlier versions do not know it."""
    fields = asdict(segment)
    if not segment.changed:
        del fields["changed"]
    return fields


def read_state(folder: Path, name: str, digest: str) -> IndexState:
    """Read the state of a generation; an index without updates is a state of one segment."""
    path = folder / name / MANIFEST
    content = read_manifest(folder, name, digest)
    fields = parse_fields(content, path)
    if fields["format"] == FORMAT:
        manifest = parse_manifest(content, path)
        return IndexState(segments=(SegmentEntry(name, digest, manifest.count),), model=manifest.model, live=False)
    state = parse_state(fields, path)
    check_sizes(folder / name, state.files)
    return state


def parse_state(fields: dict[str, Any], path: Path) -> IndexState:
    """Build a state from the fields of its manifest."""
    try:
        return _build_state(fields)
    except PARSE_ERRORS as error:
        raise IndexFolderError(f"{path}: not a manifest that bidr wrote ({error}); {REBUILD}") from error


def read_current_state(folder: Path) -> tuple[str, IndexState]:
    """Read the name and content of the current state."""
    return resolve_generation(folder, lambda name, digest: (name, read_state(folder, name, digest)))


def read_model_reference(folder: Path) -> ModelReference | None:
    """Read which model encoded an index."""
    return read_current_state(folder)[1].model


def read_segment_names(generation: Path) -> list[str]:
    """Read the segment names of a generation; empty if its manifest cannot be read."""
    try:
        fields = json.loads(read_regular(generation / MANIFEST))["manifest"]
        return [str(segment["name"]) for segment in fields.get("segments", [])]
    except (OSError, *PARSE_ERRORS):
        return []


def _build_state(fields: dict[str, Any]) -> IndexState:
    segments = tuple(SegmentEntry(**entry) for entry in fields["segments"])
    for segment in segments:
        counts = (segment.deleted, segment.changed)
        valid_counts = is_count(segment.count, 1) and all(is_count(part) and part <= segment.count for part in counts)
        if not valid_counts or not GENERATION.fullmatch(segment.name) or not CHECKSUM.fullmatch(segment.xxh3):
            raise ValueError(f"segment {segment}, expected a generation and at most as many deleted rows as documents")
    if not segments:
        raise ValueError("no segments, expected at least one")
    if len({segment.name for segment in segments}) < len(segments):
        raise ValueError("a segment is listed twice, expected once")
    files = parse_file_entries(fields["files"])
    expected = {segment.tombstones: (segment.count + 7) // 8 for segment in segments if segment.deleted}
    overlays = [segment for segment in segments if segment.changed]
    prefixes = tuple(f"{segment.name}.{part}." for segment in overlays for part in ("changed", "attributes", "column"))
    sizes = {name: entry.size for name, entry in files.items() if not name.startswith(prefixes)}
    if sizes != expected or any(segment.changed_file not in files for segment in overlays):
        raise ValueError(
            f"files {files}, expected one file of deleted rows for each segment that has any, and of changed ones"
        )
    return IndexState(
        segments=segments, model=parse_model_reference(fields["model"]), files=files, drift=fields["drift"]
    )
