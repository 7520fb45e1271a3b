"""One request: its head, its body within the limits, and the answer that goes back."""

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from functools import cached_property
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import orjson

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
DRAINED = 16


class Response(NamedTuple):
    """An answer."""

    body: bytes
    status: int = 200
    type: str = JSON
    headers: tuple[Header, ...] = ()


class ClientDisconnected(Exception):
    """The client went away."""


class BodyBudget:
    """Bytes of all bodies that a worker has at the moment, and whether there may be more."""

    def __init__(self, most: int) -> None:
        self.most, self.held = most, 0

    def take(self, count: int) -> bool:
        """Have so many more, if there is room for them."""
        if self.held + count > self.most:
            return False
        self.held += count
        return True


class Request:
    """A request that is being answered. `notes` go into the log; `bodies` are those of all requests."""

    def __init__(self, scope: Scope, receive: Receive, limits: RequestLimits, bodies: BodyBudget) -> None:
        self.scope, self._receive, self.limits, self._bodies = scope, receive, limits, bodies
        self._held = 0
        self.started = time.monotonic()
        self.deadline = self.started + limits.seconds
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.notes: dict[str, Any] = {}
        self.unread = scope["method"] in ("POST", "PUT", "PATCH")

    @property
    def client(self) -> str:
        found = self.scope.get("client")
        return found[0] if found else "local"

    @cached_property
    def content_type(self) -> str:
        return self.headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()

    def query(self) -> dict[str, list[str]]:
        """The parameters of the query string."""
        return parse_query_string(self.scope["query_string"])

    async def body(self, *types: str) -> bytes:
        """The whole body, of one of these types, if it comes in time and is not too large."""
        if self.content_type not in types:
            raise UnsupportedMediaType(
                "the body's type is not one that is read here",
                given=self.content_type or "no content type",
                expected=" or ".join(types),
                hint="say it in the header Content-Type",
            )
        return await self._read()

    async def _read(self) -> bytes:
        most, declared = self.limits.body, self.headers.get(b"content-length", b"0")
        size = int(declared) if declared.isdigit() else 0
        if size > most and b"expect" in self.headers:
            raise self._too_large(f"{size} bytes")
        parts: list[bytes] = []
        total, room = 0, True
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + self.limits.body_seconds):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnected
                    part: bytes = message.get("body", b"")
                    total += len(part)
                    if total <= most and size <= most and room and (room := self._bodies.take(len(part))):
                        self._held += len(part)
                        parts.append(part)
                    else:
                        parts.clear()  # read on without keeping it, so that the client comes to see the answer
                        self.forget()
                    if not message.get("more_body") or total > DRAINED * most:
                        break
        except TimeoutError:
            raise RequestTimeout(
                "the body did not arrive in time",
                given=f"{total} bytes in {self.limits.body_seconds:g} s",
                expected="a whole body",
                hint="send it faster, or in parts (limit.body_seconds)",
            ) from None
        self.unread = False
        if total > most or size > most:
            raise self._too_large(f"{max(total, size)} bytes")
        if not room:
            raise Overloaded(
                1.0,
                "the bodies of all requests together are too large at the moment",
                given=f"{total} bytes more",
                expected=f"up to {self._bodies.most} bytes in all",
                hint="try again later, send less at once, or start more workers (limit.bodies)",
            )
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def forget(self) -> None:
        """The body is not needed any more."""
        self._bodies.held -= self._held
        self._held = 0

    def _too_large(self, given: str) -> HTTPError:
        return PayloadTooLarge(
            "the body is too large",
            given=given,
            expected=f"up to {self.limits.body} bytes",
            hint="send several requests (limit.body)",
        )


def parse_query_string(raw: bytes) -> dict[str, list[str]]:
    """The parameters of a query string."""
    if not raw:
        return {}
    try:
        return parse_qs(
            raw.decode("ascii"), keep_blank_values=True, strict_parsing=True, max_num_fields=2_000, errors="strict"
        )
    except ValueError as error:
        raise InvalidRequest(
            "the query string cannot be read",
            given=raw.decode("latin-1"),
            expected="name=value, several joined by &",
            hint="percent-encode the values, as UTF-8",
        ) from error


async def send_reply(send: Send, reply: Response, more: tuple[Header, ...] = ()) -> None:
    """An answer, on its way."""
    headers = [(b"content-type", reply.type.encode()), NO_SNIFF, *reply.headers, *more]
    if reply.status != 304:  # whose length would be that of the file
        headers.append((b"content-length", b"%d" % len(reply.body)))
    if not reply.headers or all(name != b"cache-control" for name, _ in reply.headers):
        headers.append(NO_STORE)
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


NO_SNIFF: Header = (b"x-content-type-options", b"nosniff")
NO_STORE: Header = (b"cache-control", b"no-store")
CLOSE: Header = (b"connection", b"close")


def make_json_response(value: Any, status: int = 200, headers: tuple[Header, ...] = ()) -> Response:
    """A value as an answer."""
    return Response(dump_json(value, orjson.OPT_SERIALIZE_NUMPY), status, JSON, headers)
