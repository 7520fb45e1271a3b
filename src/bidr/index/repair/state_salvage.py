"""Which state of a damaged index folder is saved, though CURRENT or manifests are damaged or gone."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bidr.errors import BidrError, IndexFolderError
from bidr.index.builder.build import VECTORS_FILE
from bidr.index.engines.engine_files import CENTROIDS_FILE, CODEBOOKS_FILE, GRAPH_FILE
from bidr.index.live.wal import LOG
from bidr.index.repair.damaged_file import DamagedFile, heal_byte, read_small
from bidr.index.storage.live_state import IndexState, SegmentEntry, parse_state
from bidr.index.storage.manifest import (
    CURRENT,
    FORMAT,
    GENERATION,
    MANIFEST,
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

SAMPLED, NEAR_ONE = 256, 0.01


@dataclass
class SalvagedState:
    """What an index consists of, as far as that can be told.

    certain: whether every document that was deleted or replaced is known to be; else the newest of an id counts.
    notes:   what was damaged and what was done about it.
    """

    name: str
    segments: tuple[SegmentEntry, ...]
    model: ModelReference | None
    live: bool
    files: dict[str, FileEntry] = field(default_factory=dict)
    certain: bool = True
    notes: list[str] = field(default_factory=list)


def find_state(folder: Path) -> SalvagedState:
    """The state in force; where that cannot be told, the newest that can be read or put together."""
    try:
        names = sorted(entry.name for entry in folder.iterdir() if GENERATION.fullmatch(entry.name) and entry.is_dir())
    except OSError as error:
        raise IndexFolderError(f"{folder}: cannot be read ({error.strerror}); check the path") from error
    if not names:
        raise IndexFolderError(f"{folder}: no generation of an index in it; check the path")
    notes, digest = list[str](), None
    try:
        name, digest = read_current(folder)
    except IndexFolderError:
        name = ""
    if name not in names:
        states = [entry for entry in names if _is_state(folder / entry)]
        name, digest = (states or names)[-1], None
        notes.append(f"{CURRENT} cannot be used: the newest state, {name}, is taken")
    state = _read_state(folder, name, digest, names, notes)
    state.notes[:0] = notes
    return state


def read_segment_manifest(folder: Path, segment: SegmentEntry, notes: list[str]) -> tuple[Manifest, bool] | None:
    """The manifest of a segment, and whether its checksums are known; None: nothing can be told of it."""
    path = folder / segment.name / MANIFEST
    content = _healed(path, segment.xxh3, notes)
    if content is not None:
        try:
            return parse_manifest(content, path), True
        except IndexFolderError:
            pass
    try:
        manifest = _infer_manifest(folder / segment.name)
    except (BidrError, OSError, ValueError) as error:
        notes.append(f"{segment.name}: neither its manifest nor its other files say what it is ({error})")
        return None
    notes.append(f"{segment.name}/{MANIFEST} is lost: what only its checksums prove could not be compared")
    return manifest, False


def _read_state(folder: Path, name: str, digest: str | None, names: list[str], notes: list[str]) -> SalvagedState:
    path = folder / name / MANIFEST
    content = _healed(path, digest, notes)
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
    parts = [entry for entry in names if entry < name and not _is_state(folder / entry)]
    if not parts:
        raise IndexFolderError(
            f"{folder}: its newest state {name} cannot be read, and no segment is left; nothing to save"
        )
    notes.append(f"{name}/{MANIFEST} is lost: the state is put together from the segments {', '.join(parts)}")
    segments = []
    model: ModelReference | None = None
    for part in parts:
        known = read_small(folder / part / MANIFEST)
        try:
            manifest = parse_manifest(known, folder / part / MANIFEST)
            model = model or manifest.model
            deleted = int((folder / name / f"{part}.deleted").exists())
            segments.append(SegmentEntry(part, hash_bytes(known), manifest.count, deleted))
        except IndexFolderError:
            segments.append(SegmentEntry(part, "", 0, int((folder / name / f"{part}.deleted").exists())))
    return SalvagedState(name, tuple(segments), model, live=True, certain=False)


def _as_salvaged(name: str, state: IndexState) -> SalvagedState:
    return SalvagedState(name, state.segments, state.model, live=True, files=state.files)


def _healed(path: Path, digest: str | None, notes: list[str]) -> bytes | None:
    """A manifest as it was written; None where it cannot be had. digest: what it must give, where that is known."""
    content = read_small(path)
    if not digest:
        try:
            parse_fields(content, path)
        except IndexFolderError:
            return None
        return content
    healed = heal_byte(content, digest)
    note = f"{path.parent.name}/{MANIFEST}: one byte is damaged; its checksum tells what it was"
    if healed is not None and healed != content and note not in notes:
        notes.append(note)
    return healed


def _is_state(generation: Path) -> bool:
    """Whether a generation is a state, by its files."""
    return (generation / LOG).exists() or not (generation / VECTORS_FILE).exists()


def _infer_manifest(generation: Path) -> Manifest:
    """What a segment is, by its files alone."""
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
        unit=_are_unit(generation / VECTORS_FILE, kind, count, dim),
        auto=engine != "hnsw",
    )


def _are_unit(path: Path, kind: str, count: int, dim: int) -> bool:
    """Whether some vectors have length 1."""
    start = read_layout(path)[3]
    with DamagedFile(path, None) as file:
        if kind == "fp16":
            rows = file.read_array("<f2", min(count, SAMPLED) * dim, start).reshape(-1, dim).astype(np.float32)
        else:
            stored = file.read_array([("vector", "i1", (dim,)), ("scale", "<f4")], min(count, SAMPLED), start)
            rows = stored["vector"] * stored["scale"][:, None]
    return bool((np.abs(np.linalg.norm(rows, axis=1) - 1) < NEAR_ONE).mean() > 0.9)


def read_json_table(content: bytes) -> dict[str, Any]:
    """A table of JSON, or none."""
    try:
        table = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return table if isinstance(table, dict) else {}
