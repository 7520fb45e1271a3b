"""Supervisor: owns the listening socket, starts and restarts workers and the writer process."""

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
from bidr.index.storage.live_state import read_current_state
from bidr.server.config import ServerConfig
from bidr.server.graceful_shutdown import accept_pending, reject_connections, stop_accepting
from bidr.server.index_endpoint import list_folders
from bidr.server.json_logs import log
from bidr.server.metrics import forget_worker
from bidr.server.process import LENGTH, READY_FD, create_runtime_dir

MODULES = {"worker": "bidr.server.worker", "writer": "bidr.server.writer_process"}
START_TIMEOUT = 600.0
POLL_SECONDS = 0.1
MAX_BACKOFF_SECONDS = 30.0
CLEANUP_SECONDS = 5.0
ACCEPT_SECONDS = 0.1
"""Time for workers to accept pending connections on shutdown; the supervisor rejects the others."""


class ChildProcess:
    """A child process and its readiness."""

    def __init__(self, kind: str, config: ServerConfig, listener: socket.socket) -> None:
        self.kind, self.started, self.is_ready = kind, time.monotonic(), False
        self.report: dict[str, object] = {}
        self._ready_fd, write_fd = os.pipe()
        descriptors = [write_fd] if kind == "writer" else [write_fd, listener.fileno()]
        arguments = [] if kind == "writer" else [str(listener.fileno())]
        self.process = subprocess.Popen(
            [sys.executable, "-m", MODULES[kind], *arguments],
            stdin=subprocess.PIPE,
            pass_fds=descriptors,
            # Queries are small: BLAS threads would only wait for each other.
            env={"OPENBLAS_NUM_THREADS": "1", **os.environ, READY_FD: str(write_fd)},
        )
        os.close(write_fd)
        content = config.to_bytes()
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(LENGTH.pack(len(content)) + content)
            self.process.stdin.flush()

    def poll_ready(self) -> bool:
        """Read the start-up report, without blocking; return whether it has arrived."""
        if self._ready_fd >= 0 and select.select([self._ready_fd], [], [], 0)[0]:
            content = b""
            while chunk := os.read(self._ready_fd, 65_536):
                content += chunk
            os.close(self._ready_fd)
            self._ready_fd = -1
            self.report = json.loads(content) if content else {}
            self.is_ready = bool(self.report.get("ready"))
        return self._ready_fd < 0

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def send_signal(self, number: int) -> None:
        if self.is_alive:
            self.process.send_signal(number)

    def close(self) -> None:
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()
        if self._ready_fd >= 0:
            os.close(self._ready_fd)
            self._ready_fd = -1


class RestartBackoff:
    """Exponential backoff for restarts of one kind of process."""

    def __init__(self) -> None:
        self.failures, self.restart_at = 0, 0.0

    def record_exit(self, child: ChildProcess, now: float) -> None:
        """Record that a process has ended."""
        self.failures = 0 if now - child.started > MAX_BACKOFF_SECONDS else self.failures + 1
        self.restart_at = now + min(MAX_BACKOFF_SECONDS, 0.1 * 2**self.failures)


