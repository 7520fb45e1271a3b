"""The state of an index that was added to: which segments it is made of, which of their documents are deleted.

INDEX/000009/manifest.json     segments, each with the checksum of its own manifest
INDEX/000009/000003.deleted    the deleted rows of segment 000003, one bit each
INDEX/000009/log               what was added and deleted since (`live/log.py`); it alone grows
INDEX/000009/acknowledged      how much of the log is durable
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
    UNREADABLE,
    FileEntry,
    ModelStamp,
    check_sizes,
    checked_fields,
    entries_of,
    is_count,
    parse,
    read_manifest,
    render_fields,
    settled,
    stamp_of,
)
from bidr.utils.files import read_regular


@dataclass(frozen=True)
class Segment:
    """One immutable part: its folder, the checksum of its manifest, its documents and how many of them are deleted."""

    name: str
    xxh3: str
    count: int
    deleted: int = 0

    @property
    def tombstones(self) -> str:
        """The file, in the folder of the state, that says which."""
        return f"{self.name}.deleted"


@dataclass(frozen=True, kw_only=True)
class State:
    """What an index consists of. `live`: it has a log; an index as it was built has none."""

    segments: tuple[Segment, ...]
    model: ModelStamp | None
    files: dict[str, FileEntry] = field(default_factory=dict)
    drift: dict[str, float] | None = None
    live: bool = True


def render_state(state: State) -> bytes:
    """The one way a state is written, so that any other byte shows."""
    return render_fields(
        {
            "format": LIVE_FORMAT,
            "segments": [asdict(segment) for segment in state.segments],
            "model": state.model._asdict() if state.model else None,
            "files": {name: entry.as_fields() for name, entry in sorted(state.files.items())},
            "drift": state.drift,
        }
    )


def read_state(folder: Path, name: str, digest: str) -> State:
    """The state in a generation; one segment, where it is an index as it was built."""
    path = folder / name / MANIFEST
    content = read_manifest(folder, name, digest)
    fields = checked_fields(content, path)
    if fields["format"] == FORMAT:
        manifest = parse(content, path)
        return State(segments=(Segment(name, digest, manifest.count),), model=manifest.model, live=False)
    state = parse_state(fields, path)
    check_sizes(folder / name, state.files)
    return state


def parse_state(fields: dict[str, Any], path: Path) -> State:
    """A state from what its manifest says."""
    try:
        return _from_fields(fields)
    except UNREADABLE as error:
        raise IndexFolderError(f"{path}: not a manifest that bidr wrote ({error}); {REBUILD}") from error


def state_in_force(folder: Path) -> tuple[str, State]:
    """The name and content of the state that CURRENT names."""
    return settled(folder, lambda name, digest: (name, read_state(folder, name, digest)))


def model_of(folder: Path) -> ModelStamp | None:
    """The model that made an index."""
    return state_in_force(folder)[1].model


def named_by(generation: Path) -> list[str]:
    """The segments that a generation names; none where it cannot be read."""
    try:
        fields = json.loads(read_regular(generation / MANIFEST))["manifest"]
        return [str(segment["name"]) for segment in fields.get("segments", [])]
    except (OSError, *UNREADABLE):
        return []


def _from_fields(fields: dict[str, Any]) -> State:
    segments = tuple(Segment(**entry) for entry in fields["segments"])
    for segment in segments:
        counts = is_count(segment.count, 1) and is_count(segment.deleted) and segment.deleted <= segment.count
        if not counts or not GENERATION.fullmatch(segment.name) or not CHECKSUM.fullmatch(segment.xxh3):
            raise ValueError(f"segment {segment}, expected a generation and no more deleted than it has documents")
    if not segments:
        raise ValueError("no segments, expected at least one")
    if len({segment.name for segment in segments}) < len(segments):
        raise ValueError("a segment named twice, expected each once")
    files = entries_of(fields["files"])
    expected = {segment.tombstones: (segment.count + 7) // 8 for segment in segments if segment.deleted}
    if {name: entry.size for name, entry in files.items()} != expected:
        raise ValueError(f"files {files}, expected deleted rows of the segments that have any")
    return State(segments=segments, model=stamp_of(fields["model"]), files=files, drift=fields["drift"])
