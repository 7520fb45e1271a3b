"""Search deadline, kept in a ContextVar; long loops call `check_deadline()`."""

import time
from contextvars import ContextVar, Token
from math import inf

from bidr.errors import SearchTimeoutError

_deadline: ContextVar[float] = ContextVar("deadline", default=inf)


class deadline_scope:
    """Set the deadline (as of `time.monotonic()`) for the block and this thread."""

    def __init__(self, deadline: float) -> None:
        self._value = deadline
        self._token: Token[float] | None = None

    def __enter__(self) -> None:
        self._token = _deadline.set(self._value)

    def __exit__(self, *error: object) -> None:
        if self._token is not None:
            _deadline.reset(self._token)


def check_deadline() -> None:
    """Raise SearchTimeoutError if the deadline has passed."""
    if time.monotonic() > _deadline.get():
        raise SearchTimeoutError("the search exceeded its time limit; send fewer queries or conditions at once")
