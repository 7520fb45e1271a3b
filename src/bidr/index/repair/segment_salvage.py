"""Find out which documents of a damaged segment are intact: vector, order, id, text, attributes."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bidr.data.attribute_validation import check_attributes
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
from bidr.index.repair.state_salvage import read_json_object
from bidr.index.storage.checksums import CHECKSUM_FILE_SUFFIX
from bidr.index.storage.manifest import FileEntry, Manifest, hash_bytes, hash_file
from bidr.index.vectors import StorageKind
from bidr.index.vectors.npy_header import BLOCK
from bidr.index.vectors.row_layout import CHECKSUM_DTYPE, CHECKSUM_SUFFIX, get_row_dtype, read_layout
from bidr.quantization.codebooks import Codebooks
from bidr.utils.array_types import Codes, Floats

Rows = npt.NDArray[np.int64]
ROWS_PER_BLOCK = 8_192
MAX_ID_BYTES, MAX_SEARCHED_ID_BYTES = 1 << 20, 1_024
MIN_READ_BYTES, MAX_TEXT_BYTES = 1 << 13, 1 << 28
MAX_PERMUTED = 4
# The JSON of texts and attributes: flat, so that a pattern finds its end.
JSON_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
TEXTS_PATTERN = re.compile(rb"\[" + JSON_STRING + rb", " + JSON_STRING + rb"\]", re.DOTALL)
ATTRIBUTES_PATTERN = re.compile(rb'\{(?:[^"{}]|' + JSON_STRING + rb")*\}", re.DOTALL)
# Parts of a document, as bits.
VECTOR, PLACE, ID, TEXT, ATTRIBUTE = 1, 2, 4, 8, 16
PART_NAMES = {VECTOR: "vector", PLACE: "order", ID: "id", TEXT: "text", ATTRIBUTE: "attributes"}
REQUIRED = VECTOR | PLACE | ID


class SalvagedSegment:
    """A segment whose files may be damaged.

    has_checksums: whether its manifest is intact, and so the checksums of its files.
    lost:    lost parts by row, as bits of PART_NAMES.
    order:   row of each position, -1 if unknown; None: positions are rows.
    damaged: damaged files, and how much of each.
    """

    def __init__(self, folder: Path, name: str, manifest: Manifest, *, has_checksums: bool) -> None:
        self.folder, self.name, self.manifest, self.has_checksums = folder / name, name, manifest, has_checksums
        self.count = manifest.count
        self.damaged: dict[str, str] = {}
        self.changes: dict[int, Attributes | None] = {}
        """Attributes that were changed after the segment was written, by row."""
        if self.count > manifest.files.get(VECTORS_FILE, FileEntry(0, "")).size:  # before memory is allocated
            raise IndexFolderError(f"{self.folder}: {self.count:,} documents, more than its vector file has bytes")
        self.lost = np.zeros(self.count, dtype=np.uint8)
        self._vectors = self._open(VECTORS_FILE, VECTORS_FILE.removesuffix(".npy") + CHECKSUM_SUFFIX)
        self.kind, self._row_bytes = self._read_kind()
        self._data_start = self._vectors.size - self.count * self._row_bytes
        self.order = self._read_order() if ORDER_FILE in manifest.files else None
        self._ids = self._open_strings(IDS)
        self._texts = self._open_strings(DOCUMENTS)
        self._attributes = self._open_strings(ATTRIBUTES)
        self._codes = self._open(CODES_FILE)
        if self._ids is not None:
            self._ids.rebuild_offsets(self._find_id_end, is_proved=True)
        for strings, pattern in ((self._texts, TEXTS_PATTERN), (self._attributes, ATTRIBUTES_PATTERN)):
            if strings is not None:
                strings.rebuild_offsets(partial(_find_match_end, strings.blob, pattern), is_proved=False)
        self._mark_lost()

    @property
    def has_text(self) -> bool:
        return self._texts is not None

    @property
    def are_codes_intact(self) -> bool:
        return self._codes.is_intact

    @property
    def titles(self) -> Titles | None:
        """How titles are indexed; None: no lexical index."""
        if WORDS_FILE not in self.manifest.files:
            return None
        titles = read_json_object(read_small(self.folder / WORDS_FILE)).get("titles")
        return "ignore" if titles == "ignore" else "prepend"

    def load_codebooks(self) -> Codebooks | None:
        """Load the codebooks; None if they are damaged."""
        if not self._is_file_intact(CODEBOOKS_FILE):
            return None
        try:
            return Codebooks.load(self.folder / CODEBOOKS_FILE)
        except ModelError:
            return None

    def load_learned_lists(self) -> Any:
        """Load the learned IVF lists; None if there are none or they are damaged."""
        from bidr.quantization.learned_ivf import LearnedIvf

        if LEARNED_FILE not in self.manifest.files or not self._is_file_intact(LEARNED_FILE):
            return None
        try:
            return LearnedIvf.load(self.folder / LEARNED_FILE)
        except BidrError:
            return None

    def get_positions(self, row_mask: Mask) -> npt.NDArray[np.int32]:
        """Positions of selected rows, ascending."""
        if self.order is None:
            return np.flatnonzero(row_mask).astype(np.int32)
        position_mask = self.order >= 0
        position_mask[position_mask] = row_mask[self.order[position_mask]]
        return np.flatnonzero(position_mask).astype(np.int32)

    def get_rows(self, positions: npt.NDArray[Any]) -> Rows:
        rows: Rows = (positions if self.order is None else self.order[positions]).astype(np.int64)
        return rows

    def read_vectors(self, positions: npt.NDArray[Any]) -> Floats:
        """Read vectors at positions as float32."""
        content = _read_rows(self._vectors, self._data_start, self._row_bytes, positions)
        if self.kind == "fp16":
            return content.view("<f2").astype(np.float32)
        stored = content.view(get_row_dtype("int8", self.manifest.stored_dim))[:, 0]
        return np.asarray(stored["vector"] * stored["scale"][:, None], dtype=np.float32)

    def read_codes(self, positions: npt.NDArray[Any]) -> Codes:
        """Read codes at positions, damaged or not; zeros beyond the end of the file."""
        books, bits = self.manifest.books, self.manifest.words.bit_length() - 1
        width = (books * bits + 7) // 8
        return unpack(_read_rows(self._codes, self._codes.size - self.count * width, width, positions), books, bits)

    def read_id(self, row: int) -> str | None:
        """Read the id of a row, damaged or not; None if it is not valid UTF-8."""
        if self._ids is None:
            return str(row)
        try:
            return self._ids.get(row).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            return None

    def read_document(self, row: int) -> Document:
        """Read a document with an intact id, without its lost parts."""
        title = text = ""
        attributes: Attributes | None = None
        if self._texts is not None and not self.lost[row] & TEXT:
            title, text = _parse_text(self._texts.get(row)) or ("", "")
        if row in self.changes:
            attributes = self.changes[row]
        elif self._attributes is not None and not self.lost[row] & ATTRIBUTE:
            attributes = _parse_attributes(self._attributes.get(row)) or None
        return Document(self.read_id(row) or "", title, text, attributes)

    def change_attributes(self, changes: Mapping[int, Attributes | None]) -> None:
        """Replace attributes of rows, lost ones too; rows beyond the segment are ignored."""
        for row, attributes in changes.items():
            if 0 <= row < self.count:
                self.changes[row] = attributes
                self.lost[row] &= ~np.uint8(ATTRIBUTE)

    def check_derived_files(self) -> None:
        """Add damaged files of derived data to `damaged`."""
        primary = {VECTORS_FILE, CODES_FILE, ORDER_FILE}
        primary |= {f"{name}{suffix}" for name in (IDS, DOCUMENTS, ATTRIBUTES) for suffix in (".blob", ".offsets.npy")}
        for name in sorted(self.manifest.files.keys() - primary):
            if not self._is_file_intact(name):
                self.damaged.setdefault(name, "rebuilt")

    def close(self) -> None:
        for file in (self._vectors, self._codes):
            file.close()
        for strings in (self._ids, self._texts, self._attributes):
            if strings is not None:
                strings.close()

    def _open(self, name: str, checksum_file: str = "") -> DamagedFile:
        """Open a file with its block checksums, if there are any, by default in NAME.checks."""
        files, checksums = self.manifest.files, None
        checksum_file = checksum_file or name + CHECKSUM_FILE_SUFFIX
        if checksum_file in files and name in files:
            content = read_small(self.folder / checksum_file, 1 << 40)
            header = max(0, files[checksum_file].size - CHECKSUM_DTYPE.itemsize * -(-files[name].size // BLOCK))
            count = max(0, len(content) - header) // CHECKSUM_DTYPE.itemsize
            checksums = np.frombuffer(content[header : header + count * CHECKSUM_DTYPE.itemsize], dtype=CHECKSUM_DTYPE)
        file = DamagedFile(self.folder / name, files.get(name, FileEntry(0, "")), checksums)
        if not file.is_intact:
            bad = int(file.is_bad_block.sum())
            extent = f"{bad:,} of {file.blocks:,} blocks" if file.has_block_checksums else "partly"
            self.damaged[name] = extent if file.exists else "missing"
        return file

    def _open_strings(self, name: str) -> "_DamagedStrings | None":
        if f"{name}.blob" not in self.manifest.files:
            return None
        return _DamagedStrings(self._open(f"{name}.blob"), self._open(f"{name}.offsets.npy"), self.count)

    def _is_file_intact(self, name: str) -> bool:
        entry = self.manifest.files.get(name)
        try:
            if entry is None or (self.folder / name).stat().st_size != entry.size:
                return False
            return not entry.xxh3 or hash_file(self.folder / name) == entry.xxh3
        except OSError:
            return False

    def _read_kind(self) -> tuple[StorageKind, int]:
        """Return storage type and bytes per row; inferred from the file size if the header is damaged."""
        dim = self.manifest.stored_dim
        sizes: dict[StorageKind, int] = {"fp16": 2 * dim, "int8": dim + 4}
        try:
            kind = read_layout(self.folder / VECTORS_FILE)[0]
            return kind, sizes[kind]
        except BidrError:
            # The header is one block.
            headers = {kind: self._vectors.size - self.count * size for kind, size in sizes.items()}
            kind = min(headers, key=lambda key: (headers[key] < 0, abs(headers[key] - BLOCK)))
            return kind, sizes[kind]

    def _read_order(self) -> npt.NDArray[Any]:
        """Read the order, a permutation of rows: entries that are not rows, or repeated ones, are damaged."""
        dtype = get_order_dtype(self.count)
        with self._open(ORDER_FILE) as file:
            first = file.size - self.count * dtype.itemsize
            order = file.read_array(dtype, self.count, first).copy()
            if file.is_intact and self.has_checksums:
                return order
            starts = first + np.arange(self.count, dtype=np.int64) * dtype.itemsize
            is_intact = file.are_intact(starts, starts + dtype.itemsize)
            header = file.read(0, first)
        unique = _drop_invalid_rows(order)
        unknown, missing = np.flatnonzero(unique < 0), np.setdiff1d(np.arange(self.count), unique)
        if 0 < len(unknown) <= MAX_PERMUTED:
            for rows in permutations(missing.tolist()):
                unique[unknown] = rows
                if hash_bytes(header + unique.tobytes()) == self.manifest.files[ORDER_FILE].xxh3:
                    return unique
            unique[unknown] = -1
        if not file.has_block_checksums:
            return unique
        order[~is_intact] = -1
        unknown, missing = np.flatnonzero(order < 0), np.setdiff1d(np.arange(self.count), order)
        if len(unknown) == len(missing) == 1:
            order[unknown] = missing
        return _drop_invalid_rows(order)

    def _mark_lost(self) -> None:
        for first in range(0, self.count, ROWS_PER_BLOCK):
            positions = np.arange(first, min(first + ROWS_PER_BLOCK, self.count), dtype=np.int64)
            starts = self._data_start + positions * self._row_bytes
            rows = self.get_rows(positions)
            is_damaged = ~self._vectors.are_intact(starts, starts + self._row_bytes) & (rows >= 0)
            self.lost[rows[is_damaged]] |= VECTOR
            for strings, bit in ((self._ids, ID), (self._texts, TEXT), (self._attributes, ATTRIBUTE)):
                if strings is not None:
                    self.lost[positions[~strings.are_intact(positions)]] |= bit
        if self.order is not None:
            has_position = np.zeros(self.count, dtype=bool)
            has_position[self.order[self.order >= 0]] = True
            self.lost[~has_position] |= PLACE
        self._verify_ids()
        if not self.has_checksums:
            self._mark_unreadable()

    def _verify_ids(self) -> None:
        """Clear ID of rows whose id matches its hash in the id index."""
        if self._ids is not None and (self.lost & ID).any():
            for row in np.flatnonzero(self.lost & ID).tolist():
                content = self._ids.get(row) if self._ids.has_valid_range(row) else b""
                if content and self._is_id(row, content):
                    self.lost[row] &= ~np.uint8(ID)

    def _is_id(self, row: int, content: bytes) -> bool:
        from xxhash import xxh3_64_intdigest

        hashes, has_hash = self._hashes
        return bool(has_hash[row]) and xxh3_64_intdigest(content) == hashes[row]

    @cached_property
    def _hashes(self) -> tuple[npt.NDArray[np.uint64], Mask]:
        """Hash of each row's id, and whether there is one."""
        hashes_by_row, has_hash = np.zeros(self.count, dtype=HASH), np.zeros(self.count, dtype=bool)
        if HASHES in self.manifest.files and ROWS in self.manifest.files:
            hashes, rows = self._read_id_index(HASHES, HASH), self._read_id_index(ROWS, ROW)
            is_valid = rows < self.count
            hashes_by_row[rows[is_valid]], has_hash[rows[is_valid]] = hashes[is_valid], True
        return hashes_by_row, has_hash

    def _find_id_end(self, row: int, start: int) -> int | None:
        """Find the end of the id that starts at an offset, by its hash."""
        assert self._ids is not None
        content = self._ids.blob.read(start, MAX_SEARCHED_ID_BYTES)
        return next((start + size for size in range(1, len(content) + 1) if self._is_id(row, content[:size])), None)

    def _read_id_index(self, name: str, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        with DamagedFile(self.folder / name, None) as file:
            size = self.manifest.files[name].size
            return file.read_array(dtype, self.count, size - self.count * dtype.itemsize)

    def _mark_unreadable(self) -> None:
        """Without checksums, mark what cannot be parsed as lost."""
        for row in range(self.count):
            if self._ids is not None and not (self.read_id(row) if self._ids.has_valid_range(row) else None):
                self.lost[row] |= ID
            if self._texts is not None and not self.lost[row] & TEXT and _parse_text(self._texts.get(row)) is None:
                self.lost[row] |= TEXT
            attributes = None if self.lost[row] & ATTRIBUTE else self._attributes
            if attributes is not None and _parse_attributes(attributes.get(row)) is None:
                self.lost[row] |= ATTRIBUTE


class _DamagedStrings:
    """A string file and its offsets, either of which may be damaged."""

    def __init__(self, blob: DamagedFile, offsets: DamagedFile, count: int) -> None:
        self.blob, self._offsets, self._count = blob, offsets, count
        self._data_start = offsets.size - OFFSET.itemsize * (count + 1)
        self._rebuilt: tuple[npt.NDArray[np.int64], Mask] | None = None

    def rebuild_offsets(self, find_end: Callable[[int, int], int | None], *, is_proved: bool) -> None:
        """Recompute damaged offsets, each from the one before.

        find_end:  returns the end of the string of a row that starts at an offset.
        is_proved: whether its result is certain; otherwise all bytes of the string must be intact.
        """
        if self._offsets.is_intact:
            return
        offsets = self._offsets.read_array(OFFSET, self._count + 1, self._data_start).astype(np.int64)
        starts = self._data_start + OFFSET.itemsize * np.arange(self._count + 1, dtype=np.int64)
        is_valid = self._offsets.are_intact(starts, starts + OFFSET.itemsize)
        offsets[0], is_valid[0] = 0, True
        offsets[-1], is_valid[-1] = self.blob.size, True
        for row in np.flatnonzero(~is_valid).tolist():
            if not is_valid[row - 1]:
                continue
            start = int(offsets[row - 1])
            end = find_end(row - 1, start)
            if end is None or not (is_proved or self.blob.are_intact(np.array([start]), np.array([end]))[0]):
                continue
            offsets[row], is_valid[row] = end, True
        self._rebuilt = offsets, is_valid

    def are_intact(self, rows: Rows) -> Mask:
        """Whether the strings of consecutive rows are intact."""
        if self._rebuilt is not None:
            window = slice(rows[0], rows[-1] + 2)
            offsets, is_valid = self._rebuilt[0][window], self._rebuilt[1][window]
            return is_valid[:-1] & is_valid[1:] & self.blob.are_intact(offsets[:-1], offsets[1:])
        offsets = self._offsets.read_array(OFFSET, len(rows) + 1, self._get_offset(int(rows[0]))).astype(np.int64)
        return self.blob.are_intact(offsets[:-1], offsets[1:])

    def has_valid_range(self, row: int) -> bool:
        """Whether the offsets of a string are within the file."""
        start, end = self._get_range(row)
        return 0 <= start < end <= self.blob.size and end - start <= MAX_ID_BYTES

    def get(self, row: int) -> bytes:
        start, end = self._get_range(row)
        return self.blob.read(start, end - start) if 0 <= start <= end <= self.blob.size else b""

    def _get_range(self, row: int) -> tuple[int, int]:
        if self._rebuilt is not None:
            start, end = self._rebuilt[0][row : row + 2].tolist()
        else:
            start, end = self._offsets.read_array(OFFSET, 2, self._get_offset(row)).tolist()
        return start, end

    def _get_offset(self, row: int) -> int:
        return self._data_start + OFFSET.itemsize * row

    def close(self) -> None:
        self.blob.close()
        self._offsets.close()


def _read_rows(file: DamagedFile, first: int, width: int, positions: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Read rows of `width` bytes at positions; one read per run of consecutive ones."""
    rows = np.empty((len(positions), width), dtype=np.uint8)
    order = np.argsort(positions, kind="stable")
    ascending, end = positions[order].astype(np.int64), 0
    for run in np.split(ascending, np.flatnonzero(np.diff(ascending) != 1) + 1) if len(positions) else ():
        content = file.read_array(np.uint8, len(run) * width, first + int(run[0]) * width)
        rows[order[end : end + len(run)]] = content.reshape(len(run), width)
        end += len(run)
    return rows


def _find_match_end(blob: DamagedFile, pattern: re.Pattern[bytes], row: int, start: int) -> int | None:
    """Find the end of the string that starts at an offset, by its syntax."""
    size = MIN_READ_BYTES
    while True:
        content = blob.read(start, size)
        match = pattern.match(content)
        if match or len(content) < size or size > MAX_TEXT_BYTES:
            return start + match.end() if match else None
        size *= 8


def _drop_invalid_rows(order: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Replace invalid and repeated rows of an order by -1."""
    valid = np.where((order >= 0) & (order < len(order)), order, -1).astype(order.dtype)
    counts = np.bincount(valid[valid >= 0], minlength=len(order))
    valid[(valid >= 0) & (counts[valid] > 1)] = -1
    return valid


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


def list_lost_parts(bits: int) -> list[str]:
    """List the names of lost parts."""
    return [name for bit, name in PART_NAMES.items() if bits & bit]


def split_blocks(positions: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """Yield positions in blocks of ROWS_PER_BLOCK."""
    for start in range(0, len(positions), ROWS_PER_BLOCK):
        yield positions[start : start + ROWS_PER_BLOCK]
