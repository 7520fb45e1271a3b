"""uvicorn's HTTP protocol with timeouts, limits on heads and connections, and JSON errors."""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade

from bidr.server.config import get_client_network
from bidr.server.connections import ConnectionTable
from bidr.server.errors import HeaderFieldsTooLarge, HTTPError
from bidr.server.http_messages import CLOSE, NO_SNIFF, NO_STORE, Response

MAX_HEAD_BYTES = 1 << 16
PARSE_BYTES = 1 << 13
"""Bytes parsed at a time. The size of a head is exact, except for pipelined heads that begin within a block."""
LINGER_SECONDS = 1.0
"""Delay before closing after an error: closing immediately resets a connection on which the client still sends."""
MalformedHandler = Callable[[str, HTTPError], Response]
TOO_LARGE = HeaderFieldsTooLarge(
    "request line and headers are too large",
    given=f"more than {MAX_HEAD_BYTES} bytes",
    expected=f"up to {MAX_HEAD_BYTES} bytes of request line and headers",
    hint="send long values in the body",
)


class CoalescingTransport:
    """Transport that joins the writes of one event-loop iteration.

    uvicorn writes head and body separately, which would be two system calls and two wake-ups of the client.
    """

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._chunks: list[bytes] = []

    def write(self, data: bytes) -> None:
        if self._chunks:
            self._chunks.append(data)
            self.flush()
        else:
            self._chunks.append(data)
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send buffered writes."""
        if self._chunks:
            chunks, self._chunks = self._chunks, []
            self._transport.write(b"".join(chunks))

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class TimeoutMixin:
    """Mixin for uvicorn's httptools protocol.

    Attributes:
        head_timeout: seconds in which a head must arrive. Bodies have a timeout of their own.
        write_timeout: seconds that a client may leave a response unread.
        connection_table: all connections of the worker (uvicorn uses the name `connections`).
        on_malformed: makes the response to bytes that are not HTTP, from the client address and the error.
    """

    head_timeout = write_timeout = 0.0
    connection_table: ConnectionTable
    on_malformed: MalformedHandler
    address = network = "local"
    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _in_head = True
    _head_bytes = 0
    """Bytes since a head began, or since the last part of a body."""
    _is_rejected = False
    _pending_error: HTTPError | None = None

    # Attributes of the uvicorn protocol.
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
            self.network = get_client_network(self.address)
        self.connection_table.add(self)
        self._head_timer = self.loop.call_later(self.head_timeout, self._close_if_stalled)

    def data_received(self, data: bytes) -> None:
        if self._is_rejected:
            return
        self._unset_keepalive_if_required()
        if len(data) <= PARSE_BYTES and self._head_bytes + len(data) <= MAX_HEAD_BYTES:
            self._parse(data)
        else:
            offset = 0
            while offset < len(data) and not self._is_rejected:
                block = data[offset : offset + min(PARSE_BYTES, MAX_HEAD_BYTES - self._head_bytes)]
                offset += len(block)
                self._parse(block)
        is_in_head = self._is_between_requests() and not self._is_rejected
        if is_in_head and self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_timeout, self._close_if_stalled)

    def _parse(self, data: bytes) -> None:
        self._head_bytes += len(data)
        while data:
            try:
                self.parser.feed_data(data)
                break
            except HttpParserUpgrade as upgrade:
                # Upgrades are ignored: the request is answered, and the remaining bytes are the next request.
                data = data[upgrade.args[0] :]
            except HttpParserError as error:
                self._reject(_make_parse_error(error))
                return
        if self._head_bytes >= MAX_HEAD_BYTES:
            self._reject(TOO_LARGE)

    # Callbacks of the parser.

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        super().on_headers_complete()  # type: ignore[misc]
        self.headers = []  # trailers of a chunked body must not change headers that were checked

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)  # type: ignore[misc]

    def on_message_complete(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_complete()  # type: ignore[misc]
        if not self.cycle.response_complete:
            self.connection_table.mark_busy(self)

    # Callback of the request cycle.

    def on_response_complete(self) -> None:
        super().on_response_complete()  # type: ignore[misc]
        if self._is_between_requests():
            self.connection_table.mark_idle(self)
            if self._pending_error is not None and not self.transport.is_closing():
                self._send_error(self._pending_error)

    def _reject(self, error: HTTPError) -> None:
        """Stop reading, and send the error after the responses to earlier requests."""
        self._is_rejected = True
        if self._is_between_requests():
            self._send_error(error)
        elif self.cycle.more_body and not self.cycle.response_started and not self.pipeline:
            # The error is in the body of the current request: wake its handler, which waits for the rest.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self._send_error(error)
        else:
            self._pending_error = error

    def _send_error(self, error: HTTPError) -> None:
        self._pending_error = None
        self._unset_keepalive_if_required()
        if self._head_timer is not None:
            self._head_timer.cancel()
        response = self.on_malformed(self.address, error)
        self.transport.write(serialize_response(response, self.server_state.default_headers))
        self.transport.flush()
        self.transport.write_eof()
        self._head_timer = self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def evict(self) -> None:
        """Close the connection in favor of another; drops unread responses."""
        self.transport.flush()
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()  # type: ignore[misc]
        self._write_timer = self._write_timer or self.loop.call_later(self.write_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()  # type: ignore[misc]
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        self.connection_table.remove(self)
        for timer in (self._head_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)  # type: ignore[misc]

    def _is_between_requests(self) -> bool:
        """Whether no request is in progress."""
        return self.cycle is None or self.cycle.response_complete

    def _close_if_stalled(self) -> None:
        self._head_timer = None
        # uvicorn's keep-alive timer runs only if nothing has arrived since the last response.
        if self._is_between_requests() and self.timeout_keep_alive_task is None and not self.transport.is_closing():
            self.transport.close()


def _make_parse_error(error: Exception) -> HTTPError:
    is_callback_error = isinstance(error, HttpParserCallbackError)
    return HTTPError(
        "the request is not valid HTTP",
        given="a malformed request target" if is_callback_error else str(error),
        expected="HTTP/1.1: a request line with a path, headers, and a body of the declared length",
        hint="send requests with an HTTP library",
    )


def serialize_response(response: Response, extra_headers: list[tuple[bytes, bytes]]) -> bytes:
    """Serialize a response that closes the connection."""
    status = HTTPStatus(response.status)
    length = (b"content-length", b"%d" % len(response.body))
    headers = [
        *extra_headers,
        (b"content-type", response.type.encode()),
        NO_SNIFF,
        NO_STORE,
        *response.headers,
        CLOSE,
        length,
    ]
    lines = b"".join(b"%s: %s\r\n" % header for header in headers)
    return b"HTTP/1.1 %d %s\r\n%s\r\n%s" % (status.value, status.phrase.encode(), lines, response.body)


def make_protocol(
    head_timeout: float, write_timeout: float, connections: ConnectionTable, on_malformed: MalformedHandler
) -> type[asyncio.Protocol]:
    """Make the class for `uvicorn.Config(http=...)`; see `TimeoutMixin` for the arguments."""
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    attributes = {
        "head_timeout": head_timeout,
        "write_timeout": write_timeout,
        "connection_table": connections,
        "on_malformed": staticmethod(on_malformed),
    }
    protocol: type[asyncio.Protocol] = type("TimedProtocol", (TimeoutMixin, HttpToolsProtocol), attributes)
    return protocol
