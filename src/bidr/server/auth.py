"""API-key authentication, Host and Origin checks, and checks of headers against request smuggling."""

import hmac
import re
from collections import Counter
from collections.abc import Collection
from functools import lru_cache
from typing import Literal

from bidr.server.config import ApiKeys, is_address, is_loopback
from bidr.server.errors import Forbidden, HTTPError, Unauthorized, Unimplemented
from bidr.server.http_messages import Request
from bidr.server.rate_limit import ClientId, RateLimiter

Permission = Literal["health", "none", "read", "write"]
"""Permission that a request needs. Health probes need none and have a rate limit of their own: otherwise clients that
share an address with a probe (a proxy, a node) could use up its requests and the server would be taken for dead."""
EXPECTED_KEY, KEY_HINT = 'the header "Authorization: Bearer KEY"', "ask whoever runs the server for a key"
CHALLENGE = ((b"www-authenticate", b"Bearer"),)
SINGLETON_HEADERS = frozenset(
    (b"host", b"origin", b"authorization", b"content-type", b"content-length", b"transfer-encoding")
)
"""Headers that may occur once: of two, a proxy before this server might use the other one."""
HOST = re.compile(rb"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._~%!$&'()*+,;=-]*))(?::[0-9]*)?")


class Authenticator:
    """Admits or rejects requests by headers, host, key and rate."""

    def __init__(self, keys: ApiKeys, rate: float, hosts: Collection[str] = ()) -> None:
        """`hosts`: names of this server beside those of the loopback interface."""
        self._read_keys = [key.encode() for key in (keys.read, keys.write) if key]
        self._write_keys = [keys.write.encode()] if keys.write else []
        self._keys, self._hosts = keys, frozenset(hosts)
        self.rate_limiter = RateLimiter(rate)

    def authorize(self, request: Request, permission: Permission) -> None:
        """Check headers, host, key and rate; raises HTTPError. Rejected requests count for the rate, too."""
        client, error = self._identify(request, permission)
        self.rate_limiter.acquire(client)
        if error is not None:
            raise error

    def _identify(self, request: Request, permission: Permission) -> tuple[ClientId, HTTPError | None]:
        """Return the client (its key or network) and the reason to reject the request."""
        error = find_header_error(request) or (self._check_origin(request) if permission == "write" else None)
        if error is not None:
            return request.client_network, error
        if permission in ("read", "write") and self._keys.any:
            return self._check_key(request, permission)
        error = self._check_host(request)
        if error is not None and self._keys.any and self._check_key(request, "read")[1] is None:
            error = None
        client = request.client_network
        return f"{permission} {client}" if permission == "health" else client, error

    def _check_key(self, request: Request, permission: Permission) -> tuple[ClientId, HTTPError | None]:
        scheme, _, key = request.headers.get(b"authorization", b"").partition(b" ")
        key = key.strip()
        if scheme.lower() != b"bearer" or not key:
            if permission == "read" and not self._keys.read:
                return request.client_network, self._check_host(request)  # only writing needs a key here
            return request.client_network, Unauthorized(
                "a key is needed", given="none", expected=EXPECTED_KEY, hint=KEY_HINT, headers=CHALLENGE
            )
        # Compares with every key, in constant time: the duration tells nothing about the keys.
        can_read = [hmac.compare_digest(key, read_key) for read_key in self._read_keys]
        can_write = [hmac.compare_digest(key, write_key) for write_key in self._write_keys]
        if not any(can_read):
            return request.client_network, Unauthorized(
                "the key is not valid", given="another key", expected=EXPECTED_KEY, hint=KEY_HINT, headers=CHALLENGE
            )
        if permission == "write" and not any(can_write):
            return key, Forbidden(
                "this key may read only", given="the read key", expected="the write key", hint="send the write key"
            )
        return key, None

    def _check_host(self, request: Request) -> HTTPError | None:
        """Reject foreign host names without a read key, against DNS rebinding by pages of other sites.

        With a read key, only --allowed-hosts restricts names. Addresses cannot be rebound; a server without a read
        key accepts only those of the loopback interface.
        """
        if self._keys.read and not self._hosts:
            return None
        host = request.headers.get(b"host", b"")
        name = parse_host(host) or ""
        if is_loopback(name) or name in self._hosts or (self._keys.read and is_address(name)):
            return None
        return Forbidden(
            "this host name is not allowed",
            given=f"Host: {host.decode('latin-1')}",
            expected=" or ".join(["localhost", *sorted(self._hosts)]),
            hint="whoever runs the server may allow the name (--allowed-hosts), or set a read key",
        )

    def _check_origin(self, request: Request) -> HTTPError | None:
        """Reject writes from pages of other sites: browsers send them, with the header Origin."""
        origin = request.headers.get(b"origin")
        if origin is None:
            return None
        scheme, _, host = origin.lower().partition(b"://")
        if scheme in (b"http", b"https"):
            name = parse_host(host)
            if host == request.headers.get(b"host", b"").lower() or (name and name in self._hosts):
                return None
        return Forbidden(
            "a page of another site may not write",
            given=f"Origin: {origin.decode('latin-1')}",
            expected="no Origin, or the server's own",
            hint="send it from a program, or allow the name of the page (--allowed-hosts)",
        )


@lru_cache(maxsize=1024)
def parse_host(host: bytes) -> str | None:
    """Return the name or address of a Host header in lower case, without its port; None if it is malformed."""
    match = HOST.fullmatch(host)
    return (match[1] or match[2]).decode("ascii").lower() if match else None


def find_header_error(request: Request) -> HTTPError | None:
    """Reject headers that a proxy may interpret differently from this server (request smuggling)."""
    headers, fields = request.headers, request.scope["headers"]
    host, coding = headers.get(b"host"), headers.get(b"transfer-encoding")
    if host is not None and coding is None and len(headers) == len(fields) and parse_host(host) is not None:
        return None
    error = _find_repeated_header(fields) or _find_host_error(host, request) or _find_coding_error(coding, request)
    if error is not None:
        request.is_body_unread = True  # the end of its body is uncertain: the connection is closed
    return error


def _find_repeated_header(headers: list[tuple[bytes, bytes]]) -> HTTPError | None:
    counts = Counter(name for name, _ in headers if name in SINGLETON_HEADERS)
    for name, count in counts.items():
        if count > 1:
            return HTTPError(
                "a header is repeated",
                given=f"{count} times {name.decode('ascii')}",
                expected="one of them",
                hint="send it once",
            )
    return None


def _find_host_error(host: bytes | None, request: Request) -> HTTPError | None:
    if host is None and request.scope.get("http_version") != "1.0":
        return HTTPError("there is no Host", given="no header Host", expected="one", hint="send the server's name")
    if host is not None and parse_host(host) is None:
        return HTTPError(
            "the Host header is malformed",
            given=f"Host: {host.decode('latin-1')}",
            expected="a name or an address, and a port if it has one",
            hint="send the server's name",
        )
    return None


def _find_coding_error(coding: bytes | None, request: Request) -> HTTPError | None:
    if coding is None:
        return None
    if b"content-length" in request.headers or request.scope.get("http_version") == "1.0":
        return HTTPError(
            "the length of the body is ambiguous",
            given="Transfer-Encoding with Content-Length, or in HTTP/1.0",
            expected="one of the two, and the first in HTTP/1.1 only",
            hint="send Content-Length",
        )
    if coding.strip().lower() != b"chunked":
        return Unimplemented(
            "the transfer coding is not supported",
            given=f"Transfer-Encoding: {coding.decode('latin-1')}",
            expected="chunked, or none",
            hint="send the body as it is",
        )
    return None
