"""Write-ahead log: one record per commit, durable before the commit is acknowledged.

log            header, then records: length, checksum over the record chained to that of the one before, content
acknowledged   durability mark: how many bytes of the log are durable, and a checksum; overwritten after each fsync of
               the log. A writer holds a lock on it as long as it may append.

A missing or damaged record below the mark is an error. Records above it are

- ignored while a writer holds the lock: their fsync is pending or failed;
- read up to the first incomplete one while no writer does: a crash came between the fsync and the mark;
- ignored if the mark says that the log is sealed: their fsync failed and the commit was refused.

After a failed write or fsync nothing more is appended. Linux reports failed writeback once and may then drop the pages:
data that can be read back may not be on disk, and the next fsync succeeds.

The mark itself is not synced: after a crash it may be too low, never too high. This assumes that a disk writes 32 bytes
within one sector atomically, as databases assume for their control files.
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
MAX_ATTEMPTS = 50
MAX_BUFFERED_RECORD = 16 << 20
"""Longer records are hashed in pieces before they are read into memory."""
# struct flock of 64-bit systems: type, whence, start, length (0: all), process.
FLOCK_STRUCT = struct.Struct("@hhqqi0q")


class DurabilityMark(NamedTuple):
    """Durable length of a log. `sealed`: records after `end` were refused, and no more are appended."""

    end: int
    sealed: bool = False


def format_header(name: str) -> bytes:
    """Return the first bytes of the log of a state."""
    return MAGIC + name.encode() + b"\n"


def get_log_start(name: str) -> tuple[int, int]:
    """Return the offset of the first record and the checksum that it is chained to."""
    return len(format_header(name)), _hash(format_header(name), 0)


def pack_record(content: bytes, chain: int) -> tuple[bytes, int]:
    """Return a record and its checksum, to which the next one is chained."""
    length = len(content).to_bytes(4, "little")
    digest = _hash(length + content, chain)
    return RECORD.pack(len(content), digest) + content, digest


def pack_mark(end: int, *, sealed: bool = False) -> bytes:
    """Return the content of `acknowledged`."""
    magic = SEALED_MAGIC if sealed else MARK_MAGIC
    return MARK.pack(magic, end, _hash(magic + end.to_bytes(8, "little"), 0))


def parse_mark(content: bytes) -> DurabilityMark | None:
    """Parse the content of `acknowledged`; None if it is damaged."""
    end = int.from_bytes(content[16:24], "little")
    return next(
        (DurabilityMark(end, sealed) for sealed in (False, True) if pack_mark(end, sealed=sealed) == content), None
    )


def _hash(content: bytes, seed: int) -> int:
    from xxhash import xxh3_64_intdigest

    return xxh3_64_intdigest(content, seed=seed)


class WalReader:
    """Reads a log incrementally. Keeps its files open, as the state may be removed meanwhile.

    trailing_bytes: bytes after the last complete record.
    """

    def __init__(self, state: Path) -> None:
        self.path, self._log, self._mark = state / LOG, -1, -1
        self._log = _open_file(self.path)
        self._mark = _open_file(state / ACKNOWLEDGED)
        self.end, self.chain = get_log_start(state.name)
        self.mark = DurabilityMark(self.end)
        self.trailing_bytes = 0
        if os.pread(self._log, self.end, 0) != format_header(state.name):
            self.close()
            raise IndexFolderError(f"{self.path}: damaged, not the header of the log of {state.name}; {REBUILD}")

    def has_more(self) -> bool:
        """Whether the log is longer than what was read."""
        return os.fstat(self._log).st_size > self.end

    @property
    def has_unacknowledged(self) -> bool:
        """Whether records above the mark were read, which may be in the page cache only."""
        return self.end > self.mark.end

    @property
    def is_appendable(self) -> bool:
        """Whether the whole log was read and is durable, so that a writer may append to it."""
        return not (self.has_more() or self.has_unacknowledged or self.mark.sealed)

    def read(self) -> list[bytes]:
        """Read the records that were appended since the last call."""
        for _ in range(MAX_ATTEMPTS):
            mark, size = self._read_mark(), os.fstat(self._log).st_size
            min_end, start = max(mark.end, self.end), (self.end, self.chain)
            if size < min_end:
                raise IndexFolderError(f"{self.path}: {size:,} bytes, expected {min_end:,}; {REBUILD}")
            readable_end = min_end if mark.sealed or _is_writer_locked(self._mark) else size
            records: list[bytes] = []
            while (body := self._read_record(readable_end)) is not None:
                records.append(body)
            if self.end < mark.end:
                raise IndexFolderError(
                    f"{self.path}: damaged at byte {self.end:,}, but {mark.end:,} bytes were acknowledged; {REBUILD}"
                )
            # Records above the mark count only if no writer came while they were read.
            if self.end == min_end or not (_is_writer_locked(self._mark) or self._read_mark() != mark):
                self.mark, self.trailing_bytes = mark, readable_end - self.end
                return records
            self.end, self.chain = start
        raise IndexFolderError(f"{self.path}: writers opened and closed it during every attempt to read it; try again")

    def _read_record(self, size: int) -> bytes | None:
        """Read the next record of a log of `size` bytes; None if there is no complete one.

        A sparse log may be longer than memory, so a long record is verified before it is held.
        """
        header = os.pread(self._log, RECORD.size, self.end)
        length, digest = RECORD.unpack(header) if len(header) == RECORD.size else (0, 0)
        start = self.end + RECORD.size
        if not length or start + length > size:
            return None
        if length > MAX_BUFFERED_RECORD and self._hash_record(header[:4], start, length) != digest:
            return None
        body = _read_bytes(self._log, length, start)
        if len(body) < length or (length <= MAX_BUFFERED_RECORD and _hash(header[:4] + body, self.chain) != digest):
            return None
        self.end, self.chain = start + length, digest
        return body

    def _hash_record(self, prefix: bytes, start: int, length: int) -> int:
        """Compute the checksum of a record in pieces."""
        from xxhash import xxh3_64

        digest = xxh3_64(prefix, seed=self.chain)
        for offset in range(start, start + length, BUFFER_BYTES):
            digest.update(_read_bytes(self._log, min(BUFFER_BYTES, start + length - offset), offset))
        return int(digest.intdigest())

    def _read_mark(self) -> DurabilityMark:
        for _ in range(MAX_ATTEMPTS):  # a writer may be overwriting it
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


class WalWriter:
    """Appends to the log of a state. After a failure it is `broken`, as the content of the disk is unknown then."""

    def __init__(self, state: Path, end: int, chain: int) -> None:
        self._process, self._log, self._mark = os.getpid(), -1, -1
        self.path, self.end, self.chain, self.broken = state / LOG, end, chain, False
        close_in_children(self)
        try:
            with storage_errors(self.path):
                self._log = open_regular(self.path, os.O_WRONLY | os.O_APPEND)
                self._mark = open_regular(state / ACKNOWLEDGED, os.O_WRONLY)
        except IrregularFileError as error:  # do not advise to remove it: a link may lead to the only copy
            raise StorageError(f"{error.filename}: {error.strerror}; replace it by a copy of the file") from error
        _set_writer_lock(self._mark, fcntl.F_WRLCK)

    def append(self, contents: list[bytes]) -> None:
        """Append records and fsync."""
        try:
            with storage_errors(self.path):
                chain, records = self.chain, []
                for content in contents:
                    record, chain = pack_record(content, chain)
                    records.append(record)
                batch = b"".join(records)
                write_all(self._log, batch)
                os.fsync(self._log)
                os.pwrite(self._mark, pack_mark(self.end + len(batch)), 0)
                self.end, self.chain = self.end + len(batch), chain
        except BaseException:
            self.broken = True
            raise

    def seal(self) -> None:
        """Mark everything after the acknowledged records as refused, if the disk allows it."""
        self.broken = True
        with suppress(OSError):
            os.pwrite(self._mark, pack_mark(self.end, sealed=True), 0)

    def close(self) -> None:
        """Close the files and release the lock, except in a forked child, where it is the parent's."""
        handles, self._log, self._mark = (self._log, self._mark), -1, -1
        if handles[1] >= 0 and os.getpid() == self._process:
            _set_writer_lock(handles[1], fcntl.F_UNLCK)
        for handle in handles:
            if handle >= 0:
                os.close(handle)

    def __del__(self) -> None:
        self.close()


