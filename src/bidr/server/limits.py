"""Limits of requests and connections, with their defaults."""

from dataclasses import dataclass, fields

from bidr.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class RequestLimits:
    """Each limit is a flag: --limit.k 500. Requests beyond a limit get 4xx, or 503 if they can be retried."""

    body: int = 8 << 20
    """Bytes of a request's body."""
    bodies: int = 256 << 20
    """Bytes of the bodies of all requests that are not answered yet, for each worker; with more the answer is 503."""
    k: int = 1_000
    """Hits of a query."""
    queries: int = 256
    """Queries of a request."""
    candidates: int = 10_000
    """Candidates of a query: vectors read for it."""
    reads: int = 200_000
    """Candidates of all queries of a request together."""
    answers: int = 10_000
    """Hits of all queries of a request together."""
    characters: int = 8_192
    """Characters of a text query."""
    conditions: int = 1_000
    """Conditions of a filter; each "and", "or" and "not" is one too."""
    values: int = 10_000
    """Values in all conditions of a filter together."""
    documents: int = 1_000
    """Documents of a request that adds, fetches or deletes."""
    seconds: float = 10.0
    """Seconds from the first byte of a request to the last byte of its response."""
    body_seconds: float = 5.0
    """Seconds in which the head and body of a request must arrive."""
    rate: float = 2_000.0
    """Requests a second of one client (a key, or an address), for each worker; 0: any number."""
    queue: int = 128
    """Requests that wait for a thread, for each worker; with more the answer is 503."""
    connections: int = 1_024
    """Connections that are open at once, for each worker; for one more an idle one is closed."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            minimum = 0 if field.name == "rate" else 1e-3 if isinstance(value, float) else 1
            if not minimum <= value < 1 << 40:
                raise ConfigError(f"limit.{field.name}: given {value}, expected {minimum:g} or more")
        if self.bodies < self.body:
            raise ConfigError(f"limit.bodies: given {self.bodies}, expected limit.body, {self.body}, or more")
