"""What processes of the server tell each other at their start and end."""

import asyncio
import json
import os
import struct
import sys
from collections.abc import Callable
from typing import Any

from bidr.server.config import ServerConfig

LENGTH = struct.Struct("<I")
READY = "BIDR_SERVE_READY"
"""The variable that names the file descriptor on which a process says that it is ready, or why it is not."""


def read_config() -> ServerConfig:
    """What the supervisor wrote. It keeps the pipe open: its end means that the supervisor is gone."""
    (length,) = LENGTH.unpack(_exactly(LENGTH.size))
    return ServerConfig.parse_binary_search(_exactly(length))


def _exactly(count: int) -> bytes:
    found = b""
    while len(found) < count:
        part = os.read(0, count - len(found))
        if not part:
            sys.exit("bidr: started without settings; use: bidr serve INDEX")
        found += part
    return found


def watch_parent(then: Callable[[], None]) -> None:
    """Call `then` when the supervisor is gone."""
    loop = asyncio.get_running_loop()

    def look() -> None:
        if not os.read(0, 1):
            loop.remove_reader(0)
            then()

    loop.add_reader(0, look)


def report_startup(told: dict[str, Any]) -> None:
    """Tell the supervisor how the start went."""
    handle = os.environ.pop(READY, None)
    if handle is not None:
        with os.fdopen(int(handle), "wb") as out:
            out.write(json.dumps(told).encode())
