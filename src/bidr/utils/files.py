"""Writing files so that a crash or a full disk never leaves half of one under its final name."""

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

PIECE = 1 << 20
MOST_HOLLOW, SPARSE_FROM = 64, 64 << 20
"""How many times as long as what it takes on the disk a file may be, of so many bytes or more."""
SIGNATURE = "xxh3"
"""The key of a JSON file's own checksum."""
REFUSALS = {
    errno.ENOSPC: "no space left on the disk; free some or choose another folder",
    errno.EDQUOT: "the disk quota is used up; free some or choose another folder",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.EACCES: "permission denied; choose another folder or change its rights",
    errno.EFBIG: "the file would be larger than the file system or its limit allows",
    errno.EIO: "the disk reports an input/output error",
}
KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class IrregularFileError(StorageError, OSError):
    """A path that must name a regular file names something else. An OSError too, for those who handle these."""

    def __init__(self, path: Path, kind: str) -> None:
        super().__init__(errno.EINVAL, f"{kind}, expected a regular file", str(path))

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}; remove it, or choose another folder"


def open_regular(path: Path, flags: int, mode: int = 0o666, *, follow: bool = False) -> int:
    """Open a regular file and return its descriptor; never block, and never open anything else.

    Others may have put a FIFO (which would block) or a symbolic link (which would create or overwrite a file elsewhere)
    under a name that they can predict. What is found is checked on the open descriptor, so it cannot be exchanged.

    Args:
        path: the file.
        flags: as for `os.open`; with O_CREAT give O_EXCL too.
        mode: permissions of a new file, before the umask.
        follow: accept a symbolic link to a regular file, for what is only read.
    """
    try:
        handle = os.open(path, flags | (0 if follow else os.O_NOFOLLOW) | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        kind = _irregular_kind(path, follow=follow) if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR) else None
        if kind is None:
            raise
        raise IrregularFileError(path, kind) from error
    kind = KINDS.get(stat.S_IFMT(os.fstat(handle).st_mode))
    if kind is not None:
        os.close(handle)
        raise IrregularFileError(path, kind)
    return handle


def _irregular_kind(path: Path, *, follow: bool) -> str | None:
    with suppress(OSError):
        return KINDS.get(stat.S_IFMT(path.stat(follow_symlinks=follow).st_mode))
    return None


def read_regular(path: Path) -> bytes:
    """Read a whole regular file; a FIFO of that name is refused instead of waited for."""
    with open_to_read(path) as opened:
        return opened.read()


