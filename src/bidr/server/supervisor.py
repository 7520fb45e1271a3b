"""The process that listens and looks after the others: workers, which share its socket, and the writer."""

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from bidr.errors import BidrError, ConfigError
from bidr.index.engines.shared_memory import remove_unfinished, remove_unused, share_in
from bidr.index.storage.live_state import state_in_force
from bidr.server.config import ServerConfig
from bidr.server.graceful_shutdown import accept_pending, reject_connections, stop_accepting
from bidr.server.json_logs import log
from bidr.server.metrics import forget_worker
from bidr.server.process import LENGTH, READY
from bidr.server.runtime_dir import create_runtime_dir

MODULES = {"worker": "bidr.server.worker", "writer": "bidr.server.writer_process"}
START_WITHIN = 600.0
TICK = 0.1
LONGEST_PAUSE = 30.0
TIDY_EVERY = 5.0
ACCEPTED_WITHIN = 0.1
"""Seconds in which workers accept who has connected; the supervisor answers the others."""


class ChildProcess:
    """A process that was started, and when it is ready."""

    def __init__(self, kind: str, settings: ServerConfig, listening: socket.socket) -> None:
        self.kind, self.started, self.ready = kind, time.monotonic(), False
        self.told: dict[str, object] = {}
        self._ready, write = os.pipe()
        handles = [write] if kind == "writer" else [write, listening.fileno()]
        arguments = [] if kind == "writer" else [str(listening.fileno())]
        self.process = subprocess.Popen(
            [sys.executable, "-m", MODULES[kind], *arguments],
            stdin=subprocess.PIPE,
            pass_fds=handles,
            # Queries are small: threads within one would only wait for each other.
            env={"OPENBLAS_NUM_THREADS": "1", **os.environ, READY: str(write)},
        )
        os.close(write)
        content = settings.to_bytes()
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(LENGTH.pack(len(content)) + content)
            self.process.stdin.flush()

    def look(self) -> bool:
        """Whether it has said how its start went."""
        if self._ready >= 0 and select.select([self._ready], [], [], 0)[0]:
            content = b""
            while part := os.read(self._ready, 65_536):
                content += part
            os.close(self._ready)
            self._ready = -1
            self.told = json.loads(content) if content else {}
            self.ready = bool(self.told.get("ready"))
        return self._ready < 0

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def tell(self, number: int) -> None:
        if self.alive:
            self.process.send_signal(number)

    def close(self) -> None:
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()
        if self._ready >= 0:
            os.close(self._ready)
            self._ready = -1


class RestartBackoff:
    """How long a kind of process that keeps ending is not started again: longer each time."""

    def __init__(self) -> None:
        self.failures, self.until = 0, 0.0

    def after(self, child: ChildProcess, now: float) -> None:
        """One has ended."""
        self.failures = 0 if now - child.started > LONGEST_PAUSE else self.failures + 1
        self.until = now + min(LONGEST_PAUSE, 0.1 * 2**self.failures)


