"""Fork safety: close or leave alone the parent's locked files in forked children.

flock and OFD locks belong to the open file description, which a forked child shares: unlocking its descriptor unlocks
the parent's, and keeping it open keeps the lock after the parent has died.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, Protocol
from weakref import WeakSet


class Closeable(Protocol):
    def close(self) -> None: ...


_owned: "WeakSet[Any]" = WeakSet()


def close_in_children(file: Closeable) -> None:
    """Close an open file in every child that is forked from now on."""
    _owned.add(file)


@contextmanager
def unlock_after(file: IO[Any]) -> Iterator[None]:
    """Release the flock on a file at the end of the block, in the process that entered it only."""
    owner_pid = os.getpid()
    close_in_children(file)
    try:
        yield
    finally:
        if os.getpid() == owner_pid:
            fcntl.flock(file, fcntl.LOCK_UN)


def _close_owned() -> None:
    for file in list(_owned):
        with suppress(OSError, ValueError):
            file.close()


os.register_at_fork(after_in_child=_close_owned)
