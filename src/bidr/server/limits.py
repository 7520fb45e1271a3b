"""Limits of requests and connections, with their defaults."""

from dataclasses import dataclass, fields

from bidr.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class RequestLimits:
    """Each limit is a flag: --limit.k 500. Requests beyond a limit get 4xx, or 503 if they can be retried."""

    body: int = 8 << 20
    """Maximum size of a request body, in bytes."""
    bodies: int = 256 << 20
    """Maximum size of all open request bodies of a worker, in bytes; beyond it the response is 503."""
    k: int = 1_000
    """Maximum k."""
    queries: int = 256
    """Maximum queries per request."""
    candidates: int = 10_000
    """Maximum candidates per query."""
    reads: int = 200_000
    """Maximum candidates per request, summed over its queries."""
    answers: int = 10_000
    """Maximum hits per request, summed over its queries."""
    characters: int = 8_192
    """Maximum length of a text query, in characters."""
    conditions: int = 1_000
    """Maximum conditions of a filter; "and", "or" and "not" count too."""
    values: int = 10_000
    """Maximum values in all conditions of a filter."""
    documents: int = 1_000
    """Maximum documents of a request that adds, fetches or deletes."""
    seconds: float = 10.0
    """Timeout of a request, in seconds from its first byte to the last byte of the response."""
    body_seconds: float = 5.0
    """Timeout of receiving a request's head and body, in seconds."""
    rate: float = 2_000.0
    """Maximum requests per second and worker of one client (API key, IPv4 address or IPv6 /64 network); 0:
    unlimited."""
    queue: int = 128
    """Maximum queue length per worker; beyond it the response is 503."""
    connections: int = 1_024
    """Maximum open connections per worker; beyond it an idle one is closed."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            minimum = 0 if field.name == "rate" else 1e-3 if isinstance(value, float) else 1
            if not minimum <= value < 1 << 40:
                raise ConfigError(f"limit.{field.name}: given {value}, expected {minimum:g} or more")
        if self.bodies < self.body:
            raise ConfigError(f"limit.bodies: given {self.bodies}, expected limit.body, {self.body}, or more")