class Supervisor:
    """Starts the others, starts again what fails, replaces workers one by one (SIGHUP), stops all (SIGTERM)."""

    def __init__(
        self, settings: ServerConfig, listening: socket.socket, again: Callable[[ServerConfig], ServerConfig]
    ) -> None:
        self.settings, self.listening, self._again = settings, listening, again
        self.workers: list[ChildProcess] = []
        self.writer: ChildProcess | None = None
        self.leaving: list[ChildProcess] = []
        self._pauses = {"worker": RestartBackoff(), "writer": RestartBackoff()}
        self._tidied = 0.0
        self._replace: list[ChildProcess] = []
        self._coming: ChildProcess | None = None
        self.stopping = self.renewing = False

    def run(self) -> None:
        """Until SIGTERM."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: setattr(self, "stopping", True))
        signal.signal(signal.SIGHUP, lambda *_: setattr(self, "renewing", True))
        try:
            if self.settings.writable:
                self.writer = self._start("writer")
            self.workers = [self._start("worker") for _ in range(self.settings.workers)]
            self._await_all()
            while not self.stopping:
                self._tend()
                time.sleep(TICK)
        finally:
            self._stop()

    def _start(self, kind: str) -> ChildProcess:
        return ChildProcess(kind, self.settings, self.listening)

    def _await_all(self) -> None:
        """All must come up the first time: what keeps them from it is for the person who started them."""
        every = [*self.workers, *([self.writer] if self.writer else [])]
        while not self.stopping and not all(child.look() for child in every):
            if time.monotonic() - every[0].started > START_WITHIN:
                raise ConfigError(f"{self.settings.index}: not ready after {START_WITHIN:.0f} s; see the log")
            time.sleep(TICK)
        for child in every:
            if not self.stopping and not child.ready:
                why = child.told.get("error", f"it ended with status {child.process.wait(5)}; see the log")
                raise ConfigError(f"the {child.kind} could not start: {why}")
        host, port = self.listening.getsockname()[:2]
        address = f"[{host}]" if ":" in host else host
        log("ready", url=f"http://{address}:{port}", workers=len(self.workers), writable=self.settings.writable)

    def _tend(self) -> None:
        for child in [*self.workers, *([self.writer] if self.writer else [])]:
            child.look()
        for child in [child for child in self.leaving if not child.alive]:
            self.leaving.remove(child)
            self._clear(child)
        self._revive()
        if self.renewing:
            self._begin_renewal()
        self._renew()
        if time.monotonic() - self._tidied > TIDY_EVERY:
            self._tidied = time.monotonic()
            with suppress(Exception):
                remove_unused({segment.name for segment in state_in_force(self.settings.index)[1].segments})

    def _revive(self) -> None:
        """Start again what ended, later and later if it keeps ending."""
        now = time.monotonic()
        # The place of a worker that is being replaced is taken by the one that is coming.
        expected = self._replace[0] if self._coming is not None else None
        every = [*self.workers, *([self.writer] if self.writer else [])]
        ended = [child for child in every if child is not expected and not child.alive]
        for child in [child for child in ended if now >= self._pauses[child.kind].until]:
            self._pauses[child.kind].after(child, now)
            failures = self._pauses[child.kind].failures
            log("ended", "error", kind=child.kind, status=child.process.returncode, failures=failures)
            self._clear(child)
            if child is self.writer:
                self.writer = self._start("writer")
            else:
                self.workers[self.workers.index(child)] = self._start("worker")
                self._replace = [each for each in self._replace if each is not child]

    def _begin_renewal(self) -> None:
        """New settings, for new workers in the place of all that are there now."""
        self.renewing = False
        try:
            self.settings = self._again(self.settings)
        except BidrError as error:
            log("renewal_failed", "error", why=str(error), kept=len(self.workers))
            return
        if self._coming is not None:  # it was given the settings of before
            self._dismiss(self._coming)
            self._coming = None
        self._replace = list(self.workers)
        log("renewing", workers=len(self._replace))

    def _renew(self) -> None:
        """One worker after another: the new one answers before the old one is told to leave."""
        if self._coming is None and self._replace:
            self._coming = self._start("worker")
        coming = self._coming
        if coming is None or not coming.look():
            return
        self._coming = None
        if not coming.ready:
            log("renewal_failed", "error", why=str(coming.told.get("error")), kept=len(self._replace))
            self._replace = []
            self._dismiss(coming)
            return
        old = self._replace.pop(0)
        self.workers[self.workers.index(old)] = coming
        self._dismiss(old)

    def _dismiss(self, child: ChildProcess) -> None:
        child.tell(signal.SIGTERM)
        self.leaving.append(child)

    def _clear(self, child: ChildProcess) -> None:
        """Remove what a process that has ended leaves behind."""
        child.close()
        if child.kind == "worker" and self.settings.runtime is not None:
            forget_worker(self.settings.runtime / "metrics", child.process.pid)
            remove_unfinished(child.process.pid)

    def _stop(self) -> None:
        """Requests end first, then the writer."""
        log("stopping")
        stop_accepting(self.listening)
        if any(worker.ready for worker in self.workers):
            time.sleep(ACCEPTED_WITHIN)
        workers = [*self.workers, *self.leaving, *([self._coming] if self._coming else [])]
        for worker in workers:
            worker.tell(signal.SIGTERM)
        # Who has connected while there was no worker to accept it would be reset when the last of us lets go.
        waiting = accept_pending(self.listening)
        self.listening.close()
        reject_connections(waiting)
        self._end(workers)
        if self.writer is not None:
            self._end([self.writer])

    def _end(self, children: list[ChildProcess]) -> None:
        for child in children:
            child.tell(signal.SIGTERM)
        until = time.monotonic() + self.settings.drain + 5
        for child in children:
            try:
                child.process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                log("killed", "error", kind=child.kind, why="it did not end in time")
                child.process.kill()
                child.process.wait()
            child.close()


def supervise(
    settings: ServerConfig, again: Callable[[ServerConfig], ServerConfig] = lambda settings: settings
) -> None:
    """Serve until told to stop. `again` gives the settings for workers that replace others."""
    state_in_force(settings.index)
    listening = listen(settings.host, settings.port)
    with create_runtime_dir() as folder:
        _folders(folder)
        share_in(folder / "codes")
        Supervisor(replace(settings, runtime=folder), listening, again).run()


def _folders(folder: Path) -> None:
    for name in ("codes", "metrics"):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir()


def listen(host: str, port: int) -> socket.socket:
    """The socket that all workers accept connections from."""
    try:
        # With its protocol: asyncio turns delays off for TCP alone.
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)[0]
        made = socket.socket(*found[:3])
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(found[4])
    except OSError as error:
        raise ConfigError(f"cannot listen on {host} port {port} ({error}); choose another --host or --port") from error
    made.listen(2048)
    return made
