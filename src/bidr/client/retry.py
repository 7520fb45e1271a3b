"""When a request is sent again, and after how long."""

import random
from dataclasses import dataclass
from typing import Any

from bidr.client.requests import Request

RETRIED_STATUSES = (429, 503)
FIRST, LONGEST = 0.1, 10.0


@dataclass(frozen=True, kw_only=True)
class Retry:
    """times: how often after the first; patience: seconds that all of it may take, waits included."""

    times: int = 5
    patience: float = 30.0

    def delay(self, number: int, told: float | None, passed: float) -> float | None:
        """Seconds to wait before retry `number` (from 0); None: give up.

        It doubles, with jitter, so that many clients do not come back at once; never before the server's Retry-After.
        """
        if number >= self.times:
            return None
        wait = min(FIRST * 2**number, LONGEST) * random.uniform(0.5, 1.0)
        if told is not None:
            wait = max(wait, told * random.uniform(1.0, 1.1))
        return wait if passed + wait <= self.patience else None


def parse_retry_after(response: Any) -> float | None:
    """The Retry-After of an answer, in seconds; dates, which our server does not send, are left aside."""
    given = response.headers.get("retry-after", "")
    return float(given) if given.isdecimal() else None


def is_retryable(request: Request, error: Exception) -> bool:
    """After a broken connection: whether sending again is harmless, or the first cannot have arrived."""
    import httpx

    never_arrived = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
    return never_arrived or (request.again and isinstance(error, httpx.TransportError))
