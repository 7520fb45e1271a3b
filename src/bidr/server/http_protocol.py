"""uvicorn's HTTP protocol with limits on heads, unread answers and connections, and with errors in JSON."""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade

from bidr.server.asgi import CLOSE, NO_SNIFF, NO_STORE, Response
from bidr.server.connections import ConnectionTable
from bidr.server.errors import HeaderFieldsTooLarge, HTTPError

LONGEST_HEAD = 1 << 16
STEP = 1 << 13
"""Bytes parsed at a time. A head is measured to the byte, but for one that begins within a step (pipelining)."""
LINGER = 1.0
"""Seconds for a client to read why it was refused: closing at once would reset a connection that is still sending."""
Malformed = Callable[[str, HTTPError], Response]
TOO_LARGE = HeaderFieldsTooLarge(
    "the head of the request is too large",
    given=f"more than {LONGEST_HEAD} bytes",
    expected=f"up to {LONGEST_HEAD} bytes of request line and headers",
    hint="send what is long in the body",
)


class CoalescingTransport:
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


class TimeoutMixin:
    """What is added to uvicorn's protocol over httptools.

    head: seconds that a head may take; reading: seconds that a client may leave an answer unread.
    Bodies have a limit of their own. counted: all connections of the worker. malformed: makes the answer, of which
    address and why, to what is no HTTP request.
    """

    head = reading = 0.0
    counted: ConnectionTable
    malformed: Malformed
    address = "local"
    _late: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None
    _in_head = True
    _unframed = 0
    """Bytes since a head began, or since anything of a body came."""
    _refused = False
    _pending: HTTPError | None = None

    # These are the protocol's own.
    loop: asyncio.AbstractEventLoop
    transport: Any
    cycle: Any
    client: tuple[str, int] | None
    headers: list[tuple[bytes, bytes]]
    parser: Any
    pipeline: Any
    server_state: Any
    timeout_keep_alive_task: Any
    _unset_keepalive_if_required: Callable[[], None]

    def connection_made(self, transport: Any) -> None:
        super().connection_made(CoalescingTransport(transport, self.loop))  # type: ignore[misc]
        if self.client:
            self.address = self.client[0]
        self.counted.add(self)
        self._late = self.loop.call_later(self.head, self._cut)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._unset_keepalive_if_required()
        if len(data) <= STEP and self._unframed + len(data) <= LONGEST_HEAD:
            self._parse(data)
        else:
            place = 0
            while place < len(data) and not self._refused:
                piece = data[place : place + min(STEP, LONGEST_HEAD - self._unframed)]
                place += len(piece)
                self._parse(piece)
        if self._between() and self._late is None and not self._refused:  # part of a head
            self._late = self.loop.call_later(self.head, self._cut)

    def _parse(self, data: bytes) -> None:
        self._unframed += len(data)
        while data:
            try:
                self.parser.feed_data(data)
                break
            except HttpParserUpgrade as upgrade:
                # Another protocol is not spoken here: the request is answered, and what follows is the next one.
                data = data[upgrade.args[0] :]
            except HttpParserError as error:
                self._refuse(_unreadable(error))
                return
        if self._unframed >= LONGEST_HEAD:
            self._refuse(TOO_LARGE)

    # Called by the parser.

    def on_headers_complete(self) -> None:
        self._in_head, self._unframed = False, 0
        super().on_headers_complete()  # type: ignore[misc]
        self.headers = []  # for what follows a chunked body: it would change a head that was checked

    def on_body(self, body: bytes) -> None:
        self._unframed = 0
        super().on_body(body)  # type: ignore[misc]

    def on_message_complete(self) -> None:
        self._in_head, self._unframed = True, 0
        super().on_message_complete()  # type: ignore[misc]
        if not self.cycle.response_complete:
            self.counted.mark_busy(self)

    # Called when an answer is sent.

    def on_response_complete(self) -> None:
        super().on_response_complete()  # type: ignore[misc]
        if self._between():
            self.counted.mark_idle(self)
            if self._pending is not None and not self.transport.is_closing():
                self._turn_away(self._pending)

    def _refuse(self, error: HTTPError) -> None:
        """Read nothing more of this client, and tell it why after the answers to its earlier requests."""
        self._refused = True
        if self._between():
            self._turn_away(error)
        elif self.cycle.more_body and not self.cycle.response_started and not self.pipeline:
            # The body of the request that is being answered: whoever waits for the rest of it is told to give up.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self._turn_away(error)
        else:
            self._pending = error

    def _turn_away(self, error: HTTPError) -> None:
        self._pending = None
        self._unset_keepalive_if_required()
        if self._late is not None:
            self._late.cancel()
        reply = self.malformed(self.address, error)
        self.transport.write(serialize_response(reply, self.server_state.default_headers))
        self.transport.flush()
        self.transport.write_eof()
        self._late = self.loop.call_later(LINGER, self.transport.close)

    def evict(self) -> None:
        """Close the connection for another one, with what a client has not read of an answer."""
        self.transport.flush()
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()  # type: ignore[misc]
        self._stuck = self._stuck or self.loop.call_later(self.reading, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()  # type: ignore[misc]
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def connection_lost(self, exc: Exception | None) -> None:
        self.counted.remove(self)
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


def _unreadable(error: Exception) -> HTTPError:
    callback = isinstance(error, HttpParserCallbackError)
    return HTTPError(
        "the request is not HTTP that can be read",
        given="a target that cannot be read" if callback else str(error),
        expected="HTTP/1.1: a request line with a path, headers, and a body as long as they say",
        hint="send requests with an HTTP library",
    )


def serialize_response(reply: Response, more: list[tuple[bytes, bytes]]) -> bytes:
    """An answer that ends the connection, as bytes."""
    status = HTTPStatus(reply.status)
    length = (b"content-length", b"%d" % len(reply.body))
    headers = [*more, (b"content-type", reply.type.encode()), NO_SNIFF, NO_STORE, *reply.headers, CLOSE, length]
    lines = b"".join(b"%s: %s\r\n" % header for header in headers)
    return b"HTTP/1.1 %d %s\r\n%s\r\n%s" % (status.value, status.phrase.encode(), lines, reply.body)


def make_protocol(
    seconds: float, waits: float, connections: ConnectionTable, malformed: Malformed
) -> type[asyncio.Protocol]:
    """The protocol class. See `Limited` for the two times."""
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    own = {"head": seconds, "reading": waits, "counted": connections, "malformed": staticmethod(malformed)}
    found: type[asyncio.Protocol] = type("TimedProtocol", (TimeoutMixin, HttpToolsProtocol), own)
    return found
