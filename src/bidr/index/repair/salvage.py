"""Copy the undamaged documents of a damaged index to a new index; the damaged one is only read.

Primary data are copied where they are undamaged: vectors, ids, texts, attributes. Derived data are rebuilt: order,
lists, graph, block centroids, postings, attribute columns and the id index.
"""

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bidr.data.types import Document
from bidr.errors import ConfigError, IndexFolderError
from bidr.index.builder.build import build_index
from bidr.index.builder.clustering_vectors import MIN_AGREEMENT, SAMPLE_ROWS
from bidr.index.documents.id_index import hash_string
from bidr.index.engines.engine_files import CODEBOOKS_FILE, CODES_FILE, LEARNED_FILE
from bidr.index.live.attribute_overlay import AttributeOverlay
from bidr.index.live.compaction import MergedArray
from bidr.index.live.inspection import verify_live
from bidr.index.live.live_reader import LiveIndex
from bidr.index.live.memtable import Memtable
from bidr.index.live.segment import unpack_bits
from bidr.index.live.wal_record import WalRecord
from bidr.index.repair.damaged_file import Mask, read_small, repair_byte
from bidr.index.repair.segment_salvage import (
    ID,
    PLACE,
    REQUIRED,
    TEXT,
    VECTOR,
    SalvagedSegment,
    list_lost_parts,
    split_blocks,
)
from bidr.index.repair.state_salvage import find_state, read_segment_manifest
from bidr.index.repair.wal_salvage import PartialRecord, salvage_log
from bidr.index.storage.commit import LOCK_FILE
from bidr.index.storage.live_state import SegmentEntry
from bidr.index.storage.manifest import ModelReference
from bidr.quantization.codebooks import Codebooks
from bidr.quantization.learned_ivf import LearnedIvf
from bidr.quantization.pq_training import FIT_ROWS, fit_pq, make_too_few_error
from bidr.utils.array_types import Codes, Floats, Rows
from bidr.utils.files import NewFile, make_folder, remove, storage_errors, sync_folder
from bidr.utils.progress import show_progress

STAGED_CODES, READD_SUFFIX = ".codes", ".again.jsonl"
DOCUMENTS_PER_BATCH = 1_024
Positions = npt.NDArray[np.int32]


class RepairModel(NamedTuple):
    """Parts of a model that a repair uses.

    encode:     computes codes of documents with the given vectors.
    from_texts: whether it encodes texts, not vectors.
    """

    reference: ModelReference
    codebooks: Codebooks
    lists: LearnedIvf | None
    encode: Callable[[Sequence[Document], Floats], Codes]
    from_texts: bool


ModelOpener = Callable[[ModelReference | None], RepairModel | None]
"""Opens the model of an index; returns None if it is not found."""


