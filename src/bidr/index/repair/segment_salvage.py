"""What of each document of a damaged segment is whole: vector, id, text, attributes, and which row its place has."""

import json
import re
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bidr.data.attributes import check_attributes
from bidr.data.dataset import Titles
from bidr.data.types import Attributes, Document
from bidr.errors import BidrError, IndexFolderError, ModelError
from bidr.index.builder.build import VECTORS_FILE
from bidr.index.code_packing import unpack
from bidr.index.documents.attribute_columns import ATTRIBUTES
from bidr.index.documents.document_store import DOCUMENTS, IDS
from bidr.index.documents.id_index import HASH, HASHES, ROW, ROWS
from bidr.index.documents.string_store import OFFSET
from bidr.index.engines.engine_files import CODEBOOKS_FILE, CODES_FILE, LEARNED_FILE, ORDER_FILE, get_order_dtype
from bidr.index.lexical.postings_files import METADATA as WORDS_FILE
from bidr.index.repair.damaged_file import DamagedFile, Mask, read_small
from bidr.index.repair.state_salvage import read_json_table
from bidr.index.storage.checksums import CHECKSUM_FILE_SUFFIX
from bidr.index.storage.manifest import FileEntry, Manifest, hash_bytes, hash_file
from bidr.index.vectors import StorageKind
from bidr.index.vectors.npy_header import BLOCK
from bidr.index.vectors.row_layout import CHECKSUM_DTYPE, CHECKSUM_SUFFIX, get_row_dtype, read_layout
from bidr.quantization.codebooks import Codebooks
from bidr.utils.array_types import Codes, Floats

Rows = npt.NDArray[np.int64]
AT_ONCE = 8_192
LONGEST_ID, TRIED_ID = 1 << 20, 1_024
READ_AHEAD, LONGEST_TEXT = 1 << 13, 1 << 28
MOST_PERMUTED = 4
# How the texts and the attributes of a document are written: as JSON, flat.
STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
TEXTS_ROW = re.compile(rb"\[" + STRING + rb", " + STRING + rb"\]", re.DOTALL)
ATTRIBUTES_ROW = re.compile(rb'\{(?:[^"{}]|' + STRING + rb")*\}", re.DOTALL)
# What may be lost of a document.
VECTOR, PLACE, ID, TEXT, ATTRIBUTE = 1, 2, 4, 8, 16
LOST = {VECTOR: "vector", PLACE: "order", ID: "id", TEXT: "text", ATTRIBUTE: "attributes"}
NEEDED = VECTOR | PLACE | ID


