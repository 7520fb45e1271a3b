"""Codes in memory that several processes share: made once, in a folder in memory, and mapped by all of them."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bidr.utils.files import open_lock

Array = npt.NDArray[Any]
_folder: Path | None = None


def share_in(folder: Path | None) -> None:
    """From now on this process shares what it loads with others that name the same folder."""
    global _folder  # noqa: PLW0603 - one place for the whole process, as memory is
    _folder = folder


def load_shared(source: Path, make: Callable[[], Array]) -> Array:
    """What `make` makes of a file: a mapping of the same memory where processes share, else an array of one's own."""
    if _folder is None:
        return make()
    status = source.stat()
    path = _folder / f"{source.parent.name}-{source.stem}-{status.st_ino}-{status.st_mtime_ns}.npy"
    try:
        with open_lock(path.with_suffix(".lock")) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                _write(path, make())
        # Copied where it is written to, which nobody does: numba takes it for an array like any other.
        return np.asarray(np.load(path, mmap_mode="c"))
    except OSError:  # no space there: each has its own
        return make()


def remove_unused(used: set[str]) -> None:
    """Remove what belongs to none of these segments any more; who has it mapped keeps it."""
    for path in _folder.glob("*-*") if _folder else ():
        # What begins with a dot is being written.
        if not path.name.startswith(".") and path.name.partition("-")[0] not in used:
            path.unlink(missing_ok=True)


def remove_unfinished(pid: int) -> None:
    """Remove what a process that has ended was writing."""
    for path in _folder.glob(f".*.{pid}") if _folder else ():
        path.unlink(missing_ok=True)


def _write(path: Path, array: Array) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("xb") as out:
            np.save(out, array)
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
