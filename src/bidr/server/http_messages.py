"""ASGI request and response: headers, body within limits, JSON serialization."""

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from functools import cached_property
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import orjson

from bidr.search.types import Timings
from bidr.server.config import get_client_network
from bidr.server.errors import (
    HTTPError,
    InvalidRequest,
    Overloaded,
    PayloadTooLarge,
    RequestTimeout,
    UnsupportedMediaType,
)
from bidr.server.json_encoding import dump_json
from bidr.server.limits import RequestLimits

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Header = tuple[bytes, bytes]

JSON, BINARY = "application/json", "application/octet-stream"
MAX_DRAINED = 16
"""Multiple of the body limit that is read and discarded before the connection is closed."""
NO_SNIFF: Header = (b"x-content-type-options", b"nosniff")
NO_STORE: Header = (b"cache-control", b"no-store")
CLOSE: Header = (b"connection", b"close")


class Response(NamedTuple):
    """An HTTP response."""

    body: bytes
    status: int = 200
    type: str = JSON
    headers: tuple[Header, ...] = ()


class ClientDisconnected(Exception):
    """The client closed the connection."""


class BodyBudget:
    """Limits the bytes of all request bodies that a worker holds in memory."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0

    def reserve(self, count: int) -> bool:
        """Reserve bytes; False if they exceed the limit."""
        if self.used + count > self.limit:
            return False
        self.used += count
        return True


class Request:
    """A request in progress. `log_fields` go into the access log."""

    def __init__(self, scope: Scope, receive: Receive, limits: RequestLimits, budget: BodyBudget) -> None:
        self.scope, self._receive, self.limits, self._budget = scope, receive, limits, budget
        self._reserved = 0
        self.started = time.monotonic()
        self.deadline = self.started + limits.seconds
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.log_fields: dict[str, Any] = {}
        self.steps: Timings | None = None
        """Milliseconds of each step of a search."""
        self.is_body_unread = scope["method"] in ("POST", "PUT", "PATCH")

    @property
    def client(self) -> str:
        """Address of the client."""
        address = self.scope.get("client")
        return address[0] if address else "local"

    @property
    def client_network(self) -> str:
        """Network of the client, for limits."""
        return get_client_network(self.client)

    @cached_property
    def content_type(self) -> str:
        return self.headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()

    def parse_query(self) -> dict[str, list[str]]:
        """Parse the parameters of the query string."""
        return parse_query_string(self.scope["query_string"])

    async def read_body(self, *types: str) -> bytes:
        """Read the whole body; raises HTTPError for other content types, slow clients and large bodies."""
        if self.content_type not in types:
            raise UnsupportedMediaType(
                "unsupported content type",
                given=self.content_type or "no content type",
                expected=" or ".join(types),
                hint="set the header Content-Type",
            )
        return await self._read()

    async def _read(self) -> bytes:
        limit, length = self.limits.body, self.headers.get(b"content-length", b"0")
        content_length = int(length) if length.isdigit() else 0
        if content_length > limit and b"expect" in self.headers:
            raise self._make_size_error(f"{content_length} bytes")
        chunks: list[bytes] = []
        total, is_reserved = 0, True
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + self.limits.body_seconds):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnected
                    chunk: bytes = message.get("body", b"")
                    total += len(chunk)
                    is_small = total <= limit and content_length <= limit and is_reserved
                    if is_small and (is_reserved := self._budget.reserve(len(chunk))):
                        self._reserved += len(chunk)
                        chunks.append(chunk)
                    else:
                        chunks.clear()  # discard the rest: clients read the response after they have sent everything
                        self.release_body()
                    if not message.get("more_body") or total > MAX_DRAINED * limit:
                        break
        except TimeoutError:
            raise RequestTimeout(
                "the body did not arrive in time",
                given=f"{total} bytes in {self.limits.body_seconds:g} s",
                expected="a whole body",
                hint="send it faster, or in parts (limit.body_seconds)",
            ) from None
        self.is_body_unread = False
        if total > limit or content_length > limit:
            raise self._make_size_error(f"{max(total, content_length)} bytes")
        if not is_reserved:
            raise Overloaded(
                1.0,
                "the bodies of all current requests exceed the limit",
                given=f"{total} bytes more",
                expected=f"up to {self._budget.limit} bytes in all",
                hint="try again later, send less at once, or start more workers (limit.bodies)",
            )
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def release_body(self) -> None:
        """Return the bytes of the body to the budget."""
        self._budget.used -= self._reserved
        self._reserved = 0

    def _make_size_error(self, size: str) -> HTTPError:
        return PayloadTooLarge(
            "the body is too large",
            given=size,
            expected=f"up to {self.limits.body} bytes",
            hint="send several requests (limit.body)",
        )


def parse_query_string(raw: bytes) -> dict[str, list[str]]:
    """Parse a query string strictly; raises InvalidRequest."""
    if not raw:
        return {}
    try:
        return parse_qs(
            raw.decode("ascii"), keep_blank_values=True, strict_parsing=True, max_num_fields=2_000, errors="strict"
        )
    except ValueError as error:
        raise InvalidRequest(
            "the query string is malformed",
            given=raw.decode("latin-1"),
            expected="name=value, several joined by &",
            hint="percent-encode the values, as UTF-8",
        ) from error


async def send_response(send: Send, response: Response, extra_headers: tuple[Header, ...] = ()) -> None:
    """Send a response in two ASGI messages."""
    headers = [(b"content-type", response.type.encode()), NO_SNIFF, *response.headers, *extra_headers]
    if response.status != 304:  # its content-length would be that of the file
        headers.append((b"content-length", b"%d" % len(response.body)))
    if not response.headers or all(name != b"cache-control" for name, _ in response.headers):
        headers.append(NO_STORE)
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})


def make_json_response(value: Any, status: int = 200, headers: tuple[Header, ...] = ()) -> Response:
    """Serialize a value as a JSON response."""
    return Response(dump_json(value, orjson.OPT_SERIALIZE_NUMPY), status, JSON, headers)
