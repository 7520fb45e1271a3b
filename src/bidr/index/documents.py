"""What a row is called and what it says: ids and texts on disk, read row by row."""

import json
import mmap
from array import array
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self

import numpy as np

from bidr.errors import DataError, IndexFolderError
from bidr.index.candidates import Rows
from bidr.index.folder import REBUILD
from bidr.index.vectors import Out, read_npy_header, write_npy_header
from bidr.text.records import Document

IDS, DOCUMENTS = "ids", "documents"
OFFSET = np.dtype("<u8")


class Lines:
    """Strings by row: one file with all of them end to end, one with where each starts. Neither is held in RAM."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f"{name}.blob"
        offsets = folder / f"{name}.offsets.npy"
        shape, start = read_npy_header(offsets, OFFSET, dimensions=1)
        self._offsets_map = _map(offsets)
        self._offsets = np.frombuffer(self._offsets_map, dtype=OFFSET, count=shape[0], offset=start)
        self._blob = _map(self.path)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def get(self, row: int) -> bytes:
        if not 0 <= row < len(self):
            raise DataError(f"row {row} asked for, expected 0 to {len(self) - 1}")
        start, end = int(self._offsets[row]), int(self._offsets[row + 1])
        if not start <= end <= len(self._blob):
            raise IndexFolderError(f"{self.path}: row {row} is said to lie at {start} to {end}; damaged; {REBUILD}")
        return self._blob[start:end]

    def close(self) -> None:
        self._offsets = np.zeros(1, dtype=OFFSET)
        self._offsets_map.close()
        self._blob.close()


class DocumentFile:
    """Ids and, where the index has them, the texts of documents. Without ids a row's number is its id."""

    def __init__(self, count: int, ids: Lines | None, documents: Lines | None) -> None:
        self.count, self._ids, self._documents = count, ids, documents

    @classmethod
    def open(cls, folder: Path, count: int, *, ids: bool, documents: bool) -> Self:
        """Open what is there; a count that differs from the index is damage."""
        stores = [Lines(folder, name) if there else None for name, there in ((IDS, ids), (DOCUMENTS, documents))]
        for store in stores:
            if store is not None and len(store) != count:
                raise IndexFolderError(f"{store.path}: {len(store):,} rows, expected {count:,}; {REBUILD}")
        return cls(count, *stores)

    @property
    def has_text(self) -> bool:
        return self._documents is not None

    def id(self, row: int) -> str:
        if self._ids is None:
            if not 0 <= row < self.count:
                raise DataError(f"row {row} asked for, expected 0 to {self.count - 1}")
            return str(row)
        return self._decode(self._ids, row)

    def ids(self, rows: Rows | Iterable[int]) -> list[str]:
        """Ids of many rows."""
        return [self.id(int(row)) for row in rows]

    def document(self, row: int) -> Document | None:
        """A document with its text, or None where the index was built from arrays alone."""
        if self._documents is None:
            return None
        try:
            title, text = json.loads(self._decode(self._documents, row))
            return Document(self.id(row), str(title), str(text))
        except (ValueError, TypeError) as error:
            raise IndexFolderError(f"{self._documents.path}: row {row} is damaged ({error}); {REBUILD}") from error

    def close(self) -> None:
        for store in (self._ids, self._documents):
            if store is not None:
                store.close()

    @staticmethod
    def _decode(store: Lines, row: int) -> str:
        try:
            return store.get(row).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise IndexFolderError(f"{store.path}: row {row} is damaged ({error}); {REBUILD}") from error


NewFile = Callable[[str], AbstractContextManager[Out]]


class _LinesWriter:
    """Appends strings to a blob and remembers where each starts."""

    def __init__(self, out: Out) -> None:
        self.out, self.offsets = out, array("Q", [0])

    def append(self, line: str) -> None:
        content = line.encode("utf-8", "surrogatepass")
        self.out.write(content)
        self.offsets.append(self.offsets[-1] + len(content))

    def write_offsets(self, out: Out) -> None:
        write_npy_header(out, OFFSET, (len(self.offsets),))
        out.write(np.frombuffer(self.offsets, dtype=np.uint64).astype(OFFSET).data.cast("B"))


def write_ids(create: NewFile, ids: Iterable[str], count: int, advance: Callable[[int], None]) -> None:
    """Write ids in the order of the rows; refuse another number of them, and an id given twice."""
    with create(f"{IDS}.blob") as blob:
        lines, hashes = _LinesWriter(blob), array("Q")
        for row, name in enumerate(ids):
            _check_id(name, row, count)
            lines.append(name)
            hashes.append(_hash(name))
            advance(1)
    _check_all(hashes, count)
    with create(f"{IDS}.offsets.npy") as out:
        lines.write_offsets(out)


def write_documents(create: NewFile, documents: Iterable[Document], count: int, advance: Callable[[int], None]) -> None:
    """Write ids and texts, in one pass over the documents."""
    with create(f"{IDS}.blob") as id_blob, create(f"{DOCUMENTS}.blob") as text_blob:
        ids, texts, hashes = _LinesWriter(id_blob), _LinesWriter(text_blob), array("Q")
        for row, document in enumerate(documents):
            _check_id(document.id, row, count)
            ids.append(document.id)
            texts.append(json.dumps([document.title, document.text], ensure_ascii=False))
            hashes.append(_hash(document.id))
            advance(1)
    _check_all(hashes, count)
    for name, lines in ((IDS, ids), (DOCUMENTS, texts)):
        with create(f"{name}.offsets.npy") as out:
            lines.write_offsets(out)


def _hash(name: str) -> int:
    from xxhash import xxh3_64_intdigest

    return xxh3_64_intdigest(name.encode("utf-8", "surrogatepass"))


def _check_id(name: str, row: int, count: int) -> None:
    if row >= count:
        raise DataError(f"documents: more than the {count:,} that have codes; give the corpus that was encoded")
    if not isinstance(name, str) or not name:
        raise DataError(f"documents: row {row:,} has the id {name!r}, expected a string that is not empty")


def _check_all(hashes: "array[int]", count: int) -> None:
    """Ids are compared by their 64-bit hashes: 8 bytes a document instead of all ids in RAM."""
    if len(hashes) != count:
        raise DataError(f"documents: {len(hashes):,} given, but codes for {count:,}; give the corpus that was encoded")
    values = np.frombuffer(hashes, dtype=np.uint64)
    order = np.argsort(values, kind="stable")
    same = np.flatnonzero(values[order[1:]] == values[order[:-1]])
    if len(same):
        first, second = int(order[same[0]]), int(order[same[0] + 1])
        raise DataError(f"documents: rows {first:,} and {second:,} have the same id; make ids unique, or leave one out")


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as opened:
            mapped = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
    except (OSError, ValueError) as error:
        raise IndexFolderError(f"{path}: cannot be read ({error}); {REBUILD}") from error
    mapped.madvise(mmap.MADV_RANDOM)
    return mapped
