"""Who may do what: keys compared in constant time, names of hosts where there are none, and how often one may ask."""

import hmac
import time
from collections import OrderedDict
from typing import Literal

from bidr.serve.call import Call
from bidr.serve.errors import Forbidden, TooMany, Unsaid
from bidr.serve.settings import Keys, loopback

Right = Literal["none", "read", "write"]
CLIENTS = 10_000
WHO = ((b"www-authenticate", b"Bearer"),)


class Doorkeeper:
    """Lets requests in, or raises what they are refused with."""

    def __init__(self, keys: Keys, rate: float) -> None:
        self._read = [key.encode() for key in (keys.read, keys.write) if key]
        self._write = [keys.write.encode()] if keys.write else []
        self._keys, self._rate = keys, rate
        self._clients: OrderedDict[bytes | str, tuple[float, float]] = OrderedDict()

    def admit(self, call: Call, right: Right) -> None:
        """Check the key for what is asked, then the rate."""
        if right == "none":
            return
        if self._keys.any:
            self._count(self._known(call, right))
        else:
            _check_host(call)
            self._count(call.client)

    def _known(self, call: Call, right: Right) -> bytes | str:
        kind, _, given = call.headers.get(b"authorization", b"").partition(b" ")
        given = given.strip()
        if kind.lower() != b"bearer" or not given:
            if right == "read" and not self._keys.read:
                return call.client  # only writing needs a key here
            raise Unsaid("a key is needed", expected="the header 'Authorization: Bearer KEY'", headers=WHO)
        # Every key is compared, whichever is right, so that the time says nothing.
        reads = [hmac.compare_digest(given, key) for key in self._read]
        writes = [hmac.compare_digest(given, key) for key in self._write]
        if not any(reads):
            self._count(call.client)
            raise Unsaid("the key is not known", expected="the header 'Authorization: Bearer KEY'", headers=WHO)
        if right == "write" and not any(writes):
            raise Forbidden("this key may read only", hint="use the write key")
        return given

    def _count(self, client: bytes | str) -> None:
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
            raise TooMany(
                "more requests than one client may send",
                retry_after=(1 - left) / self._rate,
                expected=f"up to {self._rate:g} a second",
                hint="put several queries into one request",
            )


def _check_host(call: Call) -> None:
    """Without keys a page of another site must not get at a server on this machine under a name of its own."""
    host = call.headers.get(b"host", b"").decode("latin-1")
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if not loopback(name.lower()):
        raise Forbidden(
            "this server is for its own machine", given=f"Host: {host}", expected="localhost", hint="set keys"
        )
