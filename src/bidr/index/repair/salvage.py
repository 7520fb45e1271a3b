"""Saving what is whole of a damaged index into a new one. The damaged one is read, and nothing else.

What is stored once is saved where it is whole: vectors, ids, texts, attributes. What is made of these is made anew: the
order, lists, links, means, words, columns, and what ids are looked up by.
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
from bidr.index.builder.cluster_input import MIN_AGREEMENT, SAMPLE_ROWS
from bidr.index.documents.id_index import hash_string
from bidr.index.engines.engine_files import CODEBOOKS_FILE, CODES_FILE, LEARNED_FILE
from bidr.index.live.live_index import LiveIndex
from bidr.index.live.memtable import Memtable
from bidr.index.live.segment import unpack_bits
from bidr.index.live.verify import verify_live
from bidr.index.live.wal_record import WalRecord
from bidr.index.repair.damaged_file import Mask, heal_byte, read_small
from bidr.index.repair.segment_salvage import ID, NEEDED, PLACE, TEXT, VECTOR, SalvagedSegment, blocks_of, name_lost
from bidr.index.repair.state_salvage import find_state, read_segment_manifest
from bidr.index.repair.wal_salvage import DoubtfulChange, salvage_log
from bidr.index.storage.commit import LOCK_FILE
from bidr.index.storage.live_state import SegmentEntry
from bidr.index.storage.manifest import ModelReference
from bidr.quantization.codebooks import Codebooks
from bidr.quantization.learned_ivf import LearnedIvf
from bidr.quantization.pq_training import FIT_ROWS, fit_pq, make_too_few_error
from bidr.utils.array_types import Codes, Floats
from bidr.utils.files import NewFile, make_folder, remove, storage_errors, sync_folder
from bidr.utils.progress import show_progress

STAGED, AGAIN_SUFFIX = ".codes", ".again.jsonl"
ENCODED_AT_ONCE = 1_024
Places = npt.NDArray[np.int32]


class ModelOfIndex(NamedTuple):
    """What a repair takes from the model of an index.

    encode:     codes of documents and their vectors.
    from_texts: whether it encodes texts, and not vectors.
    """

    stamp: ModelReference
    codebooks: Codebooks
    lists: LearnedIvf | None
    encode: Callable[[Sequence[Document], Floats], Codes]
    from_texts: bool


OpenModel = Callable[[ModelReference | None], ModelOfIndex | None]
"""Opens the model of an index; None where it is not there."""


@dataclass
class RepairReport:
    """What a repair saved, and what it could not.

    saved:      documents in the new index; `incomplete` of them without a text or attributes that are lost.
    lost:       documents that are not in it; of `unnamed` of them not even the id is known.
    partly_whole: of those that are lost, how many are not lost with `keep_incomplete`.
    reasons:    how many documents lost what: "vector", "order" (which vector is whose), "id", "text", "attributes".
    superseded: older versions of documents that came back with a damaged list of deletions, and are left out.
    damaged:    damaged files, and how much of each.
    verified:   whether every file that documents were taken from could be compared with a checksum.
    certain:    whether it is known which documents had been deleted, and that nothing of the log is missing.
    lost_file:  where the lost documents are listed, if any are.
    again_file: where those are whose id and text are whole, as `bidr add` takes them, and how many they are (`again`).
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
        """Whether every document is saved, and every part of it, and all of that is proved."""
        return self.verified and self.certain and not self.lost and not self.incomplete

    def as_fields(self) -> dict[str, Any]:
        return {**asdict(self), "complete": self.is_complete}


def salvage_index(
    folder: Path,
    out: Path,
    lost_file: Path,
    open_model: OpenModel,
    *,
    keep_incomplete: bool = False,
    refit: bool = False,
) -> RepairReport:
    """Write an index of every document of a damaged one that is whole; `out` appears whole or not at all.

    lost_file:       where the others are listed, an object a line; written where there are any.
    keep_incomplete: also save documents of which a text or attributes are lost, without these.
    refit:           where the codebooks are lost and the model with them, fit plain ones to the vectors.
    """
    _check_paths(folder, out, lost_file)
    aside = out.with_name(f".{out.name}.{os.getpid()}.new")
    with _unchanged(folder), ExitStack() as opened, storage_errors(out):
        try:
            remove(aside)
            make_folder(aside)
            repair = _Repair(folder, aside, open_model, opened, keep_incomplete=keep_incomplete, refit=refit)
            repair.report.out = str(out)
            if not repair.report.saved:
                raise repair.refuse(lost_file)
            repair.write()
            remove(aside / STAGED)
            with LiveIndex.open(aside) as written:
                verify_live(written.latest())
            with _removed_on_error(lost_file, _again_path(lost_file)):
                repair.list_lost(lost_file)
                os.rename(aside, out)
            sync_folder(out.parent)
        except BaseException:
            remove(aside)
            raise
    return repair.report


