"""Connection table of a worker: limits open connections and evicts idle ones."""

from collections import Counter
from typing import Protocol

RESERVED_FILES = 256
"""File descriptors for other purposes: index files, the log, the socket of the writer."""


class Connection(Protocol):
    """A connection that can be closed by the table."""

    network: str

    def evict(self) -> None:
        """Close it now."""


class ConnectionTable:
    """Connection table with a limit. A new connection beyond it evicts an idle one.

    A connection is idle while no complete request waits for a response on it. Evicted is the longest idle connection of
    the client network (`get_client_network`) with the most connections, so that one client cannot starve others. `open`
    exceeds `limit` only while no connection is idle.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.evicted = limit, 0
        self._connections: set[Connection] = set()
        self._counts: Counter[str] = Counter()
        self._idle: dict[str, dict[Connection, None]] = {}  # by network, the longest idle first; none is empty

    @property
    def open(self) -> int:
        return len(self._connections)

    @property
    def is_over_limit(self) -> bool:
        return len(self._connections) > self.limit

    def add(self, connection: Connection) -> None:
        """Add a connection; evict an idle one if the table is full."""
        if len(self._connections) >= self.limit and self._idle:
            self._evict()
        self._connections.add(connection)
        self._counts[connection.network] += 1
        self.mark_idle(connection)

    def remove(self, connection: Connection) -> None:
        """Remove a connection that is closed or closing."""
        if connection not in self._connections:
            return
        self.mark_busy(connection)
        self._connections.remove(connection)
        self._counts[connection.network] -= 1
        if not self._counts[connection.network]:
            del self._counts[connection.network]

    def mark_idle(self, connection: Connection) -> None:
        """Mark a connection without pending requests."""
        if connection in self._connections:
            self._idle.setdefault(connection.network, {})[connection] = None

    def mark_busy(self, connection: Connection) -> None:
        """Mark a connection with a pending request."""
        idle = self._idle.get(connection.network)
        if idle is not None and connection in idle:
            del idle[connection]
            if not idle:
                del self._idle[connection.network]

    def _evict(self) -> None:
        network = max(self._idle, key=self._counts.__getitem__)
        oldest = next(iter(self._idle[network]))
        self.remove(oldest)
        self.evicted += 1
        oldest.evict()


def raise_file_limit(connections: int) -> int:
    """Raise RLIMIT_NOFILE as far as needed and allowed; return the number of connections it permits."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + RESERVED_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return connections
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return max(1, min(connections, allowed - RESERVED_FILES))
