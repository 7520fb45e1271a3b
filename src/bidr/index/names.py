"""From an id to its row: sorted 64-bit hashes on disk, looked up by bisection, and the stored id decides."""

from array import array
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bidr.errors import DataError
from bidr.index.folder import HasFiles, check_content
from bidr.index.lines import Lines, NewFile
from bidr.index.vectors import read_npy_header, write_npy_header

HASHES, ROWS, IDS = "ids.hashes.npy", "ids.rows.npy", "ids"
HASH, ROW = np.dtype("<u8"), np.dtype("<u4")


class Names:
    """The ids of a segment. What the files hold is checked whole on opening: a wrong byte would hide a document."""

    def __init__(self, folder: Path, manifest: HasFiles, count: int) -> None:
        self.count = count
        self._ids = Lines(folder, IDS) if f"{IDS}.blob" in manifest.files else None
        if self._ids is None:
            return
        if HASHES in manifest.files:
            for name in (HASHES, ROWS):
                check_content(folder, manifest, name)
            self._hashes, self._rows = (_mapped(folder / name, kind) for name, kind in ((HASHES, HASH), (ROWS, ROW)))
        else:  # an index from before ids could be looked up
            hashes = array("Q", (hash_of(_text(self._ids.get(row))) for row in range(count)))
            self._hashes, self._rows = _sorted(hashes)

    def find(self, name: str) -> int | None:
        """The row of an id, or None."""
        if self._ids is None:
            known = name.isascii() and name.isdecimal() and str(int(name)) == name and int(name) < self.count
            return int(name) if known else None
        wanted = np.uint64(hash_of(name))
        for place in range(int(np.searchsorted(self._hashes, wanted)), self.count):
            if self._hashes[place] != wanted:
                return None
            row = int(self._rows[place])
            if _text(self._ids.get(row)) == name:
                return row
        return None

    def close(self) -> None:
        if self._ids is not None:
            self._ids.close()


def hash_of(name: str) -> int:
    from xxhash import xxh3_64_intdigest

    return xxh3_64_intdigest(name.encode("utf-8", "surrogatepass"))


def write_hashes(create: NewFile, hashes: "array[int]") -> None:
    """Write what `Names` looks ids up by."""
    for name, values in zip((HASHES, ROWS), _sorted(hashes), strict=True):
        with create(name) as out:
            write_npy_header(out, values.dtype, values.shape)
            out.write(np.ascontiguousarray(values).data.cast("B"))


def check_all(hashes: "array[int]", count: int) -> None:
    """Ids are compared by their 64-bit hashes: 8 bytes a document instead of all ids in RAM."""
    if len(hashes) != count:
        raise DataError(f"documents: {len(hashes):,} given, but codes for {count:,}; give the corpus that was encoded")
    values = np.frombuffer(hashes, dtype=np.uint64)
    order = np.argsort(values, kind="stable")
    same = np.flatnonzero(values[order[1:]] == values[order[:-1]])
    if len(same):
        first, second = int(order[same[0]]), int(order[same[0] + 1])
        raise DataError(f"documents: rows {first:,} and {second:,} have the same id; make ids unique, or leave one out")


def _sorted(hashes: "array[int]") -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    values = np.frombuffer(hashes, dtype=np.uint64)
    order = np.argsort(values, kind="stable")
    return values[order].astype(HASH), order.astype(ROW)


def _mapped(path: Path, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    shape, start = read_npy_header(path, dtype, dimensions=1)
    mapped: npt.NDArray[Any] = np.memmap(path, dtype=dtype, mode="r", offset=start, shape=shape)
    return mapped


def _text(content: bytes) -> str:
    return content.decode("utf-8", "surrogatepass")
