"""When a search must end: said once around it, looked at by what may take long within."""

import time
from contextvars import ContextVar, Token
from math import inf

from bidr.errors import OutOfTime

_until: ContextVar[float] = ContextVar("until", default=inf)


class ending:
    """`with ending(deadline)`: what looks at the time within stops after it. Of time.monotonic(), for this thread."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._before: Token[float] | None = None

    def __enter__(self) -> None:
        self._before = _until.set(self._deadline)

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            _until.reset(self._before)


def in_time() -> None:
    """Raise OutOfTime when it is over."""
    if time.monotonic() > _until.get():
        raise OutOfTime("the time for this search is over; ask for less at once")
