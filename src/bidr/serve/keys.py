"""Who may do what: keys compared in constant time, names of hosts where there are none, and how often one may ask."""

import hmac
import time
from collections import OrderedDict
from typing import Literal

from bidr.serve.call import Call
from bidr.serve.errors import Forbidden, Refused, TooMany, Unsaid
from bidr.serve.settings import Keys, loopback

Right = Literal["none", "read", "write"]
CLIENTS = 10_000
EXPECTED, ASK = 'the header "Authorization: Bearer KEY"', "ask whoever runs the server for a key"
WHO = ((b"www-authenticate", b"Bearer"),)


class Doorkeeper:
    """Lets requests in, or raises what they are refused with."""

    def __init__(self, keys: Keys, rate: float) -> None:
        self._read = [key.encode() for key in (keys.read, keys.write) if key]
        self._write = [keys.write.encode()] if keys.write else []
        self._keys, self._rate = keys, rate
        self._clients: OrderedDict[bytes | str, tuple[float, float]] = OrderedDict()

    def admit(self, call: Call, right: Right) -> None:
        """Check the rate, and the key for what is asked."""
        if right == "none":
            return
        who, refused = self._known(call, right) if self._keys.any else (call.client, _strange_host(call))
        self._count(who)  # what is refused counts too
        if refused is not None:
            raise refused

    def _known(self, call: Call, right: Right) -> tuple[bytes | str, Refused | None]:
        """Who asks, a key or an address, and why it is not let in."""
        kind, _, given = call.headers.get(b"authorization", b"").partition(b" ")
        given = given.strip()
        if kind.lower() != b"bearer" or not given:
            if right == "read" and not self._keys.read:
                return call.client, _strange_host(call)  # only writing needs a key here
            return call.client, Unsaid("a key is needed", given="none", expected=EXPECTED, hint=ASK, headers=WHO)
        # Every key is compared, whichever is right, so that the time says nothing.
        reads = [hmac.compare_digest(given, key) for key in self._read]
        writes = [hmac.compare_digest(given, key) for key in self._write]
        if not any(reads):
            return call.client, Unsaid(
                "the key is not known", given="another key", expected=EXPECTED, hint=ASK, headers=WHO
            )
        if right == "write" and not any(writes):
            return given, Forbidden(
                "this key may read only", given="the read key", expected="the write key", hint="send the write key"
            )
        return given, None

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
                given=f"more than {self._rate:g} in the last second",
                expected=f"up to {self._rate:g} a second",
                hint="put several queries into one request",
            )


def _strange_host(call: Call) -> Refused | None:
    """Without a key, a page of another site must not get at a server on this machine under a name of its own."""
    host = call.headers.get(b"host", b"").decode("latin-1")
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if loopback(name.lower()):
        return None
    return Forbidden(
        "this server is for its own machine", given=f"Host: {host}", expected="localhost", hint="set a read key"
    )
