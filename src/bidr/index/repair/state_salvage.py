"""Find the newest usable state of a damaged index, also if CURRENT or manifests are damaged."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bidr.errors import BidrError, IndexFolderError
from bidr.index.builder.build import VECTORS_FILE
from bidr.index.engines.engine_files import CENTROIDS_FILE, CODEBOOKS_FILE, GRAPH_FILE
from bidr.index.live.wal import LOG
from bidr.index.repair.damaged_file import DamagedFile, read_small, repair_byte
from bidr.index.storage.live_state import IndexState, SegmentEntry, parse_state
from bidr.index.storage.manifest import (
    CURRENT,
    FORMAT,
    GENERATION,
    L2_METRIC,
    MANIFEST,
    METRIC,
    FileEntry,
    Manifest,
    ModelReference,
    hash_bytes,
    parse_fields,
    parse_manifest,
    read_current,
)
from bidr.index.vectors.row_layout import read_layout
from bidr.quantization.codebooks import Codebooks

SAMPLED_ROWS, NORM_TOLERANCE = 256, 0.01


@dataclass
class SalvagedState:
    """Segments of a damaged index.

    certain: whether all deletions are known; otherwise the newest document of an id counts.
    notes:   what was damaged and how it was handled.
    """

    name: str
    segments: tuple[SegmentEntry, ...]
    model: ModelReference | None
    live: bool
    files: dict[str, FileEntry] = field(default_factory=dict)
    certain: bool = True
    notes: list[str] = field(default_factory=list)


def find_state(folder: Path) -> SalvagedState:
    """Find the current state; if it is unknown, the newest that can be read or inferred."""
    try:
        names = sorted(entry.name for entry in folder.iterdir() if GENERATION.fullmatch(entry.name) and entry.is_dir())
    except OSError as error:
        raise IndexFolderError(f"{folder}: cannot be read ({error.strerror}); check the path") from error
    if not names:
        raise IndexFolderError(f"{folder}: no index generation in it; check the path")
    notes, digest = list[str](), None
    try:
        name, digest = read_current(folder)
    except IndexFolderError:
        name = ""
    if name not in names:
        states = [entry for entry in names if _is_state(folder / entry)]
        name, digest = (states or names)[-1], None
        notes.append(f"{CURRENT} cannot be used: the newest state, {name}, is repaired")
    state = _read_state(folder, name, digest, names, notes)
    state.notes[:0] = notes
    return state


def read_segment_manifest(folder: Path, segment: SegmentEntry, notes: list[str]) -> tuple[Manifest, bool] | None:
    """Read the manifest of a segment, and whether it has checksums; None if it cannot be inferred either."""
    path = folder / segment.name / MANIFEST
    content = _read_repaired(path, segment.xxh3, notes)
    if content is not None:
        try:
            return parse_manifest(content, path), True
        except IndexFolderError:
            pass
    try:
        manifest = _infer_manifest(folder / segment.name)
    except (BidrError, OSError, ValueError) as error:
        notes.append(f"{segment.name}: its manifest is lost, and cannot be inferred from its other files ({error})")
        return None
    notes.append(f"{segment.name}/{MANIFEST} is lost: files without block checksums could not be verified")
    return manifest, False


def _read_state(folder: Path, name: str, digest: str | None, names: list[str], notes: list[str]) -> SalvagedState:
    path = folder / name / MANIFEST
    content = _read_repaired(path, digest, notes)
    fields: dict[str, Any] | None = None
    if content is not None:
        try:
            fields = parse_fields(content, path)
            if fields["format"] != FORMAT:
                return _as_salvaged(name, parse_state(fields, path))
            manifest = parse_manifest(content, path)
            segment = SegmentEntry(name, hash_bytes(content), manifest.count)
            return SalvagedState(name, (segment,), manifest.model, live=False)
        except IndexFolderError:
            pass
    if not _is_state(folder / name):
        return SalvagedState(name, (SegmentEntry(name, digest or "", 0),), None, live=False)
    segment_names = [entry for entry in names if entry < name and not _is_state(folder / entry)]
    if not segment_names:
        raise IndexFolderError(
            f"{folder}: its newest state {name} cannot be read, and no segment is left; nothing to save"
        )
    notes.append(f"{name}/{MANIFEST} is lost: the state is inferred from the segments {', '.join(segment_names)}")
    segments = []
    model: ModelReference | None = None
    for segment_name in segment_names:
        content = read_small(folder / segment_name / MANIFEST)
        deleted = int((folder / name / f"{segment_name}.deleted").exists())
        try:
            manifest = parse_manifest(content, folder / segment_name / MANIFEST)
            model = model or manifest.model
            segments.append(SegmentEntry(segment_name, hash_bytes(content), manifest.count, deleted))
        except IndexFolderError:
            segments.append(SegmentEntry(segment_name, "", 0, deleted))
    return SalvagedState(name, tuple(segments), model, live=True, certain=False)


def _as_salvaged(name: str, state: IndexState) -> SalvagedState:
    return SalvagedState(name, state.segments, state.model, live=True, files=state.files)


def _read_repaired(path: Path, digest: str | None, notes: list[str]) -> bytes | None:
    """Read a manifest, with a single damaged byte restored if its checksum `digest` is known; None if it is lost."""
    content = read_small(path)
    if not digest:
        try:
            parse_fields(content, path)
        except IndexFolderError:
            return None
        return content
    repaired = repair_byte(content, digest)
    note = f"{path.parent.name}/{MANIFEST}: one byte was damaged, and is restored by the checksum"
    if repaired is not None and repaired != content and note not in notes:
        notes.append(note)
    return repaired


def _is_state(generation: Path) -> bool:
    """Whether a generation is a state, not a segment, by its files."""
    return (generation / LOG).exists() or not (generation / VECTORS_FILE).exists()


def _infer_manifest(generation: Path) -> Manifest:
    """Infer the manifest of a segment from its other files."""
    kind, count, dim, _ = read_layout(generation / VECTORS_FILE)
    codebooks = Codebooks.load(generation / CODEBOOKS_FILE)
    engine = "scan"
    if (generation / GRAPH_FILE).exists():
        engine = "hnsw"
    elif (generation / CENTROIDS_FILE).exists():
        engine = "lists"
    files = {path.name: FileEntry(path.stat().st_size, "") for path in generation.iterdir() if path.name != MANIFEST}
    return Manifest(
        count=count,
        dim=dim,
        code_dim=codebooks.dim,
        books=codebooks.books,
        words=codebooks.words,
        engine=engine,
        ef_construction=200,
        model=None,
        files=files,
        unit=not codebooks.are_of_distances and _are_normalized(generation / VECTORS_FILE, kind, count, dim),
        metric=L2_METRIC if codebooks.are_of_distances else METRIC,
        auto=engine != "hnsw",
    )


def _are_normalized(path: Path, kind: str, count: int, dim: int) -> bool:
    """Whether most of the first vectors are L2-normalized."""
    start = read_layout(path)[3]
    with DamagedFile(path, None) as file:
        if kind == "fp16":
            rows = file.read_array("<f2", min(count, SAMPLED_ROWS) * dim, start).reshape(-1, dim).astype(np.float32)
        else:
            stored = file.read_array([("vector", "i1", (dim,)), ("scale", "<f4")], min(count, SAMPLED_ROWS), start)
            rows = stored["vector"] * stored["scale"][:, None]
    return bool((np.abs(np.linalg.norm(rows, axis=1) - 1) < NORM_TOLERANCE).mean() > 0.9)


def read_json_object(content: bytes) -> dict[str, Any]:
    """Parse a JSON object; empty if it is invalid."""
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}
