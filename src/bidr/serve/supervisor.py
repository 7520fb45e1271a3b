"""The process that listens: it starts workers, which share its socket."""

import asyncio
import socket

from bidr.errors import ConfigError
from bidr.serve.settings import Settings
from bidr.serve.worker import serve


def supervise(settings: Settings) -> None:
    """Serve until told to stop."""
    listening = listen(settings.host, settings.port)
    asyncio.run(serve(settings, listening))


def listen(host: str, port: int) -> socket.socket:
    """The socket that all workers accept connections from."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)[0]
        made = socket.socket(*found[:3])  # with its protocol: asyncio turns delays off for TCP alone
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(found[4])
    except OSError as error:
        raise ConfigError(f"cannot listen on {host} port {port} ({error}); choose another --host or --port") from error
    made.listen(2048)
    made.set_inheritable(True)
    return made
