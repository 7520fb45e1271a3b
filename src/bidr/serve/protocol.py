"""uvicorn's HTTP protocol with one thing more: whoever takes too long over the head of a request is cut off."""

import asyncio
from typing import Any


def timed_protocol(seconds: float) -> type[asyncio.Protocol]:
    """The protocol class. Bodies have their own limit, and so have answers."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class TimedProtocol(H11Protocol):
        _late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._late = self.loop.call_later(seconds, self._cut)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._late is None and self._between():  # part of a head
                self._late = self.loop.call_later(seconds, self._cut)

        def connection_lost(self, exc: Exception | None) -> None:
            if self._late is not None:
                self._late.cancel()
            super().connection_lost(exc)

        def _between(self) -> bool:
            """Whether no request is being answered."""
            return self.cycle is None or self.cycle.response_complete

        def _cut(self) -> None:
            self._late = None
            # The timer of a quiet connection that is kept alive runs only when nothing came since the last answer.
            if self._between() and self.timeout_keep_alive_task is None and not self.transport.is_closing():
                self.transport.close()

    return TimedProtocol
