"""Crash-safe file writes, and reads that refuse anything but regular files."""

import errno
import json
import os
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from bidr.errors import BidrError, StorageError

BUFFER_BYTES = 1 << 20
MAX_SPARSE_RATIO, MIN_SPARSE_BYTES = 64, 64 << 20
"""Files of at least MIN_SPARSE_BYTES may be this many times as long as their allocated blocks."""
CHECKSUM_KEY = "xxh3"
"""The key of a JSON file's own checksum."""
DISK_ERRORS = {
    errno.ENOSPC: "no space left on the disk; free some or choose another folder",
    errno.EDQUOT: "the disk quota is used up; free some or choose another folder",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.EACCES: "permission denied; choose another folder or change its rights",
    errno.EFBIG: "the file would be larger than the file system or its limit allows",
    errno.EIO: "the disk reports an input/output error",
}
IRREGULAR_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class IrregularFileError(StorageError, OSError):
    """A path expected to name a regular file names something else. Also an OSError, for callers that handle these."""

    def __init__(self, path: Path, kind: str) -> None:
        super().__init__(errno.EINVAL, f"{kind}, expected a regular file", str(path))

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}; remove it, or choose another folder"


def open_regular(path: Path, flags: int, mode: int = 0o666, *, follow: bool = False) -> int:
    """Open a regular file and return its descriptor; never block, and never open anything else.

    Other users may have created a FIFO (which would block) or a symbolic link (which would create or overwrite a file
    elsewhere) under a predictable name. The check uses the open descriptor, so the file cannot be swapped in between.

    Args:
        path: the file.
        flags: as for `os.open`; O_CREAT requires O_EXCL.
        mode: permissions of a new file, before the umask.
        follow: accept a symbolic link to a regular file (for files that are only read).
    """
    try:
        handle = os.open(path, flags | (0 if follow else os.O_NOFOLLOW) | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        kind = _irregular_kind(path, follow=follow) if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR) else None
        if kind is None:
            raise
        raise IrregularFileError(path, kind) from error
    kind = IRREGULAR_KINDS.get(stat.S_IFMT(os.fstat(handle).st_mode))
    if kind is not None:
        os.close(handle)
        raise IrregularFileError(path, kind)
    return handle


def _irregular_kind(path: Path, *, follow: bool) -> str | None:
    with suppress(OSError):
        return IRREGULAR_KINDS.get(stat.S_IFMT(path.stat(follow_symlinks=follow).st_mode))
    return None


def read_regular(path: Path) -> bytes:
    """Return the content of a regular file; refuse a FIFO instead of blocking on it."""
    with open_to_read(path) as file:
        return file.read()


def open_lock(path: Path) -> IO[str]:
    """Open a file to lock with `flock`, creating it if necessary."""
    while True:
        with suppress(FileNotFoundError):
            return os.fdopen(open_regular(path, os.O_RDWR), "r+", encoding="utf-8")
        with suppress(FileExistsError):  # another process created it in between
            return os.fdopen(open_regular(path, os.O_RDWR | os.O_CREAT | os.O_EXCL), "r+", encoding="utf-8")


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Convert disk errors (full, read-only, ...) to a StorageError that names the file."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        raise StorageError(f"cannot write {error.filename or path}: {DISK_ERRORS[error.errno]}") from error


def make_folder(folder: Path) -> None:
    """Create a temporary folder; errors name its parent, as it is renamed once complete."""
    try:
        os.makedirs(folder)
    except OSError as error:
        reason = DISK_ERRORS.get(error.errno or 0) or f"{error.strerror}; choose another folder"
        raise StorageError(f"cannot make a folder in {folder.parent}: {reason}") from error