def open_lock(path: Path) -> IO[str]:
    """Open a file to lock with `flock`; it is created where there is none."""
    while True:
        with suppress(FileNotFoundError):
            return os.fdopen(open_regular(path, os.O_RDWR), "r+", encoding="utf-8")
        with suppress(FileExistsError):  # another process created it in between
            return os.fdopen(open_regular(path, os.O_RDWR | os.O_CREAT | os.O_EXCL), "r+", encoding="utf-8")


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn what the disk refuses into one clear error that names the file."""
    try:
        yield
    except OSError as error:
        if error.errno not in REFUSALS:
            raise
        raise StorageError(f"cannot write {error.filename or path}: {REFUSALS[error.errno]}") from error


def new_folder(folder: Path) -> None:
    """Make a folder, in which something is written that will be renamed; the error names what it stands in."""
    try:
        os.makedirs(folder)
    except OSError as error:
        why = REFUSALS.get(error.errno or 0) or f"{error.strerror}; choose another folder"
        raise StorageError(f"cannot make a folder in {folder.parent}: {why}") from error


def sync_folder(folder: Path) -> None:
    """Make renames and new names in a folder durable."""
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


def open_to_read(path: Path) -> IO[bytes]:
    """Open a regular file for reading; OSError where it is none, or almost all of it is a hole."""
    handle = open_regular(path, os.O_RDONLY, follow=True)
    try:
        check_regular(os.fstat(handle))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def check_regular(about: os.stat_result) -> None:
    """Refuse, as OSError, what is no regular file, and one that is hardly anywhere on the disk.

    A file of a terabyte costs nothing where it is all holes, and reading it takes minutes.
    """
    if not stat.S_ISREG(about.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    if is_hollow(about):
        raise OSError(errno.EINVAL, f"{about.st_size:,} bytes long, and {512 * about.st_blocks:,} of them on the disk")


def is_hollow(about: os.stat_result) -> bool:
    """Whether nearly all of a long file is holes.

    No disk makes so little of what indexes and models hold. Some file systems do not say how much a file takes.
    """
    return about.st_size >= SPARSE_FROM and 0 < MOST_HOLLOW * 512 * about.st_blocks < about.st_size


def read_up_to(path: Path, most: int) -> bytes:
    """The content of a file that has no more bytes than `most`; OSError where it has."""
    with open_to_read(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"more than {most:,} bytes")
    return content


class NewFile:
    """A file being written, in pieces of a megabyte; durable once closed without an error.

    Everything that must survive a crash goes through the functions of `os`, one system call each: the tests record
    those, and try every state in which a crash could leave the disk.
    """

    def __init__(self, path: Path, *, fresh: bool = True, kept: int = 0) -> None:
        """`kept`: go on after so many bytes of the file that is there; else it must be new, or is begun again."""
        self.path, self.size = path, kept
        how = os.O_WRONLY | (0 if kept else os.O_CREAT | os.O_EXCL)
        try:
            self._handle = open_regular(path, how)
        except FileExistsError:
            if fresh:
                raise
            os.unlink(path)  # not truncated: it may be a link to a file elsewhere
            self._handle = open_regular(path, how)
        self._waiting: list[bytes] = []
        self._waits = 0
        if kept:
            os.ftruncate(self._handle, kept)
            os.lseek(self._handle, kept, os.SEEK_SET)

    def write(self, content: bytes | memoryview) -> int:
        self._waiting.append(bytes(content))
        self._waits += len(content)
        self.size += len(content)
        if self._waits >= PIECE:
            self._flush()
        return len(content)

    def sync(self) -> None:
        """Make durable what was written so far."""
        self._flush()
        os.fsync(self._handle)

    def _flush(self) -> None:
        content, self._waiting, self._waits = b"".join(self._waiting), [], 0
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
    """Write at the end of what was written; the system may take it in parts."""
    left = memoryview(content)
    while left:
        left = left[os.write(handle, left) :]


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file whole: readers see the old content or the new one."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.new")
    with storage_errors(path):
        try:
            with NewFile(aside, fresh=False) as out:
                out.write(content)
            os.replace(aside, path)
        except BaseException:
            remove(aside)
            raise
        sync_folder(path.parent)


def remove(path: Path) -> None:
    """Remove a file or a folder with all that is in it, quietly: what cannot be removed now is left."""
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            for entry in sorted(path.iterdir()):
                remove(entry)
            os.rmdir(path)
        else:
            os.unlink(path)


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file whole, readable by a person."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    try:
        content = text.encode()
    except UnicodeEncodeError:  # names of files need not be UTF-8; as escapes they come back as they were
        content = json.dumps(value, indent=2).encode()
    write_atomically(path, content + b"\n")


def write_signed_json(path: Path, value: dict[str, Any]) -> None:
    """Replace a JSON file whole, with a checksum over it that `parse_signed_json` compares."""
    write_atomically(path, render_signed_json(value))


def render_signed_json(value: dict[str, Any]) -> bytes:
    """The one way in which a table and its checksum are written, so that any other byte shows."""
    from xxhash import xxh3_128_hexdigest

    fields = json.loads(json.dumps({key: each for key, each in value.items() if key != SIGNATURE}))
    fields[SIGNATURE] = xxh3_128_hexdigest(json.dumps(fields, sort_keys=True).encode())
    return (json.dumps(fields, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass")


def parse_signed_json(content: bytes, known: Collection[str] | None = None) -> dict[str, Any]:
    """The table that a JSON file holds; ValueError where it is not what was written.

    known: the keys of a file that may have been written without a checksum. Any other key in such a file was one of
           these, or the checksum's own, before it was damaged; None: no file without a checksum is taken.
    """
    value = json.loads(content)
    if not isinstance(value, dict):
        raise TypeError("no table")
    unsigned = known is not None and value.keys() <= set(known)
    if not unsigned and (SIGNATURE not in value or render_signed_json(value) != content):
        raise ValueError("damaged, its checksum does not match its content")
    return value


def read_json(path: Path, otherwise: str) -> dict[str, Any]:
    """What `write_json` wrote; BidrError that says what to do `otherwise` where it cannot be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return found
        reason = "no table"
    except (OSError, ValueError) as error:
        reason = str(error)
    raise BidrError(f"{path} cannot be read ({reason}); {otherwise}")
