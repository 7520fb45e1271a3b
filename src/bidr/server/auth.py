"""Who may do what: keys compared in constant time, names of hosts where there are none, and how often one may ask."""

import hmac
import re
import time
from collections import Counter, OrderedDict
from collections.abc import Collection
from functools import lru_cache
from typing import Literal

from bidr.server.asgi import Request
from bidr.server.config import ApiKeys, is_address, is_loopback
from bidr.server.errors import Forbidden, HTTPError, TooManyRequests, Unauthorized, Unimplemented

Permission = Literal["health", "none", "read", "write"]
"""What a request needs a key for. Health probes need none either, and are counted apart from other requests: else who
shares an address with a probe (a proxy's, a node's) could have the server taken for dead."""
CLIENTS = 10_000
EXPECTED, ASK = 'the header "Authorization: Bearer KEY"', "ask whoever runs the server for a key"
WHO = ((b"www-authenticate", b"Bearer"),)
ONCE = frozenset((b"host", b"origin", b"authorization", b"content-type", b"content-length", b"transfer-encoding"))
"""Headers that a request may have once: of two, a proxy before this server might believe the other one."""
HOST = re.compile(rb"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._~%!$&'()*+,;=-]*))(?::[0-9]*)?")


class Authenticator:
    """Lets requests in, or raises what they are refused with."""

    def __init__(self, keys: ApiKeys, rate: float, hosts: Collection[str] = ()) -> None:
        """`hosts`: names under which the server is reached, beside those of this machine."""
        self._read = [key.encode() for key in (keys.read, keys.write) if key]
        self._write = [keys.write.encode()] if keys.write else []
        self._keys, self._rate, self._hosts = keys, rate, frozenset(hosts)
        self._clients: OrderedDict[bytes | str, tuple[float, float]] = OrderedDict()

    def admit(self, call: Request, right: Permission) -> None:
        """Check the head, the name that the server is called by, the key for what is asked, and the rate."""
        who, refused = self._known(call, right)
        self.count(who)  # what is refused counts too
        if refused is not None:
            raise refused

    def _known(self, call: Request, right: Permission) -> tuple[bytes | str, HTTPError | None]:
        """Who asks, a key or an address, and why it is not let in."""
        refused = find_head_fault(call) or (self._foreign_origin(call) if right == "write" else None)
        if refused is not None:
            return call.client, refused
        if right in ("read", "write") and self._keys.any:
            return self._key_fault(call, right)
        refused = self._foreign_host(call)
        if refused is not None and self._keys.any and self._key_fault(call, "read")[1] is None:
            refused = None
        return f"{right} {call.client}" if right == "health" else call.client, refused

    def _key_fault(self, call: Request, right: Permission) -> tuple[bytes | str, HTTPError | None]:
        kind, _, given = call.headers.get(b"authorization", b"").partition(b" ")
        given = given.strip()
        if kind.lower() != b"bearer" or not given:
            if right == "read" and not self._keys.read:
                return call.client, self._foreign_host(call)  # only writing needs a key here
            return call.client, Unauthorized("a key is needed", given="none", expected=EXPECTED, hint=ASK, headers=WHO)
        # Every key is compared, whichever is right, so that the time says nothing.
        reads = [hmac.compare_digest(given, key) for key in self._read]
        writes = [hmac.compare_digest(given, key) for key in self._write]
        if not any(reads):
            return call.client, Unauthorized(
                "the key is not known", given="another key", expected=EXPECTED, hint=ASK, headers=WHO
            )
        if right == "write" and not any(writes):
            return given, Forbidden(
                "this key may read only", given="the read key", expected="the write key", hint="send the write key"
            )
        return given, None

    def _foreign_host(self, call: Request) -> HTTPError | None:
        """Without a key, a page of another site must not get at a server under a name of its own (DNS rebinding).

        Where reading needs a key there is nothing to get at, unless it is said which names there are. An address is
        no such name, but on a server that is for its own machine, only that machine's are accepted.
        """
        if self._keys.read and not self._hosts:
            return None
        host = call.headers.get(b"host", b"")
        name = parse_host(host) or ""
        if is_loopback(name) or name in self._hosts or (self._keys.read and is_address(name)):
            return None
        return Forbidden(
            "the server is not reached under this name",
            given=f"Host: {host.decode('latin-1')}",
            expected=" or ".join(["localhost", *sorted(self._hosts)]),
            hint="whoever runs the server may allow the name (--allowed-hosts), or set a read key",
        )

    def _foreign_origin(self, call: Request) -> HTTPError | None:
        """A page of another site must not write: a browser sends its requests, and says where it is from."""
        origin = call.headers.get(b"origin")
        if origin is None:
            return None
        scheme, _, place = origin.lower().partition(b"://")
        if scheme in (b"http", b"https"):
            name = parse_host(place)
            if place == call.headers.get(b"host", b"").lower() or (name and name in self._hosts):
                return None
        return Forbidden(
            "a page of another site may not write",
            given=f"Origin: {origin.decode('latin-1')}",
            expected="no Origin, or the server's own",
            hint="send it from a program, or allow the name of the page (--allowed-hosts)",
        )

    def count(self, client: bytes | str) -> None:
        """A bucket of one second's requests for every client, filled as time goes by."""
        if not self._rate:
            return
        now = time.monotonic()
        left, then = self._clients.pop(client, (max(self._rate, 1.0), now))
        left = min(max(self._rate, 1.0), left + (now - then) * self._rate)
        self._clients[client] = (left - 1 if left >= 1 else left, now)
        if len(self._clients) > CLIENTS:
            self._clients.popitem(last=False)
        if left < 1:
            raise TooManyRequests(
                "more requests than one client may send",
                retry_after=(1 - left) / self._rate,
                given=f"more than {self._rate:g} in the last second",
                expected=f"up to {self._rate:g} a second",
                hint="put several queries into one request",
            )


