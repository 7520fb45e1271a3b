"""The write-ahead log: one record a commit, durable before it is acknowledged.

log            a head, then records: length, checksum over the record and the one before it, content. It only grows.
acknowledged   how many bytes of the log are durable, with a checksum. Overwritten after each flush of the log.

A record within what was acknowledged that is missing or damaged is an error. What follows it is taken as far as it is
whole, and a rest that is not is what a writer that was cut off left: it is left out. `acknowledged` is not flushed
itself: at worst it says too little, and it never says more than the log holds. (It is taken that a disk writes 32 bytes
within one sector whole or not at all, as databases take it of their control files.)
"""

import os
import struct
from collections.abc import Sequence
from pathlib import Path

from bidr.errors import REBUILD, IndexFolderError
from bidr.files import NewFile, open_regular, storage_errors, write_all

LOG, ACKNOWLEDGED = "log", "acknowledged"
MAGIC = b"bidr log 1\n"
RECORD = struct.Struct("<IQ")
MARK = struct.Struct("<16sQQ")
MARK_MAGIC = b"bidr log durable"
TRIES = 50


def head(name: str) -> bytes:
    """What the log of a state begins with."""
    return MAGIC + name.encode() + b"\n"


def start(name: str) -> tuple[int, int]:
    """Where the first record begins, and the checksum that it continues."""
    return len(head(name)), _hash(head(name), 0)


def packed(content: bytes, chain: int) -> tuple[bytes, int]:
    """A record, and the checksum that the next one continues."""
    length = len(content).to_bytes(4, "little")
    digest = _hash(length + content, chain)
    return RECORD.pack(len(content), digest) + content, digest


def mark(end: int) -> bytes:
    """The content of `acknowledged`."""
    return MARK.pack(MARK_MAGIC, end, _hash(MARK_MAGIC + end.to_bytes(8, "little"), 0))


def _hash(content: bytes, seed: int) -> int:
    from xxhash import xxh3_64_intdigest

    return xxh3_64_intdigest(content, seed=seed)


class LogReader:
    """Reads a log from where it stopped before. Keeps its files open: a state may be removed while it is read."""

    def __init__(self, state: Path) -> None:
        self.path = state / LOG
        self._log, self._mark = _open(self.path), _open(state / ACKNOWLEDGED)
        self.end, self.chain = start(state.name)
        self.rest = 0
        if os.pread(self._log, self.end, 0) != head(state.name):
            self.close()
            raise IndexFolderError(f"{self.path}: damaged, it does not begin as the log of {state.name}; {REBUILD}")

    def grown(self) -> bool:
        """Whether there is more than was read."""
        return os.fstat(self._log).st_size > self.end

    def read(self) -> list[bytes]:
        """The records that came since the last call; `rest` bytes after them are no whole record."""
        durable = self._durable()
        size = os.fstat(self._log).st_size
        if size < max(durable, self.end):
            raise IndexFolderError(f"{self.path}: {size:,} bytes, expected {max(durable, self.end):,}; {REBUILD}")
        content = _read(self._log, size - self.end, self.end)
        records: list[bytes] = []
        place = 0
        while place + RECORD.size <= len(content):
            length, digest = RECORD.unpack_from(content, place)
            body = content[place + RECORD.size : place + RECORD.size + length]
            if not length or len(body) < length or _hash(content[place : place + 4] + body, self.chain) != digest:
                break
            records.append(body)
            place += RECORD.size + length
            self.chain = digest
        self.end += place
        self.rest = len(content) - place
        if self.end < durable:
            raise IndexFolderError(
                f"{self.path}: damaged at byte {self.end:,}, though {durable:,} bytes were acknowledged; {REBUILD}"
            )
        return records

    def _durable(self) -> int:
        for _ in range(TRIES):  # a writer may be at it in this very moment
            content = os.pread(self._mark, MARK.size + 1, 0)
            if len(content) == MARK.size and mark(int.from_bytes(content[16:24], "little")) == content:
                return int.from_bytes(content[16:24], "little")
        raise IndexFolderError(f"{self.path.with_name(ACKNOWLEDGED)}: damaged, it holds {content!r}; {REBUILD}")

    def close(self) -> None:
        for handle in (self._log, self._mark):
            if handle >= 0:
                os.close(handle)
        self._log = self._mark = -1

    def __del__(self) -> None:
        if getattr(self, "_mark", -1) >= 0:
            self.close()


class LogWriter:
    """Appends to the log of a state. After a failure it takes no more: what the disk then holds is not known."""

    def __init__(self, state: Path, end: int, chain: int) -> None:
        self.path, self.end, self.chain, self.broken = state / LOG, end, chain, False
        with storage_errors(self.path):
            self._log = open_regular(self.path, os.O_WRONLY | os.O_APPEND)
            self._mark = open_regular(state / ACKNOWLEDGED, os.O_WRONLY)

    def append(self, contents: list[bytes]) -> None:
        """Write records and return when they are durable."""
        try:
            with storage_errors(self.path):
                chain, records = self.chain, []
                for content in contents:
                    record, chain = packed(content, chain)
                    records.append(record)
                whole = b"".join(records)
                write_all(self._log, whole)
                os.fsync(self._log)
                self.end, self.chain = self.end + len(whole), chain
                self.acknowledge()
        except BaseException:
            self.broken = True
            raise

    def acknowledge(self) -> None:
        """Note that everything so far is durable."""
        os.pwrite(self._mark, mark(self.end), 0)

    def settle(self) -> None:
        """Make durable what is there: records that a killed writer wrote may be in the system's memory alone."""
        with storage_errors(self.path):
            os.fsync(self._log)
            self.acknowledge()

    def close(self) -> None:
        os.close(self._log)
        os.close(self._mark)


def write_log(state: Path, name: str, records: Sequence[bytes] = ()) -> None:
    """The files of a log, with some records in it, in a state that is not in force yet."""
    content, chain = head(name), start(name)[1]
    for body in records:
        record, chain = packed(body, chain)
        content += record
    for file, whole in ((LOG, content), (ACKNOWLEDGED, mark(len(content)))):
        with storage_errors(state / file), NewFile(state / file) as out:
            out.write(whole)


def _read(handle: int, size: int, place: int) -> bytes:
    """All of so many bytes, or as many as there are: the system gives 2 GiB at most at a time."""
    parts = []
    while size > 0 and (part := os.pread(handle, size, place)):
        parts.append(part)
        size, place = size - len(part), place + len(part)
    return b"".join(parts)


def _open(path: Path) -> int:
    try:
        return open_regular(path, os.O_RDONLY, follow=True)
    except OSError as error:
        raise IndexFolderError(f"{path}: cannot be read ({error.strerror}); {REBUILD}") from error
