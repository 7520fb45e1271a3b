"""The write-ahead log: one record a commit, durable before it is acknowledged.

log            a head, then records: length, checksum over the record and the one before it, content. It only grows.
acknowledged   how many bytes of the log are durable, with a checksum. Overwritten after each flush of the log. A writer
               holds a lock on it for as long as it may append.

A record within what was acknowledged that is missing or damaged is an error. Records after it:

- While a writer holds the lock they do not count: their flush is not over, or it failed.
- Where none does, they count as far as they are whole: a killed writer, or a power cut, kept `acknowledged` from saying
  so. A rest that is not whole is what a writer that was cut off left.
- Where `acknowledged` says that the log is sealed they never count: their flush failed and they were refused.

After a failed write or flush a log takes no more. Linux reports that it could not write pages once, and may then drop
them: what is read back may not be on the disk, and the next flush says that all is well.

`acknowledged` is not flushed itself: at worst it says too little, and it never says more than the log holds. (It is
taken that a disk writes 32 bytes within one sector whole or not at all, as databases take it of their control files.)
"""

import fcntl
import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from bidr.errors import REBUILD, IndexFolderError, StorageError
from bidr.utils.files import (
    BUFFER_BYTES,
    IrregularFileError,
    NewFile,
    check_regular,
    open_regular,
    storage_errors,
    write_all,
)
from bidr.utils.fork import close_in_children

LOG, ACKNOWLEDGED = "log", "acknowledged"
MAGIC = b"bidr log 1\n"
RECORD = struct.Struct("<IQ")
MARK = struct.Struct("<16sQQ")
MARK_MAGIC, SEALED_MAGIC = b"bidr log durable", b"bidr log sealed!"
TRIES = 50
AT_ONCE = 16 << 20
"""Bytes up to which a record is held before it is known to be whole."""
# struct flock of 64-bit systems: type, whence, start, length (0: all), process.
FLOCK = struct.Struct("@hhqqi0q")


class Mark(NamedTuple):
    """What `acknowledged` says. `sealed`: what follows `end` was refused, and nothing more is appended."""

    end: int
    sealed: bool = False


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


def mark(end: int, *, sealed: bool = False) -> bytes:
    """The content of `acknowledged`."""
    magic = SEALED_MAGIC if sealed else MARK_MAGIC
    return MARK.pack(magic, end, _hash(magic + end.to_bytes(8, "little"), 0))


def parse_mark(content: bytes) -> Mark | None:
    """What the content of `acknowledged` says; None where it is damaged."""
    end = int.from_bytes(content[16:24], "little")
    return next((Mark(end, sealed) for sealed in (False, True) if mark(end, sealed=sealed) == content), None)


def _hash(content: bytes, seed: int) -> int:
    from xxhash import xxh3_64_intdigest

    return xxh3_64_intdigest(content, seed=seed)


class LogReader:
    """Reads a log from where it stopped before. Keeps its files open: a state may be removed while it is read."""

    def __init__(self, state: Path) -> None:
        self.path, self._log, self._mark = state / LOG, -1, -1
        self._log = _open(self.path)
        self._mark = _open(state / ACKNOWLEDGED)
        self.end, self.chain = start(state.name)
        self.marked = Mark(self.end)
        self.rest = 0
        if os.pread(self._log, self.end, 0) != head(state.name):
            self.close()
            raise IndexFolderError(f"{self.path}: damaged, it does not begin as the log of {state.name}; {REBUILD}")

    def grown(self) -> bool:
        """Whether there is more than was read."""
        return os.fstat(self._log).st_size > self.end

    @property
    def unconfirmed(self) -> bool:
        """Whether records were read that no writer acknowledged: they may be in the system's memory alone."""
        return self.end > self.marked.end

    @property
    def appendable(self) -> bool:
        """Whether all that the log holds was read and is durable, so that a writer may go on with it."""
        return not (self.grown() or self.unconfirmed or self.marked.sealed)

    def read(self) -> list[bytes]:
        """The records that came since the last call; `rest` bytes after them are no whole record."""
        for _ in range(TRIES):
            marked, size = self._read_mark(), os.fstat(self._log).st_size
            least, before = max(marked.end, self.end), (self.end, self.chain)
            if size < least:
                raise IndexFolderError(f"{self.path}: {size:,} bytes, expected {least:,}; {REBUILD}")
            counted = least if marked.sealed or _is_claimed(self._mark) else size
            records: list[bytes] = []
            while (body := self._record(counted)) is not None:
                records.append(body)
            if self.end < marked.end:
                raise IndexFolderError(
                    f"{self.path}: damaged at byte {self.end:,}, though {marked.end:,} bytes were acknowledged; "
                    f"{REBUILD}"
                )
            # No writer was there before records after the mark were read. Was none there since, either?
            if self.end == least or not (_is_claimed(self._mark) or self._read_mark() != marked):
                self.marked, self.rest = marked, counted - self.end
                return records
            self.end, self.chain = before
        raise IndexFolderError(f"{self.path}: writers came and went all the while it was read; try again")

    def _record(self, size: int) -> bytes | None:
        """The next record of a log of this size; None where there is no whole one.

        A log may be longer than memory, where it is all holes: no more of it is held than a record that is whole.
        """
        head = os.pread(self._log, RECORD.size, self.end)
        length, digest = RECORD.unpack(head) if len(head) == RECORD.size else (0, 0)
        start = self.end + RECORD.size
        if not length or start + length > size:
            return None
        if length > AT_ONCE and self._digest(head[:4], start, length) != digest:
            return None
        body = _read(self._log, length, start)
        if len(body) < length or (length <= AT_ONCE and _hash(head[:4] + body, self.chain) != digest):
            return None
        self.end, self.chain = start + length, digest
        return body

    def _digest(self, head: bytes, start: int, length: int) -> int:
        """The checksum of a record, read in pieces."""
        from xxhash import xxh3_64

        digest = xxh3_64(head, seed=self.chain)
        for place in range(start, start + length, BUFFER_BYTES):
            digest.update(_read(self._log, min(BUFFER_BYTES, start + length - place), place))
        return int(digest.intdigest())

    def _read_mark(self) -> Mark:
        for _ in range(TRIES):  # a writer may be at it in this very moment
            content = os.pread(self._mark, MARK.size + 1, 0)
            if (acknowledged := parse_mark(content)) is not None:
                return acknowledged
        raise IndexFolderError(f"{self.path.with_name(ACKNOWLEDGED)}: damaged, it holds {content!r}; {REBUILD}")

    def close(self) -> None:
        for handle in (self._log, self._mark):
            if handle >= 0:
                os.close(handle)
        self._log = self._mark = -1

    def __del__(self) -> None:
        self.close()


