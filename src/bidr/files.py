"""Writing files so that a crash or a full disk never leaves half of one under its final name."""

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bidr.errors import BidrError, StorageError

REFUSALS = {
    errno.ENOSPC: "no space left on the disk; free some or choose another folder",
    errno.EDQUOT: "the disk quota is used up; free some or choose another folder",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.EACCES: "permission denied; choose another folder or change its rights",
    errno.EFBIG: "the file would be larger than the file system or its limit allows",
    errno.EIO: "the disk reports an input/output error",
}


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn what the disk refuses into one clear error that names the file."""
    try:
        yield
    except OSError as error:
        if error.errno not in REFUSALS:
            raise
        raise StorageError(f"cannot write {error.filename or path}: {REFUSALS[error.errno]}") from error


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


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file whole: readers see the old content or the new one."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.new")
    with storage_errors(path):
        try:
            with aside.open("wb") as out:
                out.write(content)
                out.flush()
                os.fsync(out.fileno())
            os.replace(aside, path)
            sync_folder(path.parent)
        finally:
            aside.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file whole, readable by a person."""
    write_atomically(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


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
