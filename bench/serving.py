"""What the scripts that measure the server share: a server to ask, and how to ask it."""

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Self


class Server:
    """`bidr serve` on a free port of loopback, as processes of its own. Use it in a `with` block."""

    def __init__(self, index: Path, *flags: str) -> None:
        self.log = tempfile.NamedTemporaryFile(suffix=".log")  # noqa: SIM115
        command = [sys.executable, "-m", "bidr", "serve", str(index), "--port=0", "--limit.rate=0", *flags]
        self.process = subprocess.Popen(command, stderr=self.log, stdout=self.log)
        self.pid = self.process.pid
        while not (ready := self.said("ready")):
            if self.process.poll() is not None:
                sys.exit(Path(self.log.name).read_text())
            time.sleep(0.1)
        self.port = int(ready["url"].rpartition(":")[2])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.terminate()
        self.process.wait(60)

    def said(self, event: str) -> dict:
        """What the log says of the first event of this kind; nothing where there was none."""
        lines = Path(self.log.name).read_text().splitlines()
        found = (json.loads(line) for line in lines if line.startswith("{"))
        return next((one for one in found if one["event"] == event), {})

    def children(self, kind: str = "") -> list[int]:
        """Processes that it started: `worker`, `writer`, or all."""
        found = map(int, Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split())
        return [each for each in found if f"bidr.server.{kind}" in _command(each)]

    def cpu(self) -> float:
        """Seconds of CPU of all its processes, thread by thread: to the nanosecond."""
        total = 0
        for each in (self.pid, *self.children()):
            for thread in Path(f"/proc/{each}/task").iterdir():
                total += int((thread / "schedstat").read_text().split()[0])
        return total / 1e9

    def connection(self) -> HTTPConnection:
        return HTTPConnection("127.0.0.1", self.port, timeout=60)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def post(line: HTTPConnection, path: str, body: bytes | dict, kind: str = "application/json") -> tuple[int, bytes]:
    """Status and body of the answer."""
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    line.request("POST", path, sent, {"Content-Type": kind})
    found = line.getresponse()
    return found.status, found.read()


def together(run: Callable[[int], object], threads: int) -> None:
    """Run it on several threads, each with its number; an error of one is raised here."""
    errors: list[BaseException] = []

    def one(number: int) -> None:
        try:
            run(number)
        except BaseException as error:
            errors.append(error)

    every = [threading.Thread(target=one, args=(number,)) for number in range(threads)]
    for each in every:
        each.start()
    for each in every:
        each.join()
    if errors:
        raise errors[0]