class SalvagedSegment:
    """One segment, read without believing any of it. Masks are a byte a document, places four.

    proved: whether its manifest is there, and so what its files must be.
    lost:   by row, what of the document is lost, bits of LOST.
    order:  the row of each place, -1 where it is not known; None: rows are places.
    """

    def __init__(self, folder: Path, name: str, manifest: Manifest, *, proved: bool) -> None:
        self.folder, self.name, self.manifest, self.proved = folder / name, name, manifest, proved
        self.count = manifest.count
        self.damaged: dict[str, str] = {}
        if self.count > manifest.files.get(VECTORS_FILE, FileEntry(0, "")).size:  # before memory is taken for so many
            raise IndexFolderError(f"{self.folder}: {self.count:,} documents, more than its vectors have bytes")
        self.lost = np.zeros(self.count, dtype=np.uint8)
        self._vectors = self._open(VECTORS_FILE, VECTORS_FILE.removesuffix(".npy") + CHECKSUM_SUFFIX)
        self.kind, self._row_bytes = self._read_kind()
        self._first = self._vectors.size - self.count * self._row_bytes
        self.order = self._read_order() if ORDER_FILE in manifest.files else None
        self._ids = self._open_strings(IDS)
        self._texts = self._open_strings(DOCUMENTS)
        self._attributes = self._open_strings(ATTRIBUTES)
        self._codes = self._open(CODES_FILE)
        if self._ids is not None:
            self._ids.rebuild_offsets(self._end_of_id, proved=True)
        for strings, pattern in ((self._texts, TEXTS_ROW), (self._attributes, ATTRIBUTES_ROW)):
            if strings is not None:
                strings.rebuild_offsets(partial(_end_of_match, strings.blob, pattern), proved=False)
        self._find_lost()

    @property
    def has_text(self) -> bool:
        return self._texts is not None

    @property
    def are_codes_whole(self) -> bool:
        return self._codes.is_whole

    @property
    def titles(self) -> Titles | None:
        """Whether the words of titles count; None: no words are indexed."""
        if WORDS_FILE not in self.manifest.files:
            return None
        found = read_json_table(read_small(self.folder / WORDS_FILE)).get("titles")
        return "ignore" if found == "ignore" else "prepend"

    def codebooks(self) -> Codebooks | None:
        """The codebooks, if every byte of them is as it was written."""
        if not self._is_file_whole(CODEBOOKS_FILE):
            return None
        try:
            return Codebooks.load(self.folder / CODEBOOKS_FILE)
        except ModelError:
            return None

    def learned_lists(self) -> Any:
        """The lists that the model learned, if the index has any and they are whole."""
        from bidr.quantization.learned_ivf import LearnedIvf

        if LEARNED_FILE not in self.manifest.files or not self._is_file_whole(LEARNED_FILE):
            return None
        try:
            return LearnedIvf.load(self.folder / LEARNED_FILE)
        except BidrError:
            return None

    def places(self, keep: Mask) -> npt.NDArray[np.int32]:
        """Where the documents of some rows stand, in the order of places."""
        if self.order is None:
            return np.flatnonzero(keep).astype(np.int32)
        known = self.order >= 0
        known[known] = keep[self.order[known]]
        return np.flatnonzero(known).astype(np.int32)

    def rows(self, places: npt.NDArray[Any]) -> Rows:
        found: Rows = (places if self.order is None else self.order[places]).astype(np.int64)
        return found

    def vectors(self, places: npt.NDArray[Any]) -> Floats:
        """Vectors of some places as float32, in the order asked for."""
        content = _read_rows(self._vectors, self._first, self._row_bytes, places)
        if self.kind == "fp16":
            return content.view("<f2").astype(np.float32)
        stored = content.view(get_row_dtype("int8", self.manifest.stored_dim))[:, 0]
        return np.asarray(stored["vector"] * stored["scale"][:, None], dtype=np.float32)

    def stored_codes(self, places: npt.NDArray[Any]) -> Codes:
        """Codes of some places as the file has them; zeros where it ends before."""
        books, bits = self.manifest.books, self.manifest.words.bit_length() - 1
        width = (books * bits + 7) // 8
        return unpack(_read_rows(self._codes, self._codes.size - self.count * width, width, places), books, bits)

    def id(self, row: int) -> str | None:
        """The id of a row, which may be of another one where it is lost."""
        if self._ids is None:
            return str(row)
        try:
            return self._ids.get(row).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            return None

    def document(self, row: int) -> Document:
        """What is left of a document whose id is whole."""
        title = text = ""
        attributes: Attributes | None = None
        if self._texts is not None and not self.lost[row] & TEXT:
            title, text = _parse_text(self._texts.get(row)) or ("", "")
        if self._attributes is not None and not self.lost[row] & ATTRIBUTE:
            attributes = _parse_attributes(self._attributes.get(row)) or None
        return Document(self.id(row) or "", title, text, attributes)

    def check_others(self) -> None:
        """Note which of the files that are made anew are damaged."""
        seen = {VECTORS_FILE, CODES_FILE, ORDER_FILE}
        seen |= {f"{name}{end}" for name in (IDS, DOCUMENTS, ATTRIBUTES) for end in (".blob", ".offsets.npy")}
        for name in sorted(self.manifest.files.keys() - seen):
            if not self._is_file_whole(name):
                self.damaged.setdefault(name, "made anew")

    def close(self) -> None:
        for file in (self._vectors, self._codes):
            file.close()
        for strings in (self._ids, self._texts, self._attributes):
            if strings is not None:
                strings.close()

    def _open(self, name: str, checks: str = "") -> DamagedFile:
        """A file with the checksums of its blocks, where it has any. checks: the name of their file."""
        files, sums = self.manifest.files, None
        checks = checks or name + CHECKSUM_FILE_SUFFIX
        if checks in files and name in files:
            content = read_small(self.folder / checks, 1 << 40)
            header = max(0, files[checks].size - CHECKSUM_DTYPE.itemsize * -(-files[name].size // BLOCK))
            sums = np.frombuffer(
                content[header : len(content) - (len(content) - header) % CHECKSUM_DTYPE.itemsize], dtype=CHECKSUM_DTYPE
            )
        file = DamagedFile(self.folder / name, files.get(name, FileEntry(0, "")), sums)
        if not file.is_whole:
            bad = int(file.bad.sum())
            extent = f"{bad:,} of {file.blocks:,} blocks" if file.by_block else "some of it"
            self.damaged[name] = extent if file.is_there else "missing"
        return file

    def _open_strings(self, name: str) -> "_Strings | None":
        if f"{name}.blob" not in self.manifest.files:
            return None
        return _Strings(self._open(f"{name}.blob"), self._open(f"{name}.offsets.npy"), self.count)

    def _is_file_whole(self, name: str) -> bool:
        entry = self.manifest.files.get(name)
        try:
            if entry is None or (self.folder / name).stat().st_size != entry.size:
                return False
            return not entry.xxh3 or hash_file(self.folder / name) == entry.xxh3
        except OSError:
            return False

    def _read_kind(self) -> tuple[StorageKind, int]:
        """How vectors are stored; their size tells it where their head is damaged."""
        dim = self.manifest.stored_dim
        sizes: dict[StorageKind, int] = {"fp16": 2 * dim, "int8": dim + 4}
        try:
            kind = read_layout(self.folder / VECTORS_FILE)[0]
            return kind, sizes[kind]
        except BidrError:
            # Rows begin with a block.
            heads = {kind: self._vectors.size - self.count * size for kind, size in sizes.items()}
            kind = min(heads, key=lambda each: (heads[each] < 0, abs(heads[each] - BLOCK)))
            return kind, sizes[kind]

    def _read_order(self) -> npt.NDArray[Any]:
        """The row of each place. Every row stands at one: an entry that is none, or that two places have, is wrong."""
        dtype = get_order_dtype(self.count)
        with self._open(ORDER_FILE) as file:
            first = file.size - self.count * dtype.itemsize
            order = file.read_array(dtype, self.count, first).copy()
            if file.is_whole and self.proved:
                return order
            starts = first + np.arange(self.count, dtype=np.int64) * dtype.itemsize
            whole = file.are_whole(starts, starts + dtype.itemsize)
            head = file.read(0, first)
        single = _without_repeated(order)
        unknown, missing = np.flatnonzero(single < 0), np.setdiff1d(np.arange(self.count), single)
        if 0 < len(unknown) <= MOST_PERMUTED:
            for rows in permutations(missing.tolist()):
                single[unknown] = rows
                if hash_bytes(head + single.tobytes()) == self.manifest.files[ORDER_FILE].xxh3:
                    return single
            single[unknown] = -1
        if not file.by_block:
            return single
        order[~whole] = -1
        unknown, missing = np.flatnonzero(order < 0), np.setdiff1d(np.arange(self.count), order)
        if len(unknown) == len(missing) == 1:
            order[unknown] = missing
        return _without_repeated(order)

    def _find_lost(self) -> None:
        for first in range(0, self.count, AT_ONCE):
            places = np.arange(first, min(first + AT_ONCE, self.count), dtype=np.int64)
            starts = self._first + places * self._row_bytes
            rows = self.rows(places)
            bad = ~self._vectors.are_whole(starts, starts + self._row_bytes) & (rows >= 0)
            self.lost[rows[bad]] |= VECTOR
            for strings, bit in ((self._ids, ID), (self._texts, TEXT), (self._attributes, ATTRIBUTE)):
                if strings is not None:
                    self.lost[places[~strings.are_whole(places)]] |= bit
        if self.order is not None:
            placed = np.zeros(self.count, dtype=bool)
            placed[self.order[self.order >= 0]] = True
            self.lost[~placed] |= PLACE
        self._prove_ids()
        if not self.proved:
            self._find_unreadable()

    def _prove_ids(self) -> None:
        """The hash of every id is written beside the ids: what gives the hash of its row is whole."""
        if self._ids is not None and (self.lost & ID).any():
            for row in np.flatnonzero(self.lost & ID).tolist():
                content = self._ids.get(row) if self._ids.fits(row) else b""
                if content and self._is_id(row, content):
                    self.lost[row] &= ~np.uint8(ID)

    def _is_id(self, row: int, content: bytes) -> bool:
        from xxhash import xxh3_64_intdigest

        hashes, known = self._hashes
        return bool(known[row]) and xxh3_64_intdigest(content) == hashes[row]

    @cached_property
    def _hashes(self) -> tuple[npt.NDArray[np.uint64], Mask]:
        """The hash of each row's id, and whether it is known."""
        by_row, has_hash = np.zeros(self.count, dtype=HASH), np.zeros(self.count, dtype=bool)
        if HASHES in self.manifest.files and ROWS in self.manifest.files:
            hashes, rows = self._read_numbers(HASHES, HASH), self._read_numbers(ROWS, ROW)
            known = rows < self.count
            by_row[rows[known]], has_hash[rows[known]] = hashes[known], True
        return by_row, has_hash

    def _end_of_id(self, row: int, start: int) -> int | None:
        """Where the id of a row ends that begins at a byte: its hash says so."""
        assert self._ids is not None
        content = self._ids.blob.read(start, TRIED_ID)
        return next((start + size for size in range(1, len(content) + 1) if self._is_id(row, content[:size])), None)

    def _read_numbers(self, name: str, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        with DamagedFile(self.folder / name, None) as file:
            size = self.manifest.files[name].size
            return file.read_array(dtype, self.count, size - self.count * dtype.itemsize)

    def _find_unreadable(self) -> None:
        """Without a manifest: what cannot be what was written."""
        for row in range(self.count):
            if self._ids is not None and not (self.id(row) if self._ids.fits(row) else None):
                self.lost[row] |= ID
            if self._texts is not None and not self.lost[row] & TEXT and _parse_text(self._texts.get(row)) is None:
                self.lost[row] |= TEXT
            attributes = None if self.lost[row] & ATTRIBUTE else self._attributes
            if attributes is not None and _parse_attributes(attributes.get(row)) is None:
                self.lost[row] |= ATTRIBUTE


class _Strings:
    """Strings by row in two files, either of which may be damaged."""

    def __init__(self, blob: DamagedFile, offsets: DamagedFile, count: int) -> None:
        self.blob, self._offsets, self._count = blob, offsets, count
        self._first = offsets.size - OFFSET.itemsize * (count + 1)
        self._rebuilt: tuple[npt.NDArray[np.int64], Mask] | None = None

    def rebuild_offsets(self, end_of: Callable[[int, int], int | None], *, proved: bool) -> None:
        """Find out where strings end of which the offsets are damaged, one after the other from the last that is known.

        end_of: the end of the string of a row that begins at a byte. proved: it can only be right; else it is where all
                bytes up to it are whole.
        """
        if self._offsets.is_whole:
            return
        offsets = self._offsets.read_array(OFFSET, self._count + 1, self._first).astype(np.int64)
        at = self._first + OFFSET.itemsize * np.arange(self._count + 1, dtype=np.int64)
        known = self._offsets.are_whole(at, at + OFFSET.itemsize)
        offsets[0], known[0] = 0, True
        offsets[-1], known[-1] = self.blob.size, True
        for row in np.flatnonzero(~known).tolist():
            if not known[row - 1]:
                continue
            start = int(offsets[row - 1])
            end = end_of(row - 1, start)
            if end is None or not (proved or self.blob.are_whole(np.array([start]), np.array([end]))[0]):
                continue
            offsets[row], known[row] = end, True
        self._rebuilt = offsets, known

    def are_whole(self, rows: Rows) -> Mask:
        """Of rows that follow each other."""
        if self._rebuilt is not None:
            which = slice(rows[0], rows[-1] + 2)
            ends, known = self._rebuilt[0][which], self._rebuilt[1][which]
            return known[:-1] & known[1:] & self.blob.are_whole(ends[:-1], ends[1:])
        offsets = self._offsets.read_array(OFFSET, len(rows) + 1, self._at(int(rows[0]))).astype(np.int64)
        return self.blob.are_whole(offsets[:-1], offsets[1:])

    def fits(self, row: int) -> bool:
        """Whether a string is where it is said to be, whole or not."""
        start, end = self._span(row)
        return 0 <= start < end <= self.blob.size and end - start <= LONGEST_ID

    def get(self, row: int) -> bytes:
        start, end = self._span(row)
        return self.blob.read(start, end - start) if 0 <= start <= end <= self.blob.size else b""

    def _span(self, row: int) -> tuple[int, int]:
        if self._rebuilt is not None:
            start, end = self._rebuilt[0][row : row + 2].tolist()
        else:
            start, end = self._offsets.read_array(OFFSET, 2, self._at(row)).tolist()
        return start, end

    def _at(self, row: int) -> int:
        return self._first + OFFSET.itemsize * row

    def close(self) -> None:
        self.blob.close()
        self._offsets.close()


def _read_rows(file: DamagedFile, first: int, width: int, places: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Rows of so many bytes each, in the order asked for; those that follow each other in one read."""
    out = np.empty((len(places), width), dtype=np.uint8)
    order = np.argsort(places, kind="stable")
    ascending, at = places[order].astype(np.int64), 0
    for run in np.split(ascending, np.flatnonzero(np.diff(ascending) != 1) + 1) if len(places) else ():
        content = file.read_array(np.uint8, len(run) * width, first + int(run[0]) * width)
        out[order[at : at + len(run)]] = content.reshape(len(run), width)
        at += len(run)
    return out


def _end_of_match(blob: DamagedFile, pattern: re.Pattern[bytes], row: int, start: int) -> int | None:
    """Where a string ends that begins at a byte, by how it is written."""
    size = READ_AHEAD
    while True:
        content = blob.read(start, size)
        found = pattern.match(content)
        if found or len(content) < size or size > LONGEST_TEXT:
            return start + found.end() if found else None
        size *= 8


def _without_repeated(order: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """An order with -1 for what is no row of it, or what two places have."""
    unique = np.where((order >= 0) & (order < len(order)), order, -1).astype(order.dtype)
    times = np.bincount(unique[unique >= 0], minlength=len(order))
    unique[(unique >= 0) & (times[unique] > 1)] = -1
    return unique


def _parse_text(content: bytes) -> tuple[str, str] | None:
    try:
        title, text = json.loads(content.decode("utf-8", "surrogatepass"))
    except (ValueError, TypeError, RecursionError):
        return None
    return (title, text) if isinstance(title, str) and isinstance(text, str) else None


def _parse_attributes(content: bytes) -> Attributes | None:
    try:
        attributes = json.loads(content.decode("utf-8", "surrogatepass"))
        return check_attributes(attributes, "attributes") if attributes else {}
    except (ValueError, TypeError, RecursionError, BidrError):
        return None


def name_lost(bits: int) -> list[str]:
    """What is lost of a document, in words."""
    return [name for bit, name in LOST.items() if bits & bit]


def blocks_of(places: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """Some places at a time."""
    for start in range(0, len(places), AT_ONCE):
        yield places[start : start + AT_ONCE]
