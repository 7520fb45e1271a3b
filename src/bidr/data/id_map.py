"""Many document ids in little memory: their bytes end to end, and 24 bytes each to find them by row and by id."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
import xxhash
from numpy.typing import NDArray

from bidr.utils.external_sort import ExternalSorter

RECORD = np.dtype([("hash", "<u8"), ("row", "<u8")])
AT_ONCE, HELD = 8_192, 1 << 20


class Ids(Sequence[str]):
    """An immutable list of strings that answers which row an id has."""

    def __init__(self, ids: Iterable[str]) -> None:
        """Take the ids in order. Two equal ones are allowed here: see `repeated`."""
        blob, ends, hashes = bytearray(), [0], []
        ends_parts, hash_parts = [], []
        for identifier in ids:
            content = identifier.encode()
            blob += content
            ends.append(len(blob))
            hashes.append(xxhash.xxh3_64_intdigest(content))
            # Lists of Python integers would be five times the arrays.
            if len(hashes) == 1 << 16:
                ends_parts.append(np.array(ends, dtype=np.int64))
                hash_parts.append(np.array(hashes, dtype=np.uint64))
                ends, hashes = [], []
        self._blob = bytes(blob)
        self._ends = np.concatenate([*ends_parts, np.array(ends, dtype=np.int64)])
        unsorted = np.concatenate([*hash_parts, np.array(hashes, dtype=np.uint64)])
        self._order = np.argsort(unsorted, kind="stable")
        self._hashes = unsorted[self._order]

    def __len__(self) -> int:
        return len(self._order)

    def fingerprint(self) -> str:
        """Tells lists of ids apart."""
        return str(xxhash.xxh3_128_hexdigest(self._blob + self._ends.tobytes()))

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            return [self[one] for one in range(*row.indices(len(self)))]
        count = len(self)
        if not -count <= row < count:
            raise IndexError(f"row {row} of {count}")
        row %= count
        return self._blob[self._ends[row] : self._ends[row + 1]].decode()

    def __contains__(self, identifier: object) -> bool:
        return isinstance(identifier, str) and self.row(identifier) is not None

    def row(self, identifier: str) -> int | None:
        """The first row with this id, or None."""
        digest = np.uint64(xxhash.xxh3_64_intdigest(identifier.encode()))
        at = int(np.searchsorted(self._hashes, digest))
        while at < len(self) and self._hashes[at] == digest:
            if self[int(self._order[at])] == identifier:
                return int(self._order[at])
            at += 1
        return None

    def rows(self, ids: Iterable[str]) -> NDArray[np.int64]:
        """The row of each id, -1 for one that is not here."""
        found = (self.row(identifier) for identifier in ids)
        return np.fromiter((-1 if row is None else row for row in found), dtype=np.int64)

    def repeated(self) -> tuple[int, int] | None:
        """Two rows with the same id, or None when all differ."""
        return same_id(self._hashes, self._order, lambda rows: map(self.__getitem__, rows))


def same_id(
    hashes: NDArray[Any], rows: NDArray[Any], ids_of: Callable[[Iterator[int]], Iterable[Hashable]]
) -> tuple[int, int] | None:
    """Two rows with the same id, or None; of equal hashes the ids themselves decide.

    hashes: sorted; rows: whose they are, rising where hashes are equal.
    ids_of: the ids of rising rows, looked up as far as they are needed: of an id that all share, two.
    """
    equal = np.flatnonzero(hashes[1:] == hashes[:-1])
    for start in equal[np.diff(equal, prepend=-2) > 1]:
        end = np.searchsorted(hashes, hashes[start], side="right")
        known: dict[Hashable, int] = {}
        for row, identifier in zip(map(int, rows[start:end]), ids_of(map(int, rows[start:end])), strict=False):
            before = known.setdefault(identifier, row)
            if before != row:
                return before, row
    return None


class Passed(NamedTuple):
    """Ids that passed by: how many, what tells them from others, and two rows with the same one where there are."""

    rows: int
    fingerprint: str
    repeated: tuple[int, int] | None


def pass_by(begin: Callable[[], Iterable[str]], near: Path) -> Passed:
    """Hash ids in bounded memory. `begin`: all of them, anew; `near`: the folder of an ExternalSorter."""
    digest, stream = xxhash.xxh3_128(), iter(begin())
    with ExternalSorter(RECORD, near, HELD) as spill:
        while some := [each.encode() for each in islice(stream, AT_ONCE)]:
            records = np.empty(len(some), dtype=RECORD)
            records["hash"] = [xxhash.xxh3_64_intdigest(each) for each in some]
            records["row"] = np.arange(spill.count, spill.count + len(some))
            spill.add(records)
            digest.update(b"".join(len(each).to_bytes(8, "little") + each for each in some))
        return Passed(spill.count, digest.hexdigest(), _same(begin, spill))


def _same(begin: Callable[[], Iterable[str]], spill: ExternalSorter) -> tuple[int, int] | None:
    for records in spill.iter_buckets():
        ordered = records[np.argsort(records["hash"], kind="stable")]
        if found := same_id(ordered["hash"], ordered["row"], lambda rows: _at(begin(), rows)):
            return found
    return None


def _at(ids: Iterable[str], rows: Iterator[int]) -> Iterator[str]:
    """Those that stand at rising rows."""
    stream, passed = iter(ids), 0
    for row in rows:
        yield from islice(stream, row - passed, row - passed + 1)
        passed = row + 1