class Supervisor:
    """Starts processes, restarts failed ones, replaces workers one by one (SIGHUP), stops all (SIGTERM)."""

    def __init__(
        self, config: ServerConfig, listener: socket.socket, reload_config: Callable[[ServerConfig], ServerConfig]
    ) -> None:
        self.config, self.listener, self._reload_config = config, listener, reload_config
        self.workers: list[ChildProcess] = []
        self.writer: ChildProcess | None = None
        self.terminating: list[ChildProcess] = []
        self._backoffs = {"worker": RestartBackoff(), "writer": RestartBackoff()}
        self._cleaned_at = 0.0
        self._outdated: list[ChildProcess] = []
        self._replacement: ChildProcess | None = None
        self.is_stopping = self.is_reload_requested = False

    def run(self) -> None:
        """Run until SIGTERM."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: setattr(self, "is_stopping", True))
        signal.signal(signal.SIGHUP, lambda *_: setattr(self, "is_reload_requested", True))
        try:
            if self.config.writable:
                self.writer = self._start("writer")
            self.workers = [self._start("worker") for _ in range(self.config.workers)]
            self._wait_until_ready()
            while not self.is_stopping:
                self._poll()
                time.sleep(POLL_SECONDS)
        finally:
            self._stop()

    def _start(self, kind: str) -> ChildProcess:
        return ChildProcess(kind, self.config, self.listener)

    def _wait_until_ready(self) -> None:
        """Wait until all processes are ready; raises ConfigError if one cannot start."""
        children = [*self.workers, *([self.writer] if self.writer else [])]
        while not self.is_stopping and not all(child.poll_ready() for child in children):
            if time.monotonic() - children[0].started > START_TIMEOUT:
                raise ConfigError(f"{self.config.index}: not ready after {START_TIMEOUT:.0f} s; see the log")
            time.sleep(POLL_SECONDS)
        for child in children:
            if not self.is_stopping and not child.is_ready:
                reason = child.report.get("error", f"it ended with status {child.process.wait(5)}; see the log")
                raise ConfigError(f"the {child.kind} could not start: {reason}")
        host, port = self.listener.getsockname()[:2]
        address = f"[{host}]" if ":" in host else host
        log("ready", url=f"http://{address}:{port}", workers=len(self.workers), writable=self.config.writable)

    def _poll(self) -> None:
        for child in [*self.workers, *([self.writer] if self.writer else [])]:
            child.poll_ready()
        for child in [child for child in self.terminating if not child.is_alive]:
            self.terminating.remove(child)
            self._clean_up(child)
        self._restart_failed()
        if self.is_reload_requested:
            self._begin_reload()
        self._replace_next()
        if time.monotonic() - self._cleaned_at > CLEANUP_SECONDS:
            self._cleaned_at = time.monotonic()
            with suppress(Exception):
                folders = {self.config.index, *list_folders(self.config).values()}
                states = [read_current_state(folder)[1] for folder in folders]
                remove_unused({segment.name for state in states for segment in state.segments})

    def _restart_failed(self) -> None:
        """Restart processes that have ended, after an exponential backoff."""
        now = time.monotonic()
        # A worker that is being replaced is not restarted: its replacement has been started.
        replaced = self._outdated[0] if self._replacement is not None else None
        children = [*self.workers, *([self.writer] if self.writer else [])]
        ended = [child for child in children if child is not replaced and not child.is_alive]
        for child in [child for child in ended if now >= self._backoffs[child.kind].restart_at]:
            self._backoffs[child.kind].record_exit(child, now)
            failures = self._backoffs[child.kind].failures
            log("ended", "error", kind=child.kind, status=child.process.returncode, failures=failures)
            self._clean_up(child)
            if child is self.writer:
                self.writer = self._start("writer")
            else:
                self.workers[self.workers.index(child)] = self._start("worker")
                self._outdated = [worker for worker in self._outdated if worker is not child]

    def _begin_reload(self) -> None:
        """Reload the configuration and mark all workers as outdated."""
        self.is_reload_requested = False
        try:
            self.config = self._reload_config(self.config)
        except BidrError as error:
            log("renewal_failed", "error", why=str(error), kept=len(self.workers))
            return
        if self._replacement is not None:  # started with the previous configuration
            self._terminate(self._replacement)
            self._replacement = None
        self._outdated = list(self.workers)
        log("renewing", workers=len(self._outdated))

    def _replace_next(self) -> None:
        """Replace one outdated worker: the new one is ready before the old one is terminated."""
        if self._replacement is None and self._outdated:
            self._replacement = self._start("worker")
        replacement = self._replacement
        if replacement is None or not replacement.poll_ready():
            return
        self._replacement = None
        if not replacement.is_ready:
            log("renewal_failed", "error", why=str(replacement.report.get("error")), kept=len(self._outdated))
            self._outdated = []
            self._terminate(replacement)
            return
        old = self._outdated.pop(0)
        self.workers[self.workers.index(old)] = replacement
        self._terminate(old)

    def _terminate(self, child: ChildProcess) -> None:
        child.send_signal(signal.SIGTERM)
        self.terminating.append(child)

    def _clean_up(self, child: ChildProcess) -> None:
        """Remove files that an ended process has left."""
        child.close()
        if child.kind == "worker" and self.config.runtime is not None:
            forget_worker(self.config.runtime / "metrics", child.process.pid)
            remove_unfinished(child.process.pid)

    def _stop(self) -> None:
        """Stop workers first, then the writer."""
        log("stopping")
        stop_accepting(self.listener)
        if any(worker.is_ready for worker in self.workers):
            time.sleep(ACCEPT_SECONDS)
        workers = [*self.workers, *self.terminating, *([self._replacement] if self._replacement else [])]
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
        # Closing the last reference to the socket would reset connections that no worker has accepted.
        pending = accept_pending(self.listener)
        self.listener.close()
        reject_connections(pending)
        self._wait_for_exit(workers)
        if self.writer is not None:
            self._wait_for_exit([self.writer])

    def _wait_for_exit(self, children: list[ChildProcess]) -> None:
        for child in children:
            child.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + self.config.drain + 5
        for child in children:
            try:
                child.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                log("killed", "error", kind=child.kind, why="it did not end in time")
                child.process.kill()
                child.process.wait()
            child.close()


def supervise(
    config: ServerConfig, reload_config: Callable[[ServerConfig], ServerConfig] = lambda config: config
) -> None:
    """Serve until SIGTERM. `reload_config` returns the configuration for SIGHUP."""
    read_current_state(config.index)
    listener = listen(config.host, config.port)
    with create_runtime_dir() as folder:
        _create_subfolders(folder)
        share_in(folder / "codes")
        Supervisor(replace(config, runtime=folder), listener, reload_config).run()


def _create_subfolders(folder: Path) -> None:
    for name in ("codes", "metrics"):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir()


def listen(host: str, port: int) -> socket.socket:
    """Open the listening socket that all workers accept from."""
    try:
        # With a protocol: asyncio sets TCP_NODELAY only if the protocol of the socket is TCP.
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)[0]
        listener = socket.socket(*address[:3])
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address[4])
    except OSError as error:
        raise ConfigError(f"cannot listen on {host} port {port} ({error}); choose another --host or --port") from error
    listener.listen(2048)
    return listener
