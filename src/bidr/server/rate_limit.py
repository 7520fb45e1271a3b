"""Token-bucket rate limit by client."""

import time
from collections import OrderedDict

from bidr.server.errors import TooManyRequests

MAX_CLIENTS = 10_000
ClientId = bytes | str


class RateLimiter:
    """One token bucket for every client, of the size of one second's requests. `rate` 0: unlimited."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._buckets: OrderedDict[ClientId, tuple[float, float]] = OrderedDict()  # least recently used first

    def acquire(self, client: ClientId) -> None:
        """Take a token; raises TooManyRequests if the bucket is empty."""
        if not self.rate:
            return
        now = time.monotonic()
        capacity = max(self.rate, 1.0)
        tokens, updated = self._buckets.pop(client, (capacity, now))
        tokens = min(capacity, tokens + (now - updated) * self.rate)
        self._buckets[client] = (tokens - 1 if tokens >= 1 else tokens, now)
        if len(self._buckets) > MAX_CLIENTS:
            self._buckets.popitem(last=False)
        if tokens < 1:
            raise TooManyRequests(
                "rate limit exceeded for this client",
                retry_after=(1 - tokens) / self.rate,
                given=f"more than {self.rate:g} in the last second",
                expected=f"up to {self.rate:g} a second",
                hint="put several queries into one request",
            )