@lru_cache(maxsize=1024)
def parse_host(host: bytes) -> str | None:
    """The name or address in a Host header, in lower case and without its port; None where it is no such header."""
    match = HOST.fullmatch(host)
    return (match[1] or match[2]).decode("ascii").lower() if match else None


def find_head_fault(call: Request) -> HTTPError | None:
    """Refuse what a proxy may read otherwise than this server, for all requests alike."""
    headers, fields = call.headers, call.scope["headers"]
    host, coding = headers.get(b"host"), headers.get(b"transfer-encoding")
    if host is not None and coding is None and len(headers) == len(fields) and parse_host(host) is not None:
        return None
    refused = _repetition_fault(fields) or _host_fault(host, call) or _coding_fault(coding, call)
    if refused is not None:
        call.unread = True  # where its body ends is not known for sure: the connection is closed
    return refused


def _repetition_fault(headers: list[tuple[bytes, bytes]]) -> HTTPError | None:
    counts = Counter(name for name, _ in headers if name in ONCE)
    for name, count in counts.items():
        if count > 1:
            return HTTPError(
                "a header came more than once",
                given=f"{count} times {name.decode('ascii')}",
                expected="one of them",
                hint="send it once",
            )
    return None


def _host_fault(host: bytes | None, call: Request) -> HTTPError | None:
    if host is None and call.scope.get("http_version") != "1.0":
        return HTTPError("there is no Host", given="no header Host", expected="one", hint="send the server's name")
    if host is not None and parse_host(host) is None:
        return HTTPError(
            "the Host cannot be read",
            given=f"Host: {host.decode('latin-1')}",
            expected="a name or an address, and a port if it has one",
            hint="send the server's name",
        )
    return None


def _coding_fault(coding: bytes | None, call: Request) -> HTTPError | None:
    if coding is None:
        return None
    if b"content-length" in call.headers or call.scope.get("http_version") == "1.0":
        return HTTPError(
            "the length of the body is not clear",
            given="Transfer-Encoding with Content-Length, or in HTTP/1.0",
            expected="one of the two, and the first in HTTP/1.1 alone",
            hint="send Content-Length",
        )
    if coding.strip().lower() != b"chunked":
        return Unimplemented(
            "the body has a transfer coding that is not read here",
            given=f"Transfer-Encoding: {coding.decode('latin-1')}",
            expected="chunked, or none",
            hint="send the body as it is",
        )
    return None
