"""Many document ids in little memory: their bytes end to end, and 24 bytes each to find them by row and by id."""

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import numpy as np
import xxhash
from numpy.typing import NDArray


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
        return next(self._repeated(), None)

    def _repeated(self) -> Iterator[tuple[int, int]]:
        for at in np.flatnonzero(self._hashes[1:] == self._hashes[:-1]):
            first, second = int(self._order[at]), int(self._order[at + 1])
            if self[first] == self[second]:
                yield first, second