class LogWriter:
    """Appends to the log of a state. After a failure it takes no more: what the disk then holds is not known."""

    def __init__(self, state: Path, end: int, chain: int) -> None:
        self._process, self._log, self._mark = os.getpid(), -1, -1
        self.path, self.end, self.chain, self.broken = state / LOG, end, chain, False
        close_in_children(self)
        try:
            with storage_errors(self.path):
                self._log = open_regular(self.path, os.O_WRONLY | os.O_APPEND)
                self._mark = open_regular(state / ACKNOWLEDGED, os.O_WRONLY)
        except IrregularFileError as error:  # not to be removed, as a lock file is: it may name the only copy
            raise StorageError(f"{error.filename}: {error.strerror}; put a copy of the file itself there") from error
        _set_claim(self._mark, fcntl.F_WRLCK)

    def append(self, contents: list[bytes]) -> None:
        """Write records and return when they are durable."""
        try:
            with storage_errors(self.path):
                chain, records = self.chain, []
                for content in contents:
                    record, chain = packed(content, chain)
                    records.append(record)
                batch = b"".join(records)
                write_all(self._log, batch)
                os.fsync(self._log)
                os.pwrite(self._mark, mark(self.end + len(batch)), 0)
                self.end, self.chain = self.end + len(batch), chain
        except BaseException:
            self.broken = True
            raise

    def seal(self) -> None:
        """Say that what follows the acknowledged records was refused, as far as the disk lets it be said."""
        self.broken = True
        with suppress(OSError):
            os.pwrite(self._mark, mark(self.end, sealed=True), 0)

    def close(self) -> None:
        """Let go of the log. In a forked child the lock stays: it is the parent's."""
        handles, self._log, self._mark = (self._log, self._mark), -1, -1
        if handles[1] >= 0 and os.getpid() == self._process:
            _set_claim(handles[1], fcntl.F_UNLCK)
        for handle in handles:
            if handle >= 0:
                os.close(handle)

    def __del__(self) -> None:
        self.close()


def write_log(state: Path, name: str, records: Sequence[bytes] = ()) -> None:
    """The files of a log, with some records in it, in a state that is not in force yet."""
    content, chain = head(name), start(name)[1]
    for body in records:
        record, chain = packed(body, chain)
        content += record
    for file, whole in ((LOG, content), (ACKNOWLEDGED, mark(len(content)))):
        with storage_errors(state / file), NewFile(state / file) as out:
            out.write(whole)


def _set_claim(handle: int, kind: int) -> None:
    """Take or release the lock of whoever may append. An OFD lock: a reader asks for it without taking it."""
    if hasattr(fcntl, "F_OFD_SETLK"):
        with suppress(OSError):  # a file system without locks: refused records may be seen until they are withdrawn
            fcntl.fcntl(handle, fcntl.F_OFD_SETLK, FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0))


def _is_claimed(handle: int) -> bool:
    """Whether a writer may append to the log."""
    if not hasattr(fcntl, "F_OFD_GETLK"):
        return False
    try:
        lock = fcntl.fcntl(handle, fcntl.F_OFD_GETLK, FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
    except OSError:
        return False
    return bool(FLOCK.unpack(lock)[0] != fcntl.F_UNLCK)


def _read(handle: int, size: int, place: int) -> bytes:
    """All of so many bytes, or as many as there are: the system gives 2 GiB at most at a time."""
    parts = []
    while size > 0 and (part := os.pread(handle, size, place)):
        parts.append(part)
        size, place = size - len(part), place + len(part)
    return b"".join(parts)


def _open(path: Path) -> int:
    try:
        handle = open_regular(path, os.O_RDONLY, follow=True)
        try:
            check_regular(os.fstat(handle))
        except BaseException:
            os.close(handle)
            raise
        return handle
    except OSError as error:
        raise IndexFolderError(f"{path}: cannot be read ({error.strerror}); {REBUILD}") from error
