"""Start and end of server processes: configuration by pipe, readiness report, parent watch, shared runtime folder.

The parent of the runtime folder is writable for every user of the machine. Therefore nothing in it is opened by a name
that others could create first: a new folder has a random name and belongs to this user only. What others create there
is never opened or followed.
"""

import asyncio
import fcntl
import json
import os
import shutil
import stat
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from bidr.server.config import ServerConfig
from bidr.utils.files import open_lock, open_regular

LENGTH = struct.Struct("<I")
READY_FD = "BIDR_SERVE_READY"
"""Environment variable with the file descriptor on which a child process reports readiness or an error."""
SHARED_MEMORY = Path("/dev/shm")
PREFIX, LOCK = "bidr-serve-", "lock"
UNLOCKED_PREFIX = ".new-"
"""Prefix of a folder that is not locked yet: without it, another server would remove the folder as abandoned."""


def read_config() -> ServerConfig:
    """Read the configuration from standard input, which the supervisor keeps open while it runs."""
    (length,) = LENGTH.unpack(_read_exactly(LENGTH.size))
    return ServerConfig.from_bytes(_read_exactly(length))


def _read_exactly(count: int) -> bytes:
    content = b""
    while len(content) < count:
        chunk = os.read(0, count - len(content))
        if not chunk:
            sys.exit("bidr: started without settings; use: bidr serve INDEX")
        content += chunk
    return content


def watch_parent(on_exit: Callable[[], None]) -> None:
    """Call `on_exit` on the event loop when the supervisor ends: standard input is then at its end."""
    loop = asyncio.get_running_loop()

    def check_stdin() -> None:
        if not os.read(0, 1):
            loop.remove_reader(0)
            on_exit()

    loop.add_reader(0, check_stdin)


def report_startup(result: dict[str, Any]) -> None:
    """Send {"ready": true} or {"error": ...} to the supervisor."""
    descriptor = os.environ.pop(READY_FD, None)
    if descriptor is not None:
        with os.fdopen(int(descriptor), "wb") as out:
            out.write(json.dumps(result).encode())


@contextmanager
def create_runtime_dir() -> Iterator[Path]:
    """Create a folder in shared memory for the processes of one server; remove it at the end.

    Also removes folders of servers that were killed.
    """
    parent = SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())
    _remove_abandoned(parent)
    with ExitStack() as stack:
        unlocked = Path(tempfile.mkdtemp(prefix=UNLOCKED_PREFIX + PREFIX, dir=parent))
        folder = parent / unlocked.name.removeprefix(UNLOCKED_PREFIX)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.callback(shutil.rmtree, unlocked, ignore_errors=True)
        lock = stack.enter_context(open_lock(unlocked / LOCK))
        fcntl.flock(lock, fcntl.LOCK_EX)
        unlocked.rename(folder)
        yield folder


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):
            if _is_own_folder(folder) and not _is_locked(folder / LOCK):
                shutil.rmtree(folder, ignore_errors=True)


def _is_own_folder(path: Path) -> bool:
    """Whether a path is a folder, not a link, that only this user can write to."""
    status = path.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _is_locked(path: Path) -> bool:
    try:
        descriptor = open_regular(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
