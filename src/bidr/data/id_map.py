"""Compact id <-> row maps: concatenated id bytes, and 24 bytes per id to look up either way."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
import xxhash
from numpy.typing import NDArray

from bidr.utils.external_sort import ExternalSorter

HASH_RECORD = np.dtype([("hash", "<u8"), ("row", "<u8")])
IDS_PER_BLOCK, RECORDS_IN_MEMORY = 8_192, 1 << 20


class IdMap(Sequence[str]):
    """An immutable list of strings with a hash index from id to row."""

    def __init__(self, ids: Iterable[str]) -> None:
        """Store the ids in order. Duplicates are allowed: see `find_duplicate`."""
        blob, ends, hashes = bytearray(), [0], []
        end_blocks, hash_blocks = [], []
        for identifier in ids:
            content = identifier.encode()
            blob += content
            ends.append(len(blob))
            hashes.append(xxhash.xxh3_64_intdigest(content))
            # Lists of Python integers would take five times the memory of the arrays.
            if len(hashes) == 1 << 16:
                end_blocks.append(np.array(ends, dtype=np.int64))
                hash_blocks.append(np.array(hashes, dtype=np.uint64))
                ends, hashes = [], []
        self._blob = bytes(blob)
        self._ends = np.concatenate([*end_blocks, np.array(ends, dtype=np.int64)])
        unsorted = np.concatenate([*hash_blocks, np.array(hashes, dtype=np.uint64)])
        self._order = np.argsort(unsorted, kind="stable")
        self._hashes = unsorted[self._order]

    def __len__(self) -> int:
        return len(self._order)

    def fingerprint(self) -> str:
        """Hash the list of ids."""
        return str(xxhash.xxh3_128_hexdigest(self._blob + self._ends.tobytes()))

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            return [self[index] for index in range(*row.indices(len(self)))]
        count = len(self)
        if not -count <= row < count:
            raise IndexError(f"row {row} of {count}")
        row %= count
        return self._blob[self._ends[row] : self._ends[row + 1]].decode()

    def __contains__(self, identifier: object) -> bool:
        return isinstance(identifier, str) and self.find_row(identifier) is not None

    def find_row(self, identifier: str) -> int | None:
        """Return the first row with this id, or None."""
        digest = np.uint64(xxhash.xxh3_64_intdigest(identifier.encode()))
        slot = int(np.searchsorted(self._hashes, digest))
        while slot < len(self) and self._hashes[slot] == digest:
            if self[int(self._order[slot])] == identifier:
                return int(self._order[slot])
            slot += 1
        return None

    def find_rows(self, ids: Iterable[str]) -> NDArray[np.int64]:
        """Return the row of each id, -1 for an unknown one."""
        rows = map(self.find_row, ids)
        return np.fromiter((-1 if row is None else row for row in rows), dtype=np.int64)

    def find_duplicate(self) -> tuple[int, int] | None:
        """Return two rows with the same id, or None when all differ."""
        return find_duplicate_id(self._hashes, self._order, lambda rows: map(self.__getitem__, rows))


def find_duplicate_id(
    hashes: NDArray[Any], rows: NDArray[Any], get_ids: Callable[[Iterator[int]], Iterable[Hashable]]
) -> tuple[int, int] | None:
    """Return two rows with the same id, or None. Ids with equal hashes are compared themselves.

    Args:
        hashes: Sorted id hashes.
        rows: Rows of the hashes, ascending among equal hashes.
        get_ids: Yields the ids of ascending rows, lazily: for an id that all rows share, two are read.
    """
    equal = np.flatnonzero(hashes[1:] == hashes[:-1])
    for start in equal[np.diff(equal, prepend=-2) > 1]:
        end = np.searchsorted(hashes, hashes[start], side="right")
        first_rows: dict[Hashable, int] = {}
        for row, identifier in zip(map(int, rows[start:end]), get_ids(map(int, rows[start:end])), strict=False):
            first_row = first_rows.setdefault(identifier, row)
            if first_row != row:
                return first_row, row
    return None


class IdScan(NamedTuple):
    """Result of `scan_ids`: number and fingerprint of the ids, and two rows with the same id, if any."""

    rows: int
    fingerprint: str
    duplicate_rows: tuple[int, int] | None


def scan_ids(restart: Callable[[], Iterable[str]], scratch_parent: Path) -> IdScan:
    """Count, hash and check any number of ids in tens of MB of memory.

    Args:
        restart: Returns a new iteration over all ids.
        near: Path near which the temporary file of the external sort is created.
    """
    digest, stream = xxhash.xxh3_128(), iter(restart())
    with ExternalSorter(HASH_RECORD, scratch_parent, RECORDS_IN_MEMORY) as sorter:
        while block := [identifier.encode() for identifier in islice(stream, IDS_PER_BLOCK)]:
            records = np.empty(len(block), dtype=HASH_RECORD)
            records["hash"] = [xxhash.xxh3_64_intdigest(content) for content in block]
            records["row"] = np.arange(sorter.count, sorter.count + len(block))
            sorter.add(records)
            digest.update(b"".join(len(content).to_bytes(8, "little") + content for content in block))
        return IdScan(sorter.count, digest.hexdigest(), _find_duplicate(restart, sorter))


def _find_duplicate(restart: Callable[[], Iterable[str]], sorter: ExternalSorter) -> tuple[int, int] | None:
    for records in sorter.iter_buckets():
        ordered = records[np.argsort(records["hash"], kind="stable")]
        if rows := find_duplicate_id(ordered["hash"], ordered["row"], lambda rows: _select(restart(), rows)):
            return rows
    return None


def _select(ids: Iterable[str], rows: Iterator[int]) -> Iterator[str]:
    """Yield the ids of ascending rows."""
    stream, position = iter(ids), 0
    for row in rows:
        yield from islice(stream, row - position, row - position + 1)
        position = row + 1
