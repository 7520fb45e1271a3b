"""A folder in memory for one server: what its processes share. What a killed server left is removed by the next."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from bidr.errors import StorageError

IN_MEMORY = Path("/dev/shm")
PREFIX, LOCK = "bidr-serve-", "lock"


@contextmanager
def runtime_folder() -> Iterator[Path]:
    """The folder, for this user alone; gone in the end."""
    parent = IN_MEMORY if IN_MEMORY.is_dir() else Path(tempfile.gettempdir())
    with ExitStack() as held:
        with _one_at_a_time(parent):  # else another server takes the new folder for one that was left
            _remove_left(parent)
            folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
            held.callback(shutil.rmtree, folder, ignore_errors=True)
            lock = held.enter_context((folder / LOCK).open("a"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


@contextmanager
def _one_at_a_time(parent: Path) -> Iterator[None]:
    """Of the servers of one user, for a moment."""
    path = parent / f".{PREFIX}{os.getuid()}.lock"
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StorageError(f"{path}: cannot be opened ({error.strerror}); it must be yours: remove it") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _remove_left(parent: Path) -> None:
    for left in parent.glob(f"{PREFIX}*"):
        with suppress(OSError), (left / LOCK).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