def write_log(state: Path, name: str, records: Sequence[bytes] = ()) -> None:
    """Write the log and durability mark of a state that is not committed yet."""
    content, chain = format_header(name), get_log_start(name)[1]
    for body in records:
        record, chain = pack_record(body, chain)
        content += record
    for file, file_content in ((LOG, content), (ACKNOWLEDGED, pack_mark(len(content)))):
        with storage_errors(state / file), NewFile(state / file) as out:
            out.write(file_content)


def _set_writer_lock(handle: int, kind: int) -> None:
    """Take or release the lock of the writer: an OFD lock, which readers can query without taking it."""
    if hasattr(fcntl, "F_OFD_SETLK"):
        with suppress(OSError):  # without file locks, readers may see refused records until the log is sealed
            fcntl.fcntl(handle, fcntl.F_OFD_SETLK, FLOCK_STRUCT.pack(kind, os.SEEK_SET, 0, 0, 0))


def _is_writer_locked(handle: int) -> bool:
    """Whether a writer holds the lock."""
    if not hasattr(fcntl, "F_OFD_GETLK"):
        return False
    try:
        lock = fcntl.fcntl(handle, fcntl.F_OFD_GETLK, FLOCK_STRUCT.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
    except OSError:
        return False
    return bool(FLOCK_STRUCT.unpack(lock)[0] != fcntl.F_UNLCK)


def _read_bytes(handle: int, size: int, offset: int) -> bytes:
    """Read `size` bytes, or up to the end of the file; one read returns 2 GiB at most."""
    parts = []
    while size > 0 and (part := os.pread(handle, size, offset)):
        parts.append(part)
        size, offset = size - len(part), offset + len(part)
    return b"".join(parts)


def _open_file(path: Path) -> int:
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
