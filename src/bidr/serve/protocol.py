"""uvicorn's HTTP protocol with some limits more: on the head of a request, and on how long an answer is left unread."""

import asyncio
from typing import Any

LONGEST_HEAD = 1 << 16


class Together:
    """A transport that sends what is written within one turn of the event loop at once.

    Head and body of an answer come in two writes: two system calls, and the client would be woken twice.
    """

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        if self._parts:
            self._parts.append(data)
            self.flush()
        else:
            self._parts.append(data)
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send what is there."""
        if self._parts:
            parts, self._parts = self._parts, []
            self._transport.write(b"".join(parts))

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Connections:
    """How many are open."""

    open = 0


class Limited:
    """What is added to uvicorn's protocol, whichever parser that has.

    head: seconds that a head may take; reading: seconds that a client may leave an answer unread.
    Bodies have a limit of their own.
    """

    head = reading = 0.0
    counted: Connections
    _late: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None
    _size = 0

    # These are the protocol's own.
    loop: asyncio.AbstractEventLoop
    transport: Any
    cycle: Any
    timeout_keep_alive_task: Any

    def connection_made(self, transport: Any) -> None:
        super().connection_made(Together(transport, self.loop))  # type: ignore[misc]
        self.counted.open += 1
        self._late = self.loop.call_later(self.head, self._cut)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)  # type: ignore[misc]
        if not self._between():
            self._size = 0
            return
        self._size += len(data)
        if self._size > LONGEST_HEAD and not self.transport.is_closing():
            self.transport.close()
        elif self._late is None:  # part of a head
            self._late = self.loop.call_later(self.head, self._cut)

    def pause_writing(self) -> None:
        super().pause_writing()  # type: ignore[misc]
        self._stuck = self._stuck or self.loop.call_later(self.reading, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()  # type: ignore[misc]
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def connection_lost(self, exc: Exception | None) -> None:
        self.counted.open -= 1
        for timer in (self._late, self._stuck):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)  # type: ignore[misc]

    def _between(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _cut(self) -> None:
        self._late = None
        # The timer of a quiet connection that is kept alive runs only when nothing came since the last answer.
        if self._between() and self.timeout_keep_alive_task is None and not self.transport.is_closing():
            self.transport.close()


def timed_protocol(seconds: float, waits: float, connections: Connections) -> type[asyncio.Protocol]:
    """The protocol class: over the parser in C where there is one. See `Limited` for the two times."""
    base: Any
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as base
    except ImportError:
        from uvicorn.protocols.http.h11_impl import H11Protocol as base
    own = {"head": seconds, "reading": waits, "counted": connections}
    found: type[asyncio.Protocol] = type("TimedProtocol", (Limited, base), own)
    return found
