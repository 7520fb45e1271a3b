"""What one client may ask of the server: every limit, with its default."""

from dataclasses import dataclass, fields

from bidr.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class RequestLimits:
    """Each is a flag: --limit.k 500. What goes beyond is answered with 4xx (or 503: try again) and says so."""

    body: int = 8 << 20
    """Bytes of a request's body."""
    bodies: int = 256 << 20
    """Bytes of the bodies of all requests that are not answered yet, for each worker; with more the answer is 503."""
    k: int = 1_000
    """Answers to a query."""
    queries: int = 256
    """Queries of a request."""
    candidates: int = 10_000
    """Candidates of a query: vectors that are read for it."""
    reads: int = 200_000
    """Candidates of all queries of a request together."""
    answers: int = 10_000
    """Answers to all queries of a request together."""
    characters: int = 8_192
    """Characters of a query in words."""
    conditions: int = 1_000
    """Conditions of a filter; each "and", "or" and "not" is one too."""
    values: int = 10_000
    """Values that the conditions of a filter compare with, all together."""
    documents: int = 1_000
    """Documents of a request that adds, fetches or deletes."""
    seconds: float = 10.0
    """From the first byte of a request to the last of its answer."""
    body_seconds: float = 5.0
    """Until the head and body of a request have arrived; a slower one is cut off."""
    rate: float = 2_000.0
    """Requests a second of one client (a key, or an address), for each worker; 0: any number."""
    queue: int = 128
    """Requests that wait for their turn, for each worker; with more the answer is 503."""
    connections: int = 1_024
    """Connections that are open at once, for each worker; for one more an idle one is closed."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name == "rate" else 1e-3 if isinstance(value, float) else 1
            if not least <= value < 1 << 40:
                raise ConfigError(f"limit.{field.name}: given {value}, expected {least:g} or more")
        if self.bodies < self.body:
            raise ConfigError(f"limit.bodies: given {self.bodies}, expected limit.body, {self.body}, or more")