def _again_path(lost_file: Path) -> Path:
    return lost_file.with_name(lost_file.name.removesuffix(".jsonl").removesuffix(".lost") + AGAIN_SUFFIX)


@contextmanager
def _removed_on_error(*paths: Path) -> Iterator[None]:
    """Remove new files where what belongs to them fails: left behind, they would stop another attempt."""
    try:
        yield
    except BaseException:
        for path in paths:
            remove(path)
        raise


def _check_paths(folder: Path, out: Path, lost_file: Path) -> None:
    if not folder.is_dir():
        raise IndexFolderError(f"{folder}: no folder; give that of an index")
    inside = folder.resolve()
    another = "another file with --lost"
    for path, what in ((out, "a folder that does not"), (lost_file, another), (_again_path(lost_file), another)):
        if path.resolve() == inside or inside in path.resolve().parents:
            raise ConfigError(f"{path} is in {folder}, which a repair only reads; choose a place outside of it")
        if path.exists() or path.is_symlink():
            raise ConfigError(f"{path} exists already; give {what}")
    if out.resolve() in lost_file.resolve().parents:
        raise ConfigError(f"{lost_file} is in the new index {out}; choose a place outside of it")


@contextmanager
def _unchanged(folder: Path) -> Iterator[None]:
    """Keep writers from the index meanwhile, by a shared lock on their lock file, if there is one."""
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


class _Part(NamedTuple):
    segment: SalvagedSegment
    deleted: Mask
    keep: Mask