def sync_folder(folder: Path) -> None:
    """Make renames and new entries of a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def open_to_read(path: Path, *, follow: bool = True) -> IO[bytes]:
    """Open a regular file for reading; raise OSError if it is something else or sparse.

    Args:
        follow: accept a symbolic link to a regular file.
    """
    handle = open_regular(path, os.O_RDONLY, follow=follow)
    try:
        check_regular(os.fstat(handle))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def check_regular(status: os.stat_result) -> None:
    """Raise OSError unless the file is regular and not sparse.

    A sparse file of a terabyte takes no space, and reading it takes minutes.
    """
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    if is_sparse(status):
        allocated = 512 * status.st_blocks
        raise OSError(errno.EINVAL, f"sparse file: {status.st_size:,} bytes long, {allocated:,} allocated on the disk")


def is_sparse(status: os.stat_result) -> bool:
    """Return whether nearly all of a large file is holes.

    No compressing file system shrinks indexes or models by this ratio. Some file systems report 0 blocks.
    """
    return status.st_size >= MIN_SPARSE_BYTES and 0 < MAX_SPARSE_RATIO * 512 * status.st_blocks < status.st_size


def read_up_to(path: Path, max_bytes: int) -> bytes:
    """Return the content of a file; raise OSError if it is longer than max_bytes."""
    with open_to_read(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"more than {max_bytes:,} bytes")
    return content


class NewFile:
    """Buffered writer of a new file, durable once closed without an error.

    Writes go through the functions of `os`, one system call each: the crash tests record these and try every state in
    which a crash could leave the disk.
    """

    def __init__(self, path: Path, *, must_be_new: bool = True, offset: int = 0) -> None:
        """Create the file.

        Args:
            path: the file.
            must_be_new: raise FileExistsError if the file exists; otherwise replace it.
            offset: resume an existing file after this many bytes.
        """
        self.path, self.size = path, offset
        flags = os.O_WRONLY | (0 if offset else os.O_CREAT | os.O_EXCL)
        try:
            self._handle = open_regular(path, flags)
        except FileExistsError:
            if must_be_new:
                raise
            os.unlink(path)  # not truncated: it may be a link to a file elsewhere
            self._handle = open_regular(path, flags)
        self._buffer: list[bytes] = []
        self._buffered = 0
        if offset:
            os.ftruncate(self._handle, offset)
            os.lseek(self._handle, offset, os.SEEK_SET)

    def write(self, content: bytes | memoryview) -> int:
        self._buffer.append(bytes(content))
        self._buffered += len(content)
        self.size += len(content)
        if self._buffered >= BUFFER_BYTES:
            self._flush()
        return len(content)

    def sync(self) -> None:
        """Flush and fsync."""
        self._flush()
        os.fsync(self._handle)

    def _flush(self) -> None:
        content, self._buffer, self._buffered = b"".join(self._buffer), [], 0
        if content:
            write_all(self._handle, content)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if error is None:
                self.sync()
        finally:
            os.close(self._handle)


def write_all(handle: int, content: bytes) -> None:
    """Write all of the content at the current position; a single system call may write a part."""
    remaining = memoryview(content)
    while remaining:
        remaining = remaining[os.write(handle, remaining) :]


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file by rename: readers see the old content or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    with storage_errors(path):
        try:
            with NewFile(temporary, must_be_new=False) as out:
                out.write(content)
            os.replace(temporary, path)
        except BaseException:
            remove(temporary)
            raise
        sync_folder(path.parent)


def remove(path: Path) -> None:
    """Remove a file or folder recursively, ignoring errors."""
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            for entry in sorted(path.iterdir()):
                remove(entry)
            os.rmdir(path)
        else:
            os.unlink(path)


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file atomically, indented."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    try:
        content = text.encode()
    except UnicodeEncodeError:  # file names need not be UTF-8; surrogate escapes survive as \u escapes
        content = json.dumps(value, indent=2).encode()
    write_atomically(path, content + b"\n")


def write_signed_json(path: Path, value: dict[str, Any]) -> None:
    """Replace a JSON file atomically, with its own checksum, which `parse_signed_json` verifies."""
    write_atomically(path, render_signed_json(value))


def render_signed_json(value: dict[str, Any]) -> bytes:
    """Return the canonical JSON text of an object with its checksum; any other byte counts as damage."""
    from xxhash import xxh3_128_hexdigest

    fields = json.loads(json.dumps({key: field for key, field in value.items() if key != CHECKSUM_KEY}))
    fields[CHECKSUM_KEY] = xxh3_128_hexdigest(json.dumps(fields, sort_keys=True).encode())
    return (json.dumps(fields, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass")


def parse_signed_json(content: bytes, unsigned_keys: Collection[str] | None = None) -> dict[str, Any]:
    """Parse a JSON object and verify its checksum; raise ValueError if it is damaged.

    Args:
        content: the bytes of the file.
        unsigned_keys: accept an object without checksum if it has no other keys: another key is a damaged one, or the
            damaged key of the checksum. None: require a checksum.
    """
    value = json.loads(content)
    if not isinstance(value, dict):
        raise TypeError("not a JSON object")
    unsigned = unsigned_keys is not None and value.keys() <= set(unsigned_keys)
    if not unsigned and (CHECKSUM_KEY not in value or render_signed_json(value) != content):
        raise ValueError("damaged, its checksum does not match its content")
    return value


def read_json(path: Path, advice: str) -> dict[str, Any]:
    """Return the object that `write_json` wrote; raise BidrError, with advice what to do, if it cannot be read."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(value, dict):
            return value
        reason = "not a JSON object"
    except (OSError, ValueError) as error:
        reason = str(error)
    raise BidrError(f"{path} cannot be read ({reason}); {advice}")
