"""Share codes between processes: written once to a folder in memory (tmpfs) and mapped by all of them."""

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
    """Set the folder in which this process shares arrays; None: private memory."""
    global _folder  # noqa: PLW0603 - process-wide
    _folder = folder


def load_shared(source: Path, make: Callable[[], Array]) -> Array:
    """Return the array that `make` builds from a file: a shared mapping if processes share, else private memory."""
    if _folder is None:
        return make()
    status = source.stat()
    path = _folder / f"{source.parent.name}-{source.stem}-{status.st_ino}-{status.st_mtime_ns}.npy"
    try:
        with open_lock(path.with_suffix(".lock")) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                _write(path, make())
        # Copy-on-write and never written: a read-only array would compile the kernels for another type.
        return np.asarray(np.load(path, mmap_mode="c"))
    except OSError:  # no space left: private memory
        return make()


def remove_unused(used: set[str]) -> None:
    """Remove files of segments that are not in `used`; existing mappings stay valid."""
    for path in _folder.glob("*-*") if _folder else ():
        # Files that begin with a dot are being written.
        if not path.name.startswith(".") and path.name.partition("-")[0] not in used:
            path.unlink(missing_ok=True)


def remove_unfinished(pid: int) -> None:
    """Remove files that a process was writing when it ended."""
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