@dataclass
class RepairReport:
    """Result of a repair.

    saved:      documents in the new index; `incomplete` of them without a text or attributes that are lost.
    lost:       documents that are not in it; of `unnamed` of them the id is lost as well.
    partly_whole: lost documents that `keep_incomplete` would save.
    reasons:    documents by lost part: "vector", "order" (which vector is whose), "id", "text", "attributes".
    superseded: older versions of documents, which reappeared because a list of deletions is damaged, and are left out.
    damaged:    damaged files, and how much of each.
    verified:   whether every file with primary data could be compared with a checksum.
    certain:    whether all deletions are known and no record of the log is missing.
    lost_file:  list of the lost documents, if there are any.
    again_file: documents whose id and text are undamaged, as input of `bidr add`, and their number (`again`).
    """

    index: str
    out: str
    generation: str
    saved: int = 0
    incomplete: int = 0
    lost: int = 0
    unnamed: int = 0
    deleted: int = 0
    partly_whole: int = 0
    superseded: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    verified: bool = True
    certain: bool = True
    lost_file: str | None = None
    again_file: str | None = None
    again: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether every document is saved completely, and all of it was verified."""
        return self.verified and self.certain and not self.lost and not self.incomplete

    def as_fields(self) -> dict[str, Any]:
        return {**asdict(self), "complete": self.is_complete}


def salvage_index(
    folder: Path,
    out: Path,
    lost_file: Path,
    open_model: ModelOpener,
    *,
    keep_incomplete: bool = False,
    refit: bool = False,
) -> RepairReport:
    """Write the undamaged documents of an index to a new one; `out` appears complete or not at all.

    Args:
        folder: The damaged index.
        out: Folder of the new index.
        lost_file: List of the other documents, a JSON object per line; written if there are any.
        open_model: Opens the model of the index.
        keep_incomplete: Also save documents whose text or attributes are lost, without them.
        refit: If codebooks and model are lost, train plain codebooks on the vectors.
    """
    _check_paths(folder, out, lost_file)
    staging = out.with_name(f".{out.name}.{os.getpid()}.new")
    with _hold_shared_lock(folder), ExitStack() as stack, storage_errors(out):
        try:
            remove(staging)
            make_folder(staging)
            repair = _Repair(folder, staging, open_model, stack, keep_incomplete=keep_incomplete, refit=refit)
            repair.report.out = str(out)
            if not repair.report.saved:
                raise repair.make_failure(lost_file)
            repair.write_index()
            remove(staging / STAGED_CODES)
            with LiveIndex.open(staging) as new_index:
                verify_live(new_index.latest())
            with _remove_on_error(lost_file, _get_readd_path(lost_file)):
                repair.write_lists(lost_file)
                os.rename(staging, out)
            sync_folder(out.parent)
        except BaseException:
            remove(staging)
            raise
    return repair.report


def _get_readd_path(lost_file: Path) -> Path:
    return lost_file.with_name(lost_file.name.removesuffix(".jsonl").removesuffix(".lost") + READD_SUFFIX)


@contextmanager
def _remove_on_error(*paths: Path) -> Iterator[None]:
    """Remove new files if the block fails, as they would block another attempt."""
    try:
        yield
    except BaseException:
        for path in paths:
            remove(path)
        raise


def _check_paths(folder: Path, out: Path, lost_file: Path) -> None:
    if not folder.is_dir():
        raise IndexFolderError(f"{folder}: no such folder; give an index folder")
    inside = folder.resolve()
    advice = "another file with --lost"
    for path, other in ((out, "a folder that does not"), (lost_file, advice), (_get_readd_path(lost_file), advice)):
        if path.resolve() == inside or inside in path.resolve().parents:
            raise ConfigError(f"{path} is in {folder}, which a repair only reads; choose a place outside of it")
        if path.exists() or path.is_symlink():
            raise ConfigError(f"{path} exists already; give {other}")
    if out.resolve() in lost_file.resolve().parents:
        raise ConfigError(f"{lost_file} is in the new index {out}; choose a place outside of it")


@contextmanager
def _hold_shared_lock(folder: Path) -> Iterator[None]:
    """Exclude writers by a shared lock on their lock file, if there is one."""
    try:
        handle = os.open(folder / LOCK_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        yield
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise IndexFolderError(f"{folder}: a writer has this index; close it, and repair it then") from error
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(handle)


class _Selection(NamedTuple):
    """Masks over the rows of a segment: those that are deleted, those that are saved."""

    segment: SalvagedSegment
    deleted: Mask
    saved: Mask

    @property
    def is_lost(self) -> Mask:
        is_lost: Mask = (self.segment.lost != 0) & ~self.deleted
        return is_lost


class _Repair:
    """One repair: reads the damaged index, selects documents, writes the new index."""

    def __init__(
        self,
        folder: Path,
        staging: Path,
        open_model: ModelOpener,
        stack: ExitStack,
        *,
        keep_incomplete: bool,
        refit: bool,
    ) -> None:
        self.folder, self.staging, self._open_model = folder, staging, open_model
        self.keep_incomplete, self.refit = keep_incomplete, refit
        self.state = find_state(folder)
        self.report = RepairReport(str(folder), "", self.state.name, notes=self.state.notes)
        self.segments = self._open_segments(stack)
        if not self.segments:
            raise IndexFolderError(
                f"{folder}: nothing of it can be saved: {'; '.join(self.report.notes) or 'no segment'}"
            )
        self.manifest = next(iter(self.segments.values())).manifest
        self.uncertain_ids = set[str]()
        """Ids of documents that damaged log records added, replaced or deleted."""
        self.memtable, deleted = self._read_log()
        self.selections = [self._select(segment, deleted[name]) for name, segment in self.segments.items()]
        self.memtable_rows = np.flatnonzero(self.memtable.alive)
        if not self.state.certain:
            self._drop_superseded()
        self.positions = [selection.segment.get_positions(selection.saved) for selection in self.selections]
        self.report.saved = sum(map(len, self.positions)) + len(self.memtable_rows)
        self._count_losses()

    def _open_segments(self, stack: ExitStack) -> dict[str, SalvagedSegment]:
        segments = {}
        for entry in self.state.segments:
            manifest = read_segment_manifest(self.folder, entry, self.report.notes)
            if manifest is None:
                self._add_lost_segment(entry)
                continue
            self.report.verified &= manifest[1]
            try:
                segment = SalvagedSegment(self.folder, entry.name, manifest[0], has_checksums=manifest[1])
            except IndexFolderError as error:
                self.report.notes.append(str(error))
                self._add_lost_segment(entry)
                continue
            stack.callback(segment.close)
            segment.check_derived_files()
            self.report.damaged |= {f"{entry.name}/{name}": extent for name, extent in segment.damaged.items()}
            self._read_overlay(entry, segment)
            segments[entry.name] = segment
        return segments

    def _read_overlay(self, entry: SegmentEntry, segment: SalvagedSegment) -> None:
        """Read the changed attributes of a segment."""
        path = self.folder / self.state.name / entry.changed_file
        if not entry.changed:
            if path.exists() and not self.state.files:  # the state is inferred
                self.report.notes.append(f"{path.parent.name}/{path.name}: changes of attributes are lost")
            return
        try:
            overlay = AttributeOverlay(path.parent, self.state, entry)
            segment.change_attributes(
                {row: overlay.columns.get(place) for place, row in enumerate(overlay.rows.tolist())}
            )
        except (IndexFolderError, OSError) as error:
            self.report.damaged[f"{path.parent.name}/{path.name}"] = "attributes that were changed"
            self.report.certain = False
            self.report.notes.append(
                f"changes of the attributes of {entry.changed:,} documents of {entry.name} are lost, which have their "
                f"earlier attributes ({error})"
            )

    def _read_log(self) -> tuple[Memtable, dict[str, Mask]]:
        """Read the memtable, and the deleted rows of each segment."""
        deleted = {entry.name: self._read_deleted(entry) for entry in self.state.segments}
        memtable = Memtable.empty(self.manifest.books, self.manifest.stored_dim)
        if not self.state.live:
            return memtable, deleted
        log = salvage_log(self.folder / self.state.name)
        self.report.damaged |= {f"{self.state.name}/{name}": extent for name, extent in log.damaged.items()}
        if log.gaps:
            self.state.certain = False
            self.report.certain = False
            self.report.notes.append(
                f"log: the changes of {log.gaps} damaged record{'s' if log.gaps > 1 else ''} are lost; where the ids "
                "cannot be read either, documents that were deleted or replaced may have come back"
            )
        applied = 0
        for partial in log.partial_records:
            memtable = self._apply(memtable, deleted, log.records[applied : partial.preceding])
            memtable, applied = self._apply_partial(memtable, deleted, partial), partial.preceding
        memtable = self._apply(memtable, deleted, log.records[applied:])
        self.uncertain_ids -= memtable.rows.keys()
        return memtable, deleted

    def _apply(self, memtable: Memtable, deleted: dict[str, Mask], records: list[WalRecord]) -> Memtable:
        for record in records:
            for name, rows in record.deleted_rows.items():
                if name in deleted:
                    deleted[name][_get_valid_rows(rows, deleted[name])] = True
            for name, changes in record.changed_rows.items():
                if name in self.segments:
                    self.segments[name].change_attributes(changes)
        return memtable.apply(records) if records else memtable

    def _apply_partial(self, memtable: Memtable, deleted: dict[str, Mask], record: PartialRecord) -> Memtable:
        """Delete what a damaged record replaced or deleted, and count it as lost: old versions must not reappear."""
        self.uncertain_ids.update(record.ids, record.removed_ids)
        for name, rows in record.deleted_rows.items():
            if name in deleted:
                valid_rows = _get_valid_rows(rows, deleted[name])
                self.uncertain_ids.update(self._read_ids(name, valid_rows[~deleted[name][valid_rows]]))
                deleted[name][valid_rows] = True
        alive, rows_by_id = memtable.alive.copy(), dict(memtable.rows)
        alive[[rows_by_id.pop(name) for name in record.removed_ids if name in rows_by_id]] = False
        return memtable._replace(alive=alive, rows=rows_by_id)

    def _read_ids(self, name: str, rows: Rows) -> list[str]:
        segment = self.segments.get(name)
        if segment is None:
            return []
        return [segment.read_id(row) or "" for row in rows.tolist() if not segment.lost[row] & ID]

    def _read_deleted(self, entry: SegmentEntry) -> Mask:
        segment = self.segments.get(entry.name)
        count = segment.count if segment is not None else entry.count
        if not entry.deleted:
            return np.zeros(count, dtype=bool)
        name = f"{self.state.name}/{entry.tombstones}"
        content, file_entry = read_small(self.folder / name), self.state.files.get(entry.tombstones)
        bits = repair_byte(content, file_entry.xxh3) if file_entry is not None else None
        if bits is None:
            self.state.certain = False
            bits = content[: (count + 7) // 8].ljust((count + 7) // 8, b"\0")
            if file_entry is not None:
                self.report.damaged[name], self.report.certain = "partly", False
                self.report.notes.append(f"{name}: deleted documents of {entry.name} may have come back")
        return unpack_bits(np.frombuffer(bits, dtype=np.uint8), count).copy()

    def _select(self, segment: SalvagedSegment, deleted: Mask) -> _Selection:
        saved = ~deleted & ((segment.lost & REQUIRED) == 0)
        if not self.keep_incomplete:
            saved &= segment.lost == 0
        self.report.deleted += int(deleted.sum())
        return _Selection(segment, deleted, saved)

    def _drop_superseded(self) -> None:
        """Keep the newest of several documents with the same id, as it is uncertain which were replaced."""
        rows = [np.flatnonzero(selection.saved) for selection in self.selections]
        ids = [
            [selection.segment.read_id(row) or "" for row in saved_rows.tolist()]
            for selection, saved_rows in zip(self.selections, rows, strict=True)
        ]
        ids.append([self.memtable.documents[row].id for row in self.memtable_rows])
        hashes = np.array([hash_string(name) for names in ids for name in names], dtype=np.uint64)[::-1]
        is_newest = np.zeros(len(hashes), dtype=bool)
        is_newest[len(hashes) - 1 - np.unique(hashes, return_index=True)[1]] = True
        start = 0
        for selection, saved_rows in zip(self.selections, rows, strict=True):
            superseded_rows = saved_rows[~is_newest[start : start + len(saved_rows)]]
            selection.saved[superseded_rows] = False
            selection.deleted[superseded_rows] = True
            start += len(saved_rows)
        self.report.superseded = int((~is_newest).sum())

    def write_index(self) -> None:
        """Write the new index."""
        codebooks, are_new = self._find_codebooks()
        codes = self._stage_codes(codebooks, encode_all=are_new)
        has_text = self.memtable.has_text or any(selection.segment.has_text for selection in self.selections)
        manifest, segment = self.manifest, self.selections[0].segment
        truncation: dict[str, Any] = {}
        if manifest.dims is not None:
            truncation = {"full_dim": manifest.dim, "code_error": manifest.code_error}
        build_index(
            self.staging,
            codebooks=codebooks,
            codes=codes,
            vectors=_SavedVectors(self),  # type: ignore[arg-type]
            **{"documents" if has_text else "ids": self._read_documents()},  # type: ignore[arg-type]
            model=None if are_new else self._get_model_reference(),
            encoder=manifest.encoder,
            engine="auto" if manifest.auto else manifest.engine,
            ef_construction=manifest.ef_construction,
            stored=segment.kind,
            unit=manifest.unit,
            metric=manifest.metric,
            lexical=segment.titles if has_text else None,
            lists=None if are_new else self._find_lists(),
            **truncation,
        )

    def make_failure(self, lost_file: Path) -> IndexFolderError:
        """Return the error for no saved document; write those that can be built again to a file."""
        readd_path = _get_readd_path(lost_file)
        with _remove_on_error(readd_path):
            self._write_readd_file(readd_path)
        if self.report.again:
            return IndexFolderError(
                f"{self.folder}: none of its documents is undamaged, so there is no new index; id and text of "
                f"{self.report.again:,} are in {readd_path}: build an index of these (bidr build --data FOLDER, as its "
                "corpus.jsonl)"
            )
        remove(readd_path)
        return IndexFolderError(f"{self.folder}: none of its documents is undamaged; nothing can be saved")

    def write_lists(self, lost_file: Path) -> None:
        """Write the list of lost and incomplete documents, and those of them that can be added again."""
        if self.report.lost or self.report.incomplete:
            self.report.lost_file = str(lost_file)
            _write_json_lines(lost_file, self._describe_lost())
            readd_path = _get_readd_path(lost_file)
            self._write_readd_file(readd_path)
            if self.report.again:
                self.report.again_file = str(readd_path)
            else:
                remove(readd_path)

    def _get_model_reference(self) -> ModelReference | None:
        """Return the model of the damaged index; if its manifest is lost, the model that the caller gave."""
        if self.state.model is None and not self.selections[0].segment.has_checksums:
            model = self._open_model(None)
            return None if model is None else model.reference
        return self.state.model

    def _count_losses(self) -> None:
        if self.uncertain_ids:
            self._add_lost(len(self.uncertain_ids), "log")
        for selection in self.selections:
            lost, saved = selection.segment.lost, selection.saved
            unsaved = lost[selection.is_lost & ~saved]
            self.report.lost += len(unsaved)
            self.report.unnamed += int(((unsaved & ID) != 0).sum())
            self.report.partly_whole += int(((unsaved & REQUIRED) == 0).sum())
            self.report.incomplete += int((selection.is_lost & saved).sum())
            for bits, count in zip(*np.unique(lost[selection.is_lost], return_counts=True), strict=True):
                for name in list_lost_parts(int(bits)):
                    self.report.reasons[name] = self.report.reasons.get(name, 0) + int(count)

    def _add_lost(self, count: int, reason: str) -> None:
        self.report.lost += count
        self.report.reasons[reason] = self.report.reasons.get(reason, 0) + count

    def _add_lost_segment(self, entry: SegmentEntry) -> None:
        self._add_lost(entry.count - entry.deleted, "segment")
        self.report.unnamed += entry.count - entry.deleted

    def _describe_lost(self) -> Iterator[dict[str, Any]]:
        """Yield by lost document: id (None if lost), lost parts, segment and row, whether it was saved."""
        for selection in self.selections:
            segment = selection.segment
            for row in np.flatnonzero(selection.is_lost).tolist():
                bits = int(segment.lost[row])
                fields: dict[str, Any] = {
                    "id": None if bits & ID else segment.read_id(row),
                    "lost": list_lost_parts(bits),
                }
                if bits & ID and segment.has_text and not bits & TEXT:
                    fields["title"] = segment.read_document(row).title
                yield fields | {"segment": segment.name, "row": row, "saved": bool(selection.saved[row])}
        for name in sorted(self.uncertain_ids):
            yield {"id": name, "lost": ["log"], "saved": False}
        for entry in self.state.segments:
            if entry.name not in self.segments:
                count = entry.count - entry.deleted
                yield {"id": None, "lost": ["segment"], "segment": entry.name, "documents": count, "saved": False}

    def _write_readd_file(self, path: Path) -> None:
        """Write documents that lost only their vector or its position, in the format of a BEIR corpus."""
        self.report.again = _write_json_lines(path, self._describe_readdable())

    def _describe_readdable(self) -> Iterator[dict[str, Any]]:
        for selection in self.selections:
            segment = selection.segment
            is_readdable = selection.is_lost & ((segment.lost & ~np.uint8(VECTOR | PLACE)) == 0)
            for row in np.flatnonzero(is_readdable).tolist() if segment.has_text else ():
                document_id, title, text, attributes = segment.read_document(row)
                yield {"_id": document_id, "title": title, "text": text, "metadata": attributes or {}}

    def _find_codebooks(self) -> tuple[Codebooks, bool]:
        """Return the codebooks, and whether they are new, so that all codes must be computed again."""
        for selection in self.selections:
            codebooks = selection.segment.load_codebooks()
            if codebooks is not None:
                return codebooks, False
        model = self._open_model(self.state.model)
        if model is not None:
            self.report.notes.append(f"{CODEBOOKS_FILE} is lost, and copied from the model in {model.reference.folder}")
            return model.codebooks, False
        manifest, reference = self.manifest, self.state.model
        if reference is not None and not self.refit:
            raise IndexFolderError(
                f"{self.folder}: {CODEBOOKS_FILE} is damaged, and codes cannot be decoded without it; it is that of "
                f"the model {reference.fingerprint}, which is no longer in {reference.folder}: give its folder "
                "(--model), or train plain codebooks on the vectors (--refit), for search by vectors only"
            )
        if manifest.dims is not None:
            raise IndexFolderError(
                f"{self.folder}: {CODEBOOKS_FILE} is damaged, and codes of full vectors cannot be computed from the "
                f"first {manifest.dims} dimensions; export the vectors by hand ({manifest.stored_dim} numbers a row)"
            )
        self.report.notes.append(
            f"{CODEBOOKS_FILE} is lost: new codebooks were trained on the vectors, and all codes computed again"
        )
        vectors = _SavedVectors(self)
        if len(vectors) < manifest.words:
            raise make_too_few_error(len(vectors), manifest.words)
        rows = np.random.default_rng(0).choice(len(vectors), min(FIT_ROWS, len(vectors)), replace=False)
        return fit_pq(vectors[np.sort(rows)], manifest.books, manifest.words, seed=0), True

    def _find_lists(self) -> LearnedIvf | None:
        """Return the learned IVF lists; None if there are none, or they are lost and k-means replaces them."""
        segment = self.selections[0].segment
        if LEARNED_FILE not in segment.manifest.files:
            return None
        lists: LearnedIvf | None = segment.load_learned_lists()
        if lists is None:
            model = self._open_model(self.state.model)
            lists = model.lists if model is not None else None
            source = "copied from the model" if lists is not None else "replaced by k-means"
            self.report.notes.append(f"the learned lists are lost, and {source}")
        return lists

    def _stage_codes(self, codebooks: Codebooks, *, encode_all: bool) -> Codes:
        """Write the codes of all saved documents to a temporary file."""
        path = self.staging / STAGED_CODES
        with (
            storage_errors(path),
            NewFile(path) as out,
            show_progress("codes", self.report.saved, "documents") as advance,
        ):
            for selection, positions in zip(self.selections, self.positions, strict=True):
                encode = self._make_encoder(selection.segment, positions, codebooks, encode_all)
                for block in split_blocks(positions):
                    out.write(np.ascontiguousarray(encode(block)).tobytes())
                    advance(len(block))
            memtable_codes = self.memtable.codes[self.memtable_rows]
            if encode_all and len(memtable_codes):
                memtable_codes = codebooks.encode(self.memtable.vectors[self.memtable_rows].astype(np.float32))
            out.write(np.ascontiguousarray(memtable_codes).tobytes())
        return np.memmap(path, dtype=np.uint8, mode="r", shape=(self.report.saved, codebooks.books))

    def _make_encoder(
        self, segment: SalvagedSegment, positions: Positions, codebooks: Codebooks, encode_all: bool
    ) -> Callable[[Positions], Codes]:
        """Return a function that reads or computes the codes at positions of a segment."""

        def encode_vectors(block: Positions) -> Codes:
            return codebooks.encode(segment.read_vectors(block))

        if encode_all:
            return encode_vectors
        if segment.are_codes_intact or not len(positions):
            return segment.read_codes
        name, reference = f"{segment.name}/{CODES_FILE}", self.state.model
        model = None if reference is None else self._open_model(reference)
        if model is not None and (segment.has_text if model.from_texts else segment.manifest.dims is None):
            self.report.notes.append(f"{name}: codes are computed again by the model")
            return lambda block: self._encode_by_model(model, segment, block)
        if reference is None and _are_codes_of(segment, positions, codebooks):
            self.report.notes.append(f"{name}: codes are computed again from the vectors")
            return encode_vectors
        reason = "they cannot be computed from what is stored"
        if reference is not None and model is None:
            reason = "the model is not found (--model)"
        self.report.notes.append(
            f"{name}: damaged codes are copied, as {reason}: searches may miss documents with a damaged code; where "
            "they are found, their rank is right"
        )
        return segment.read_codes

    @staticmethod
    def _encode_by_model(model: RepairModel, segment: SalvagedSegment, positions: Positions) -> Codes:
        batches = []
        for start in range(0, len(positions), DOCUMENTS_PER_BATCH):
            block = positions[start : start + DOCUMENTS_PER_BATCH]
            rows = segment.get_rows(block).tolist() if model.from_texts else []
            batches.append(model.encode([segment.read_document(row) for row in rows], segment.read_vectors(block)))
        return np.concatenate(batches)

    def _read_documents(self) -> Iterator[Document]:
        for selection, positions in zip(self.selections, self.positions, strict=True):
            for block in split_blocks(positions):
                yield from map(selection.segment.read_document, selection.segment.get_rows(block).tolist())
        for row in self.memtable_rows.tolist():
            yield self.memtable.documents[row]


def _write_json_lines(path: Path, objects: Iterator[dict[str, Any]]) -> int:
    """Write an object per line; return their number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with storage_errors(path), NewFile(path) as out:
        for fields in objects:
            out.write((json.dumps(fields) + "\n").encode())
            count += 1
    return count


