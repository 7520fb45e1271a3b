"""Find the row of an id: binary search in sorted 64-bit hashes on disk, then comparison with the stored id."""

from array import array
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bidr.data.id_map import find_duplicate_id
from bidr.errors import REBUILD, DataError, IndexFolderError
from bidr.index.documents.string_store import FileFactory, StringStore
from bidr.index.storage.checksums import VerifiedArray
from bidr.index.storage.manifest import HasFiles
from bidr.index.vectors import write_npy_header
from bidr.utils.external_sort import ExternalSorter

HASHES, ROWS, IDS = "ids.hashes.npy", "ids.rows.npy", "ids"
HASH, ROW = np.dtype("<u8"), np.dtype("<u4")
RECORD = np.dtype([("hash", HASH), ("row", ROW)])
IDS_PER_BLOCK, RECORDS_IN_MEMORY = 8_192, 1 << 20
MAX_DIGITS = 20


class IdIndex:
    """Finds rows of a segment by id. Without stored ids, the decimal row number is the id."""

    def __init__(self, folder: Path, manifest: HasFiles, count: int) -> None:
        self.count = count
        self._ids = StringStore(folder, IDS, manifest) if f"{IDS}.blob" in manifest.files else None
        self._hashes: _MemoryHashes | _DiskHashes | None = None
        if self._ids is None:
            return
        if len(self._ids) != count:
            raise IndexFolderError(f"{self._ids.path}: {len(self._ids):,} rows, expected {count:,}; {REBUILD}")
        if HASHES in manifest.files:
            self._hashes = _DiskHashes(folder, manifest, count)
        else:  # an index format without hashes
            self._hashes = _MemoryHashes(array("Q", (hash_string(self._read_id(row)) for row in range(count))))

    def find(self, name: str) -> int | None:
        """The row of an id, or None."""
        if self._ids is None:
            is_number = name.isascii() and name.isdecimal() and len(name) <= MAX_DIGITS and str(int(name)) == name
            return int(name) if is_number and int(name) < self.count else None
        assert self._hashes is not None
        for row in self._hashes.find_rows(hash_string(name)):
            if self._read_id(row) == name:
                return row
        return None

    def iter_sorted(self, digest: int) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
        """Yield blocks of hashes from `digest` on, ascending, and their rows.

        Where no hashes are stored, they are computed and held, 12 bytes per document.
        """
        if self._hashes is None:
            self._hashes = _MemoryHashes(array("Q", (hash_string(str(row)) for row in range(self.count))))
        return self._hashes.iter_blocks(digest)

    def _read_id(self, row: int) -> str:
        assert self._ids is not None
        try:
            return self._ids.get(row).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise IndexFolderError(f"{self._ids.path}: row {row} is damaged ({error}); {REBUILD}") from error

    def close(self) -> None:
        if self._ids is not None:
            self._ids.close()
        if isinstance(self._hashes, _DiskHashes):
            self._hashes.close()


class _DiskHashes:
    """Hashes and rows in files. Without block checksums, a file is verified as a whole."""

    def __init__(self, folder: Path, manifest: HasFiles, count: int) -> None:
        self._hashes = VerifiedArray(folder, HASHES, HASH, manifest, verify_whole_file=True)
        self._rows = VerifiedArray(folder, ROWS, ROW, manifest, verify_whole_file=True, below=count)
        for numbers in (self._hashes, self._rows):
            if len(numbers) != count:
                raise IndexFolderError(f"{numbers.path}: {len(numbers):,} numbers, expected {count:,}; {REBUILD}")

    def find_rows(self, digest: int) -> Iterator[int]:
        """Yield the rows whose ids have a hash, rarely more than one."""
        for position in range(int(self._hashes.find(np.array([digest], dtype=HASH))[0]), len(self._hashes)):
            if self._hashes.read_slice(position, 1) != [digest]:
                return
            yield from self._rows.read_slice(position, 1)

    def iter_blocks(self, digest: int) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
        first = int(self._hashes.find(np.array([digest], dtype=HASH))[0])
        for start in range(first, len(self._hashes), IDS_PER_BLOCK):
            count = min(IDS_PER_BLOCK, len(self._hashes) - start)
            hashes, rows = self._hashes.read_slice(start, count), self._rows.read_slice(start, count)
            yield np.array(hashes, dtype=HASH), np.array(rows, dtype=np.int64)

    def close(self) -> None:
        self._hashes.close()
        self._rows.close()


class _MemoryHashes:
    """Hashes and rows in memory."""

    def __init__(self, hashes: "array[int]") -> None:
        values = np.frombuffer(hashes, dtype=np.uint64)
        self._order = np.argsort(values, kind="stable").astype(ROW)
        self._hashes = values[self._order]

    def iter_blocks(self, digest: int) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
        for start in range(int(np.searchsorted(self._hashes, np.uint64(digest))), len(self._hashes), IDS_PER_BLOCK):
            block = slice(start, start + IDS_PER_BLOCK)
            yield self._hashes[block], self._order[block].astype(np.int64)

    def find_rows(self, digest: int) -> Iterator[int]:
        first, end = (np.searchsorted(self._hashes, np.uint64(digest), side) for side in ("left", "right"))
        yield from self._order[first:end].tolist()


def hash_string(name: str) -> int:
    from xxhash import xxh3_64_intdigest

    return xxh3_64_intdigest(name.encode("utf-8", "surrogatepass"))


class IdIndexWriter:
    """Writes the files of `IdIndex` from ids in row order, and refuses duplicates.

    The 64-bit hashes of ids are sorted in bounded memory; ids with equal hashes are compared.
    """

    def __init__(self, folder: Path) -> None:
        """`folder`: where the caller writes the ids before `write`, and where hashes are spilled."""
        self.folder = folder
        self._sorter, self._buffer = ExternalSorter(RECORD, folder, RECORDS_IN_MEMORY), array("Q")

    def append(self, name: str) -> None:
        self._buffer.append(hash_string(name))
        if len(self._buffer) == IDS_PER_BLOCK:
            self._flush()

    def write(self, create: FileFactory, count: int) -> None:
        """Write the files; refuse a number of ids other than `count`, and duplicates."""
        self._flush()
        if self._sorter.count != count:
            raise DataError(
                f"documents: {self._sorter.count:,} given, but codes for {count:,}; give the corpus that was encoded"
            )
        with (
            self._sorter,
            closing(StringStore(self.folder, IDS)) as ids,
            create(HASHES) as hashes,
            create(ROWS) as rows,
        ):
            write_npy_header(hashes, HASH, (count,))
            write_npy_header(rows, ROW, (count,))
            for records in self._sorter.iter_buckets():
                ordered = records[np.argsort(records["hash"], kind="stable")]
                _refuse_duplicates(ordered, ids)
                hashes.write(ordered["hash"].tobytes())
                rows.write(ordered["row"].tobytes())

    def _flush(self) -> None:
        records = np.empty(len(self._buffer), dtype=RECORD)
        records["hash"] = np.frombuffer(self._buffer, dtype=np.uint64)
        records["row"] = np.arange(self._sorter.count, self._sorter.count + len(records))
        self._sorter.add(records)
        self._buffer = array("Q")


def _refuse_duplicates(ordered: npt.NDArray[Any], ids: StringStore) -> None:
    duplicate = find_duplicate_id(ordered["hash"], ordered["row"], lambda rows: map(ids.get, rows))
    if duplicate:
        raise DataError(
            f"documents: rows {duplicate[0]:,} and {duplicate[1]:,} have the same id; make ids unique, or leave one out"
        )
