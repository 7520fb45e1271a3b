"""Closing a listening socket in good order: whoever has connected is answered, whoever comes later is not."""

import ctypes
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress

ATTACH_FILTER = 26  # SO_ATTACH_FILTER, which Python has no name for
DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)  # one instruction of a packet filter: keep 0 bytes
AWAY = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%s"
)
BODY = (
    b'{"error":{"type":"overloaded","message":"the server is stopping","given":null,"expected":null,'
    b'"hint":"try again later"}}'
)


def stop_accepting(listening: socket.socket) -> None:
    """Let nobody else connect, in any process that has the socket; those that have stay to be accepted.

    Closing it instead would reset them, and a client cannot tell whether its request was done.
    """
    program = ctypes.create_string_buffer(DROP_ALL)
    with suppress(OSError):  # not on Linux: as if it were closed at once
        listening.setsockopt(socket.SOL_SOCKET, ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(program)))


def accept_pending(listening: socket.socket) -> list[socket.socket]:
    """The connections that nobody has accepted."""
    listening.setblocking(False)
    found = []
    with suppress(OSError):
        while True:
            found.append(listening.accept()[0])
    return found


def reject_connections(connections: Sequence[socket.socket], seconds: float = 1.0) -> None:
    """Tell clients to come again, and wait so long, for all together, for them to have heard it."""
    until = time.monotonic() + seconds
    for each in connections:
        with suppress(OSError):
            each.setblocking(False)
            each.sendall(AWAY % (len(BODY), BODY))
            each.shutdown(socket.SHUT_WR)
    for each in connections:
        # What is sent is lost if a socket is closed with something unread in it.
        with each, suppress(OSError):
            while (left := until - time.monotonic()) > 0:
                each.settimeout(left)
                if not each.recv(65_536):
                    break
