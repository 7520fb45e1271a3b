"""A folder in memory for one server: what its processes share. What a killed server left is removed by the next.

The parent folder is open to every user of the machine, so nothing in it is opened by a name that others could take
first: a new folder has a random name, and is this user's alone. What others put there is never opened or followed.
"""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from bidr.utils.files import open_lock, open_regular

IN_MEMORY = Path("/dev/shm")
PREFIX, LOCK = "bidr-serve-", "lock"
UNNAMED = ".new-"
"""Begins the name of a folder that is not locked yet; the next server would take it for one that was left."""


@contextmanager
def create_runtime_dir() -> Iterator[Path]:
    """The folder, for this user alone; gone in the end."""
    parent = IN_MEMORY if IN_MEMORY.is_dir() else Path(tempfile.gettempdir())
    _remove_left(parent)
    with ExitStack() as held:
        unnamed = Path(tempfile.mkdtemp(prefix=UNNAMED + PREFIX, dir=parent))
        folder = parent / unnamed.name.removeprefix(UNNAMED)
        held.callback(shutil.rmtree, folder, ignore_errors=True)
        held.callback(shutil.rmtree, unnamed, ignore_errors=True)
        lock = held.enter_context(open_lock(unnamed / LOCK))
        fcntl.flock(lock, fcntl.LOCK_EX)
        unnamed.rename(folder)
        yield folder


def _remove_left(parent: Path) -> None:
    for left in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):
            if _is_own_folder(left) and not _is_locked(left / LOCK):
                shutil.rmtree(left, ignore_errors=True)


def _is_own_folder(path: Path) -> bool:
    """Whether nobody but this user could have put anything into a folder; a symbolic link is none."""
    about = path.lstat()
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o022


def _is_locked(path: Path) -> bool:
    try:
        handle = open_regular(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