class _Repair:
    """One repair: the damaged index, the documents of it that are saved, and the new index."""

    def __init__(
        self, folder: Path, aside: Path, open_model: OpenModel, opened: ExitStack, *, keep_incomplete: bool, refit: bool
    ) -> None:
        self.folder, self.aside, self._open_model = folder, aside, open_model
        self.keep_incomplete, self.refit = keep_incomplete, refit
        self.state = find_state(folder)
        self.report = RepairReport(str(folder), "", self.state.name, notes=self.state.notes)
        self.segments = self._open_segments(opened)
        if not self.segments:
            raise IndexFolderError(
                f"{folder}: nothing of it can be saved: {'; '.join(self.report.notes) or 'no segment'}"
            )
        self.first = next(iter(self.segments.values())).manifest
        self.doubtful_ids = set[str]()
        """Of documents that damaged records of the log added, replaced or deleted."""
        self.memory, deleted = self._read_log()
        self.parts = [self._select(segment, deleted[name]) for name, segment in self.segments.items()]
        self.in_log = np.flatnonzero(self.memory.alive)
        if not self.state.certain:
            self._drop_superseded()
        self.places = [part.segment.places(part.keep) for part in self.parts]
        self.report.saved = sum(map(len, self.places)) + len(self.in_log)
        self._count()

    def _open_segments(self, opened: ExitStack) -> dict[str, SalvagedSegment]:
        found = {}
        for segment in self.state.segments:
            manifest = read_segment_manifest(self.folder, segment, self.report.notes)
            if manifest is None:
                self._count_segment_lost(segment)
                continue
            self.report.verified &= manifest[1]
            try:
                salvaged = SalvagedSegment(self.folder, segment.name, manifest[0], proved=manifest[1])
            except IndexFolderError as error:
                self.report.notes.append(str(error))
                self._count_segment_lost(segment)
                continue
            opened.callback(salvaged.close)
            salvaged.check_others()
            self.report.damaged |= {f"{segment.name}/{name}": much for name, much in salvaged.damaged.items()}
            found[segment.name] = salvaged
        return found

    def _read_log(self) -> tuple[Memtable, dict[str, Mask]]:
        """What is in the log, and which rows of each segment are deleted."""
        deleted = {segment.name: self._read_deleted(segment) for segment in self.state.segments}
        memory = Memtable.empty(self.first.books, self.first.stored_dim)
        if not self.state.live:
            return memory, deleted
        log = salvage_log(self.folder / self.state.name)
        if log.gaps:
            self.state.certain = False
            self.report.certain = False
            self.report.damaged[f"{self.state.name}/log"] = f"{log.missing:,} bytes in {log.gaps} places"
            self.report.notes.append(
                f"log: what {log.gaps} damaged records added, replaced or deleted is lost; where not even that can be "
                "read, so are the ids, and documents that were deleted or replaced may have come back"
            )
        applied = 0
        for doubtful in log.doubtful:
            memory = self._apply(memory, deleted, log.changes[applied : doubtful.after])
            memory, applied = self._apply_doubtful(memory, deleted, doubtful), doubtful.after
        memory = self._apply(memory, deleted, log.changes[applied:])
        self.doubtful_ids -= memory.rows.keys()
        return memory, deleted

    @staticmethod
    def _apply(memory: Memtable, deleted: dict[str, Mask], changes: list[WalRecord]) -> Memtable:
        for change in changes:
            for name, rows in change.deleted_rows.items():
                if name in deleted:
                    deleted[name][_within(rows, deleted[name])] = True
        return memory.apply(changes) if changes else memory

    def _apply_doubtful(self, memory: Memtable, deleted: dict[str, Mask], change: DoubtfulChange) -> Memtable:
        """Take out what a damaged record replaced or deleted: nothing old is to stand for it. It is listed as lost."""
        self.doubtful_ids.update(change.ids, change.removed_ids)
        for name, rows in change.deleted_rows.items():
            if name in deleted:
                own = _within(rows, deleted[name])
                self.doubtful_ids.update(self._ids_of(name, own[~deleted[name][own]]))
                deleted[name][own] = True
        alive, left = memory.alive.copy(), dict(memory.rows)
        alive[[left.pop(name) for name in change.removed_ids if name in left]] = False
        return memory._replace(alive=alive, rows=left)

    def _ids_of(self, name: str, rows: npt.NDArray[np.int64]) -> list[str]:
        segment = self.segments.get(name)
        if segment is None:
            return []
        return [segment.id(row) or "" for row in rows.tolist() if not segment.lost[row] & ID]

    def _read_deleted(self, segment: SegmentEntry) -> Mask:
        salvaged = self.segments.get(segment.name)
        count = salvaged.count if salvaged is not None else segment.count
        if not segment.deleted:
            return np.zeros(count, dtype=bool)
        name = f"{self.state.name}/{segment.tombstones}"
        content, entry = read_small(self.folder / name), self.state.files.get(segment.tombstones)
        bits = heal_byte(content, entry.xxh3) if entry is not None else None
        if bits is None:
            self.state.certain = False
            bits = content[: (count + 7) // 8].ljust((count + 7) // 8, b"\0")
            if entry is not None:
                self.report.damaged[name], self.report.certain = "some of it", False
                self.report.notes.append(f"{name}: documents of {segment.name} that were deleted may have come back")
        return unpack_bits(np.frombuffer(bits, dtype=np.uint8), count).copy()

    def _select(self, segment: SalvagedSegment, deleted: Mask) -> _Part:
        lost = segment.lost
        keep = ~deleted & ((lost & NEEDED) == 0)
        if not self.keep_incomplete:
            keep &= lost == 0
        self.report.deleted += int(deleted.sum())
        return _Part(segment, deleted, keep)

    def _drop_superseded(self) -> None:
        """Of several documents of one id keep the newest: which were replaced is not known for certain."""
        hashes, rows = [], []
        for part in self.parts:
            kept_rows = np.flatnonzero(part.keep)
            rows.append(kept_rows)
            hashes.append(
                np.array([hash_string(part.segment.id(row) or "") for row in kept_rows.tolist()], dtype=np.uint64)
            )
        hashes.append(np.array([hash_string(self.memory.documents[row].id) for row in self.in_log], dtype=np.uint64))
        all_hashes = np.concatenate(hashes)[::-1]
        newest = np.zeros(len(all_hashes), dtype=bool)
        newest[len(all_hashes) - 1 - np.unique(all_hashes, return_index=True)[1]] = True
        at = 0
        for part, kept_rows in zip(self.parts, rows, strict=True):
            part.keep[kept_rows[~newest[at : at + len(kept_rows)]]] = False
            part.deleted[kept_rows[~newest[at : at + len(kept_rows)]]] = True
            at += len(kept_rows)
        self.report.superseded = int((~newest).sum())

    def write(self) -> None:
        """Write the new index."""
        codebooks, encode_all = self._codebooks()
        codes = self._stage_codes(codebooks, encode_all)
        texts = self.memory.has_text or any(part.segment.has_text for part in self.parts)
        manifest = self.first
        titles = [part.segment.titles for part in self.parts]
        stamp = self._stamp()
        cut: dict[str, Any] = {}
        if manifest.dims is not None:
            cut = {"full_dim": manifest.dim, "code_error": manifest.code_error}
        build_index(
            self.aside,
            codebooks=codebooks,
            codes=codes,
            vectors=_Vectors(self),  # type: ignore[arg-type]
            **{"documents" if texts else "ids": self._documents()},  # type: ignore[arg-type]
            model=None if encode_all else stamp,
            engine="auto" if manifest.auto else manifest.engine,
            ef_construction=manifest.ef_construction,
            stored=self.parts[0].segment.kind,
            unit=manifest.unit,
            lexical=titles[0] if texts else None,
            lists=None if encode_all else self._lists(),
            **cut,
        )

    def refuse(self, lost_file: Path) -> IndexFolderError:
        """The error where no document is whole; list those whose id and text are, to build an index of them again."""
        again = _again_path(lost_file)
        with _removed_on_error(again):
            self._list_again(again)
        if self.report.again:
            return IndexFolderError(
                f"{self.folder}: none of its documents is whole, so there is no new index; id and text of "
                f"{self.report.again:,} are in {again}: build an index of these (bidr build --data FOLDER, as its "
                "corpus.jsonl)"
            )
        remove(again)
        return IndexFolderError(f"{self.folder}: none of its documents is whole; nothing can be saved")

    def list_lost(self, lost_file: Path) -> None:
        """Write the list of what is not in it, or not whole, and what of that can be added again."""
        if self.report.lost or self.report.incomplete:
            self.report.lost_file = str(lost_file)
            self._list_lost(lost_file)
            again = _again_path(lost_file)
            self._list_again(again)
            if self.report.again:
                self.report.again_file = str(again)
            else:
                remove(again)

    def _stamp(self) -> ModelReference | None:
        """The model of the new index: that of the damaged one, or, where this is lost, the one that was given."""
        if self.state.model is None and not self.parts[0].segment.proved:
            model = self._open_model(None)
            return None if model is None else model.stamp
        return self.state.model

    def _count(self) -> None:
        if self.doubtful_ids:
            self._count_lost(len(self.doubtful_ids), "log")
        for part in self.parts:
            lost = part.segment.lost[~part.deleted]
            kept = part.keep[~part.deleted]
            gone = lost[(lost != 0) & ~kept]
            self.report.lost += len(gone)
            self.report.unnamed += int(((gone & ID) != 0).sum())
            self.report.partly_whole += int(((gone & NEEDED) == 0).sum())
            self.report.incomplete += int(((lost != 0) & kept).sum())
            for bits, many in zip(*np.unique(lost[lost != 0], return_counts=True), strict=True):
                for name in name_lost(int(bits)):
                    self.report.reasons[name] = self.report.reasons.get(name, 0) + int(many)

    def _count_lost(self, many: int, reason: str) -> None:
        self.report.lost += many
        self.report.reasons[reason] = self.report.reasons.get(reason, 0) + many

    def _count_segment_lost(self, segment: SegmentEntry) -> None:
        self._count_lost(segment.count - segment.deleted, "segment")
        self.report.unnamed += segment.count - segment.deleted

    def _list_lost(self, path: Path) -> None:
        """One object a line: the id (null where it is lost), what is lost, where it stood, whether it was saved."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with storage_errors(path), NewFile(path) as out:
            for entry in self._lost():
                out.write((json.dumps(entry) + "\n").encode())

    def _lost(self) -> Iterator[dict[str, Any]]:
        for part in self.parts:
            segment = part.segment
            for row in np.flatnonzero((segment.lost != 0) & ~part.deleted).tolist():
                bits = int(segment.lost[row])
                entry: dict[str, Any] = {"id": None if bits & ID else segment.id(row), "lost": name_lost(bits)}
                if bits & ID and segment.has_text and not bits & TEXT:
                    entry["title"] = segment.document(row).title
                yield entry | {"segment": segment.name, "row": row, "saved": bool(part.keep[row])}
        for name in sorted(self.doubtful_ids):
            yield {"id": name, "lost": ["log"], "saved": False}
        for missing in self.state.segments:
            if missing.name not in self.segments:
                count = missing.count - missing.deleted
                yield {"id": None, "lost": ["segment"], "segment": missing.name, "documents": count, "saved": False}

    def _list_again(self, path: Path) -> None:
        """The documents that lost nothing but their vector or its place, in the layout of a BEIR corpus."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with storage_errors(path), NewFile(path) as out:
            for part in self.parts:
                lost = part.segment.lost
                again = (lost != 0) & ((lost & ~np.uint8(VECTOR | PLACE)) == 0) & ~part.deleted
                for row in np.flatnonzero(again).tolist() if part.segment.has_text else ():
                    name, title, text, attributes = part.segment.document(row)
                    entry = {"_id": name, "title": title, "text": text, "metadata": attributes or {}}
                    out.write((json.dumps(entry) + "\n").encode())
                    self.report.again += 1

    def _codebooks(self) -> tuple[Codebooks, bool]:
        """The codebooks, and whether they are new ones, for which all codes must be made anew."""
        for part in self.parts:
            found = part.segment.codebooks()
            if found is not None:
                return found, False
        model = self._open_model(self.state.model)
        if model is not None:
            self.report.notes.append(f"{CODEBOOKS_FILE} is lost, and taken from the model in {model.stamp.folder}")
            return model.codebooks, False
        manifest, stamp = self.first, self.state.model
        if stamp is not None and not self.refit:
            raise IndexFolderError(
                f"{self.folder}: {CODEBOOKS_FILE} is damaged, and without it codes mean nothing; it is that of the "
                f"model {stamp.fingerprint}, which is no longer in {stamp.folder}: say where it is (--model), or have "
                "plain codes fitted to the vectors (--refit), for an index that is searched by vectors alone"
            )
        if manifest.dims is not None:
            raise IndexFolderError(
                f"{self.folder}: {CODEBOOKS_FILE} is damaged, and codes of whole vectors cannot be made anew from the "
                f"first {manifest.dims} dimensions; export the vectors by hand ({self.first.stored_dim} numbers a row)"
            )
        self.report.notes.append(
            f"{CODEBOOKS_FILE} is lost: others were fitted to the vectors, and all codes made anew"
        )
        vectors = _Vectors(self)
        if len(vectors) < manifest.words:
            raise make_too_few_error(len(vectors), manifest.words)
        rows = np.random.default_rng(0).choice(len(vectors), min(FIT_ROWS, len(vectors)), replace=False)
        return fit_pq(vectors[np.sort(rows)], manifest.books, manifest.words, seed=0), True

    def _lists(self) -> LearnedIvf | None:
        """The lists that the model learned; found by k-means where they are lost."""
        segment = self.parts[0].segment
        if LEARNED_FILE not in segment.manifest.files:
            return None
        found: LearnedIvf | None = segment.learned_lists()
        if found is None:
            model = self._open_model(self.state.model)
            found = model.lists if model is not None else None
            way = "taken from the model" if found is not None else "found by k-means instead"
            self.report.notes.append(f"the lists that the model learned are lost, and {way}")
        return found

    def _stage_codes(self, codebooks: Codebooks, encode_all: bool) -> Codes:
        """The codes of all documents that are kept, in a file beside the new index."""
        path = self.aside / STAGED
        with (
            storage_errors(path),
            NewFile(path) as out,
            show_progress("codes", self.report.saved, "documents") as advance,
        ):
            for part, places in zip(self.parts, self.places, strict=True):
                encode = self._encoder(part.segment, places, codebooks, encode_all)
                for block in blocks_of(places):
                    out.write(np.ascontiguousarray(encode(block)).tobytes())
                    advance(len(block))
            logged = self.memory.codes[self.in_log]
            if encode_all and len(logged):
                logged = codebooks.encode(self.memory.vectors[self.in_log].astype(np.float32))
            out.write(np.ascontiguousarray(logged).tobytes())
        return np.memmap(path, dtype=np.uint8, mode="r", shape=(self.report.saved, codebooks.books))

    def _encoder(
        self, segment: SalvagedSegment, places: Places, codebooks: Codebooks, encode_all: bool
    ) -> Callable[[Places], Codes]:
        """What gives the codes of some places of a segment."""

        def by_codebooks(block: Places) -> Codes:
            return codebooks.encode(segment.vectors(block))

        if encode_all:
            return by_codebooks
        if segment.are_codes_whole or not len(places):
            return segment.stored_codes
        name, model = f"{segment.name}/{CODES_FILE}", None
        if self.state.model is not None:
            model = self._open_model(self.state.model)
        if model is not None and (segment.has_text if model.from_texts else segment.manifest.dims is None):
            self.report.notes.append(f"{name}: codes are made anew by the model")
            return lambda block: self._encode_by_model(model, segment, block)
        if self.state.model is None and _are_codes_of(segment, places, codebooks):
            self.report.notes.append(f"{name}: codes are made anew from the vectors")
            return by_codebooks
        why = (
            "its model is not there (--model)"
            if self.state.model is not None and model is None
            else "nothing makes them"
        )
        self.report.notes.append(
            f"{name}: codes are as they were found, as {why}: a search may miss a document whose code is damaged; "
            "where it is found it is ranked as before"
        )
        return segment.stored_codes

    @staticmethod
    def _encode_by_model(model: ModelOfIndex, segment: SalvagedSegment, places: Places) -> Codes:
        parts = []
        for at in range(0, len(places), ENCODED_AT_ONCE):
            block = places[at : at + ENCODED_AT_ONCE]
            documents = [segment.document(row) for row in segment.rows(block).tolist()] if model.from_texts else []
            parts.append(model.encode(documents, segment.vectors(block)))
        return np.concatenate(parts)

    def _documents(self) -> Iterator[Document]:
        for part, places in zip(self.parts, self.places, strict=True):
            for block in blocks_of(places):
                yield from map(part.segment.document, part.segment.rows(block).tolist())
        for row in self.in_log.tolist():
            yield self.memory.documents[row]


def _are_codes_of(segment: SalvagedSegment, places: Places, codebooks: Codebooks) -> bool:
    """Whether codebooks give vectors the codes that are there, as far as these are still to be seen."""
    if segment.manifest.dims is not None or codebooks.dim != segment.manifest.dim:
        return False
    sample = places[np.unique(np.linspace(0, len(places) - 1, SAMPLE_ROWS).astype(np.int64))] if len(places) else places
    stored = segment.stored_codes(sample)
    nonzero = stored.any(axis=1)
    if nonzero.sum() <= len(sample) // 2:  # most of them are gone: nothing speaks against it
        return True
    alike = (codebooks.encode(segment.vectors(sample)) == stored).mean(axis=1)
    return float(np.median(alike[nonzero])) >= MIN_AGREEMENT


def _within(rows: Sequence[int], mask: Mask) -> npt.NDArray[np.int64]:
    numbers = np.array(rows, dtype=np.int64)
    return numbers[(numbers >= 0) & (numbers < len(mask))]


class _Vectors:
    """The vectors that are kept, as an array to what takes slices."""

    ndim = 2
    dtype = np.dtype(np.float32)

    def __init__(self, repair: _Repair) -> None:
        self._repair = repair
        self._ends = np.cumsum([*(len(places) for places in repair.places), len(repair.in_log)])
        self.shape = (int(self._ends[-1]), repair.first.stored_dim)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, which: Any) -> Floats:
        rows = np.arange(*which.indices(len(self))) if isinstance(which, slice) else np.asarray(which)
        found, repair = np.empty((len(rows), self.shape[1]), dtype=np.float32), self._repair
        of = np.searchsorted(self._ends, rows, side="right")
        for number in np.unique(of).tolist():
            selected = of == number
            offsets = rows[selected] - (self._ends[number - 1] if number else 0)
            if number < len(repair.parts):
                found[selected] = repair.parts[number].segment.vectors(repair.places[number][offsets])
            else:
                found[selected] = repair.memory.vectors[repair.in_log[offsets]]
        return found