def _are_codes_of(segment: SalvagedSegment, positions: Positions, codebooks: Codebooks) -> bool:
    """Whether the codebooks encode a sample of vectors to the stored codes, as far as these are undamaged."""
    if segment.manifest.dims is not None or codebooks.dim != segment.manifest.dim:
        return False
    sample = positions[np.unique(np.linspace(0, len(positions) - 1, SAMPLE_ROWS).astype(np.int64))]
    stored = segment.read_codes(sample)
    is_nonzero = stored.any(axis=1)
    if is_nonzero.sum() <= len(sample) // 2:  # most codes are lost, so nothing contradicts it
        return True
    agreement = (codebooks.encode(segment.read_vectors(sample)) == stored).mean(axis=1)
    return float(np.median(agreement[is_nonzero])) >= MIN_AGREEMENT


def _get_valid_rows(rows: Sequence[int], mask: Mask) -> Rows:
    numbers = np.array(rows, dtype=np.int64)
    return numbers[(numbers >= 0) & (numbers < len(mask))]


class _SavedVectors(MergedArray):
    """Vectors of all saved documents."""

    dtype = np.dtype(np.float32)

    def __init__(self, repair: _Repair) -> None:
        super().__init__([*repair.positions, repair.memtable_rows], repair.manifest.stored_dim)
        self._segments = [selection.segment for selection in repair.selections]
        self._memtable_vectors = repair.memtable.vectors

    def __getitem__(self, selection: Any) -> Floats:
        vectors = self._make_output(selection, self.dtype)
        for number, in_segment, positions in self._locate(selection):
            is_stored = number < len(self._segments)
            vectors[in_segment] = (
                self._segments[number].read_vectors(positions) if is_stored else self._memtable_vectors[positions]
            )
        return vectors
