"""From an id to its row: sorted 64-bit hashes on disk, looked up by bisection, and the stored id decides."""

from array import array
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bidr.data.id_map import find_duplicate_id
from bidr.errors import REBUILD, DataError, IndexFolderError
from bidr.index.documents.string_file import FileFactory, StringStore
from bidr.index.storage.manifest import HasFiles
from bidr.index.storage.verified_mmap import CheckedArray
from bidr.index.vectors import write_npy_header
from bidr.utils.external_sort import ExternalSorter

HASHES, ROWS, IDS = "ids.hashes.npy", "ids.rows.npy", "ids"
HASH, ROW = np.dtype("<u8"), np.dtype("<u4")
RECORD = np.dtype([("hash", HASH), ("row", ROW)])
AT_ONCE, HELD = 8_192, 1 << 20
LONGEST_NUMBER = 20


class IdIndex:
    """The ids of a segment."""

    def __init__(self, folder: Path, manifest: HasFiles, count: int) -> None:
        self.count = count
        self._ids = StringStore(folder, IDS, manifest) if f"{IDS}.blob" in manifest.files else None
        self._sorted: _Sorted | _OnDisk | None = None
        if self._ids is None:
            return
        if len(self._ids) != count:
            raise IndexFolderError(f"{self._ids.path}: {len(self._ids):,} rows, expected {count:,}; {REBUILD}")
        if HASHES in manifest.files:
            self._sorted = _OnDisk(folder, manifest, count)
        else:  # an index from before ids could be looked up
            self._sorted = _Sorted(array("Q", (hash_string(self._text(row)) for row in range(count))))

    def find(self, name: str) -> int | None:
        """The row of an id, or None."""
        if self._ids is None or self._sorted is None:
            known = name.isascii() and name.isdecimal() and len(name) <= LONGEST_NUMBER and str(int(name)) == name
            return int(name) if known and int(name) < self.count else None
        for row in self._sorted.rows(hash_string(name)):
            if self._text(row) == name:
                return row
        return None

    def _text(self, row: int) -> str:
        assert self._ids is not None
        try:
            return self._ids.get(row).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise IndexFolderError(f"{self._ids.path}: row {row} is damaged ({error}); {REBUILD}") from error

    def close(self) -> None:
        if self._ids is not None:
            self._ids.close()
        if isinstance(self._sorted, _OnDisk):
            self._sorted.close()


class _OnDisk:
    """Hashes and rows in files. Where these have no checksums by block they are compared whole, however large."""

    def __init__(self, folder: Path, manifest: HasFiles, count: int) -> None:
        self._hashes = CheckedArray(folder, HASHES, HASH, manifest, whole=True)
        self._rows = CheckedArray(folder, ROWS, ROW, manifest, whole=True, below=count)
        for each in (self._hashes, self._rows):
            if len(each) != count:
                raise IndexFolderError(f"{each.path}: {len(each):,} numbers, expected {count:,}; {REBUILD}")

    def rows(self, wanted: int) -> Iterator[int]:
        """The rows whose ids have this hash: seldom more than one."""
        for place in range(int(self._hashes.find(np.array([wanted], dtype=HASH))[0]), len(self._hashes)):
            if self._hashes.some(place, 1) != [wanted]:
                return
            yield from self._rows.some(place, 1)

    def close(self) -> None:
        self._hashes.close()
        self._rows.close()


class _Sorted:
    """The same in memory."""

    def __init__(self, hashes: "array[int]") -> None:
        values = np.frombuffer(hashes, dtype=np.uint64)
        self._order = np.argsort(values, kind="stable")
        self._hashes = values[self._order]

    def rows(self, wanted: int) -> Iterator[int]:
        first, end = (np.searchsorted(self._hashes, np.uint64(wanted), side) for side in ("left", "right"))
        yield from self._order[first:end].tolist()


def hash_string(name: str) -> int:
    from xxhash import xxh3_64_intdigest

    return xxh3_64_intdigest(name.encode("utf-8", "surrogatepass"))


class IdIndexWriter:
    """Writes what `Names` looks ids up by, from ids in the order of their rows.

    Ids are compared by their 64-bit hashes, sorted in bounded memory; of equal hashes the ids themselves decide.
    """

    def __init__(self, folder: Path) -> None:
        """`folder`: where the ids are written too, before `write` is called; and what does not fit memory."""
        self.folder = folder
        self._spill, self._waiting = ExternalSorter(RECORD, folder, HELD), array("Q")

    def append(self, name: str) -> None:
        self._waiting.append(hash_string(name))
        if len(self._waiting) == AT_ONCE:
            self._move()

    def write(self, create: FileFactory, count: int) -> None:
        """Write the files; refuse another number of ids than `count`, and an id given twice."""
        self._move()
        if self._spill.count != count:
            given = f"documents: {self._spill.count:,} given, but codes for {count:,}"
            raise DataError(f"{given}; give the corpus that was encoded")
        with self._spill, closing(StringStore(self.folder, IDS)) as ids, create(HASHES) as hashes, create(ROWS) as rows:
            write_npy_header(hashes, HASH, (count,))
            write_npy_header(rows, ROW, (count,))
            for records in self._spill.iter_buckets():
                ordered = records[np.argsort(records["hash"], kind="stable")]
                _refuse_repeated(ordered, ids)
                hashes.write(ordered["hash"].tobytes())
                rows.write(ordered["row"].tobytes())

    def _move(self) -> None:
        records = np.empty(len(self._waiting), dtype=RECORD)
        records["hash"] = np.frombuffer(self._waiting, dtype=np.uint64)
        records["row"] = np.arange(self._spill.count, self._spill.count + len(records))
        self._spill.add(records)
        self._waiting = array("Q")


def _refuse_repeated(ordered: npt.NDArray[Any], ids: StringStore) -> None:
    same = find_duplicate_id(ordered["hash"], ordered["row"], lambda rows: map(ids.get, rows))
    if same:
        raise DataError(
            f"documents: rows {same[0]:,} and {same[1]:,} have the same id; make ids unique, or leave one out"
        )
