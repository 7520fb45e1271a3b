"""Fork safety: files that belong to the process that opened them.

A forked child has copies of its parent's descriptors. flock and OFD locks belong to the open file, not to a process: a
child that unlocks its copy unlocks the parent's, and one that keeps its copy open keeps the lock after the parent died.
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
    """Close the copy of an open file in every child that is forked from now on."""
    _owned.add(file)


@contextmanager
def unlock_after(file: IO[Any]) -> Iterator[None]:
    """Release the flock on a file at the end, though a forked child may hold a copy; a child releases nothing."""
    process = os.getpid()
    close_in_children(file)
    try:
        yield
    finally:
        if os.getpid() == process:
            fcntl.flock(file, fcntl.LOCK_UN)


def _close_owned() -> None:
    for file in list(_owned):
        with suppress(OSError, ValueError):
            file.close()


os.register_at_fork(after_in_child=_close_owned)
