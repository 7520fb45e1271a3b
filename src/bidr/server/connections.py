"""The open connections of a worker: how many there are, from where, and which is closed for a new one."""

from collections import Counter
from typing import Protocol

RESERVED_FILES = 256
"""Descriptors of a worker that are no connections: the index, the log, the writer's socket."""


class Connection(Protocol):
    """A connection that can be told to close."""

    address: str

    def evict(self) -> None:
        """Close it now."""


class ConnectionTable:
    """Connection table with a limit. A new connection beyond it evicts an idle one.

    Idle is a connection on which no whole request waits for its answer: silent, kept alive, or in the middle of a head
    or body. Of the address that has the most connections, the one that has been idle longest is closed, so that one
    address cannot shut the others out. `open` exceeds `limit` only while requests are being answered on all of them.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.evicted = limit, 0
        self._connections: set[Connection] = set()
        self._counts: Counter[str] = Counter()
        self._idle: dict[str, dict[Connection, None]] = {}  # by address, the longest idle first; none is empty

    @property
    def open(self) -> int:
        return len(self._connections)

    @property
    def is_over_limit(self) -> bool:
        return len(self._connections) > self.limit

    def add(self, connection: Connection) -> None:
        """Take up a new connection, and evict another if there are too many."""
        if len(self._connections) >= self.limit and self._idle:
            self._evict()
        self._connections.add(connection)
        self._counts[connection.address] += 1
        self.mark_idle(connection)

    def remove(self, connection: Connection) -> None:
        """Forget a connection that is closed, or is about to be."""
        if connection not in self._connections:
            return
        self.mark_busy(connection)
        self._connections.remove(connection)
        self._counts[connection.address] -= 1
        if not self._counts[connection.address]:
            del self._counts[connection.address]

    def mark_idle(self, connection: Connection) -> None:
        """All its requests are answered."""
        if connection in self._connections:
            self._idle.setdefault(connection.address, {})[connection] = None

    def mark_busy(self, connection: Connection) -> None:
        """A whole request has arrived on it."""
        idle = self._idle.get(connection.address)
        if idle is not None and connection in idle:
            del idle[connection]
            if not idle:
                del self._idle[connection.address]

    def _evict(self) -> None:
        address = max(self._idle, key=self._counts.__getitem__)
        oldest = next(iter(self._idle[address]))
        self.remove(oldest)
        self.evicted += 1
        oldest.evict()


def raise_file_limit(connections: int) -> int:
    """Let this process open as many files as the system allows; return how many connections that leaves room for."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + RESERVED_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return connections
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return max(1, min(connections, allowed - RESERVED_FILES))
