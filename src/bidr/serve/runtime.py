"""A folder in memory for one server: what its processes share. What a killed server left is removed by the next."""

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

IN_MEMORY = Path("/dev/shm")
PREFIX, LOCK = "bidr-serve-", "lock"


@contextmanager
def runtime_folder() -> Iterator[Path]:
    """The folder, for this user alone; gone in the end."""
    parent = IN_MEMORY if IN_MEMORY.is_dir() else Path(tempfile.gettempdir())
    _remove_left(parent)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    try:
        with (folder / LOCK).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_left(parent: Path) -> None:
    for left in parent.glob(f"{PREFIX}*"):
        with suppress(OSError), (left / LOCK).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
