"""uvicorn's HTTP protocol with some limits more: on the head of a request, and on how long an answer is left unread."""

import asyncio
from typing import Any

LONGEST_HEAD = 1 << 16


def timed_protocol(seconds: float, reading: float) -> type[asyncio.Protocol]:
    """The protocol class: over the parser in C where there is one. Bodies have their own limit.

    seconds: that a head may take; reading: that a client may leave an answer unread.
    """
    base: Any
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as base
    except ImportError:
        from uvicorn.protocols.http.h11_impl import H11Protocol as base

    class TimedProtocol(base):  # type: ignore[misc]
        _late: asyncio.TimerHandle | None = None
        _stuck: asyncio.TimerHandle | None = None
        _head = 0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._late = self.loop.call_later(seconds, self._cut)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if not self._between():
                self._head = 0
                return
            self._head += len(data)
            if self._head > LONGEST_HEAD and not self.transport.is_closing():
                self.transport.close()
            elif self._late is None:  # part of a head
                self._late = self.loop.call_later(seconds, self._cut)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._stuck = self._stuck or self.loop.call_later(reading, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._stuck is not None:
                self._stuck.cancel()
                self._stuck = None

        def connection_lost(self, exc: Exception | None) -> None:
            for timer in (self._late, self._stuck):
                if timer is not None:
                    timer.cancel()
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
