"""Graceful shutdown of a listening socket: accepted connections are answered, pending ones get 503."""

import ctypes
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress

SO_ATTACH_FILTER = 26  # not in Python's socket module
DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)  # one BPF instruction: return 0 bytes
RESPONSE = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%s"
)
BODY = (
    b'{"error":{"type":"overloaded","message":"the server is stopping","given":null,"expected":null,'
    b'"hint":"try again later"}}'
)


def stop_accepting(listener: socket.socket) -> None:
    """Drop new connections in all processes that share the socket; completed handshakes can still be accepted.

    Closing the socket instead would reset them, and clients could not tell whether their request was executed.
    """
    program = ctypes.create_string_buffer(DROP_ALL)
    with suppress(OSError):  # only Linux has packet filters
        listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(program)))


def accept_pending(listener: socket.socket) -> list[socket.socket]:
    """Accept all connections that wait in the backlog."""
    listener.setblocking(False)
    connections = []
    with suppress(OSError):
        while True:
            connections.append(listener.accept()[0])
    return connections


def reject_connections(connections: Sequence[socket.socket], seconds: float = 1.0) -> None:
    """Answer 503, and wait up to `seconds` in total until the clients have closed."""
    deadline = time.monotonic() + seconds
    for connection in connections:
        with suppress(OSError):
            connection.setblocking(False)
            connection.sendall(RESPONSE % (len(BODY), BODY))
            connection.shutdown(socket.SHUT_WR)
    for connection in connections:
        # Closing a socket with unread data resets it, and the client would lose the response.
        with connection, suppress(OSError):
            while (remaining := deadline - time.monotonic()) > 0:
                connection.settimeout(remaining)
                if not connection.recv(65_536):
                    break
