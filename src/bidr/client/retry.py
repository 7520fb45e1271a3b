"""Retry policy: which requests are sent again, and after how long."""

import random
from dataclasses import dataclass
from typing import Any

from bidr.client.requests import RequestSpec

RETRIED_STATUSES = (429, 503)
MIN_DELAY, MAX_DELAY = 0.1, 10.0


@dataclass(frozen=True, kw_only=True)
class Retry:
    """times: number of retries; patience: seconds for all attempts and delays together."""

    times: int = 5
    patience: float = 30.0

    def compute_delay(self, number: int, retry_after: float | None, elapsed: float) -> float | None:
        """Seconds to wait before retry `number` (from 0); None: give up.

        Doubles with jitter, so that many clients do not return at once; never less than Retry-After.
        """
        if number >= self.times:
            return None
        wait = min(MIN_DELAY * 2**number, MAX_DELAY) * random.uniform(0.5, 1.0)
        if retry_after is not None:
            wait = max(wait, retry_after * random.uniform(1.0, 1.1))
        return wait if elapsed + wait <= self.patience else None


def parse_retry_after(response: Any) -> float | None:
    """Parse the Retry-After header in seconds; HTTP dates are ignored."""
    value = response.headers.get("retry-after", "")
    return float(value) if value.isdecimal() else None


def is_retryable(request: RequestSpec, error: Exception) -> bool:
    """Whether a request may be sent again after a connection error."""
    import httpx

    was_not_sent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
    return was_not_sent or (request.is_idempotent and isinstance(error, httpx.TransportError))
