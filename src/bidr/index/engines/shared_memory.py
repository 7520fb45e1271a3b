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
    about = source.stat()
    kept = _folder / f"{source.parent.name}-{source.stem}-{about.st_ino}-{about.st_mtime_ns}.npy"
    try:
        with open_lock(kept.with_suffix(".lock")) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                _write(kept, make())
        # Copied where it is written to, which nobody does: numba takes it for an array like any other.
        return np.asarray(np.load(kept, mmap_mode="c"))
    except OSError:  # no space there: each has its own
        return make()


def remove_unused(used: set[str]) -> None:
    """Remove what belongs to none of these segments any more; who has it mapped keeps it."""
    for kept in _folder.glob("*-*") if _folder else ():
        # What begins with a dot is being written.
        if not kept.name.startswith(".") and kept.name.partition("-")[0] not in used:
            kept.unlink(missing_ok=True)


def remove_unfinished(pid: int) -> None:
    """Remove what a process that has ended was writing."""
    for left in _folder.glob(f".*.{pid}") if _folder else ():
        left.unlink(missing_ok=True)


def _write(path: Path, array: Array) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("xb") as out:
            np.save(out, array)
        aside.rename(path)
    finally:
        aside.unlink(missing_ok=True)
