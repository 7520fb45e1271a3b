"""One worker process: opens the index, answers requests, drains when it is told to."""

import asyncio
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bidr.errors import BidrError
from bidr.index.engines.shared_memory import share_in
from bidr.server.app import SearchService, make_app
from bidr.server.config import ServerConfig
from bidr.server.connections import raise_file_limit
from bidr.server.framing import SOCKET
from bidr.server.index_holder import KEPT_FOR, LOOK_EVERY, IndexHolder, TextEncoder
from bidr.server.json_logs import log, log_fault, log_libraries
from bidr.server.metrics import Metrics
from bidr.server.process import read_config, report_startup, watch_parent
from bidr.server.writer_client import WriterClient

if TYPE_CHECKING:
    from bidr.models.codes_only_model import CodesOnlyModel
    from bidr.models.saved_model import Model

KEEP_ALIVE = 75
LINGER = 1.0
WEIGH_EVERY = 15.0


def make_encoder(
    settings: ServerConfig, model: "Model | CodesOnlyModel", metrics: Metrics | None = None
) -> TextEncoder | None:
    """What encodes queries in words; none where the model was learned from vectors."""
    from bidr.models.saved_model import Model
    from bidr.server.encoding import query_service

    if not isinstance(model, Model):
        return None
    made = query_service(model, settings)
    if metrics is not None:
        made.batcher.batch_done = metrics.record_batch
    return made


def open_service(settings: ServerConfig) -> SearchService:
    """The index and all that answers from it."""
    share_in(settings.runtime / "codes" if settings.runtime else None)
    metrics = Metrics(settings.runtime / "metrics" if settings.runtime else None)
    served = IndexHolder(
        settings.index,
        settings.model,
        lambda model: make_encoder(settings, model, metrics),
        linger=max(KEPT_FOR, settings.limits.seconds),
    )
    link = None
    if settings.writable and settings.runtime is not None:
        link = WriterClient(settings.runtime / SOCKET, settings.limits.queue)
    return SearchService(settings, served, metrics, link)


class Worker:
    """The service, and what goes on beside its requests."""

    def __init__(self, service: SearchService) -> None:
        self.service, self.served, self.link = service, service.served, service.link
        self._weighed = 0.0
        self._trouble: str | None = None  # what the log was told last

    async def look(self) -> None:
        """Take up what is new in the index, and say what is served now."""
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, self.served.look)
        except Exception as error:  # nobody waits for this: it is tried again
            log_fault("fault", error, where="follow")
        served, metrics = self.served, self.service.metrics
        metrics.flush()
        metrics.documents.set(served.now.view.count)
        metrics.generation.set(served.now.generation)
        metrics.behind.set(1 if served.trouble else 0)
        trouble, before, self._trouble = served.trouble, self._trouble, served.trouble
        if trouble and trouble != before:
            log("behind", "warning", index=str(served.folder), why=trouble, serving=served.now.generation)
        if loop.time() - self._weighed > WEIGH_EVERY:
            self._weighed = loop.time()
            metrics.memory.set(get_pss())
            self._tell_evicted()

    def _tell_evicted(self) -> None:
        connections = self.service.connections
        if connections.evicted:
            log("connections_full", "warning", evicted=connections.evicted, limit=connections.limit)
            connections.evicted = 0

    async def follow(self) -> None:
        """Look again and again, for as long as the worker lives."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_EVERY)


def get_pss(pid: int | str = "self") -> int:
    """Bytes of memory of a process, of what it shares its part."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def make_uvicorn_server(service: SearchService) -> Any:
    """The HTTP server, with a limit on how slowly the head of a request may come."""
    import uvicorn

    from bidr.server.http_protocol import make_protocol

    limits = service.limits
    config = uvicorn.Config(
        make_app(service),
        http=make_protocol(limits.body_seconds, limits.seconds, service.connections, service.refuse_malformed),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=max(1, round(service.settings.drain)),
    )

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # it has none: the worker drains when it is told to

    return Server(config)


async def drain(service: SearchService, server: Any) -> None:
    """Take no more connections; tell those that are open to close; end when all are answered."""
    service.draining = True
    while not server.started:  # told while it begins: only then is there something to close
        await asyncio.sleep(0.01)
    log("draining", connections=len(server.server_state.connections))
    for each in server.servers:
        each.close()
    loop = asyncio.get_running_loop()
    until = loop.time() + LINGER
    # Whoever has a connection gets one more answer, which says that it is the last: no request meets a closed door.
    while server.server_state.connections and loop.time() < until:
        await asyncio.sleep(0.02)
    server.should_exit = True


async def serve(settings: ServerConfig, listening: socket.socket) -> None:
    """Answer requests until SIGTERM, or until the supervisor is gone."""
    service = await asyncio.to_thread(open_service, settings)
    connections = service.connections
    connections.limit = raise_file_limit(settings.limits.connections)
    if connections.limit < settings.limits.connections:
        log("few_files", "warning", connections=connections.limit, asked=settings.limits.connections)
    worker = Worker(service)
    server = make_uvicorn_server(service)
    loop = asyncio.get_running_loop()
    deadline_scope: list[asyncio.Task[None]] = []

    def stop() -> None:
        if not deadline_scope:
            deadline_scope.append(loop.create_task(drain(service, server)))

    loop.add_signal_handler(signal.SIGTERM, stop)
    loop.add_signal_handler(signal.SIGINT, lambda: None)  # a terminal sends it to all; the supervisor says when
    watch_parent(stop)
    tasks = [asyncio.create_task(worker.follow())]
    if worker.link is not None:
        tasks.append(asyncio.create_task(worker.link.run(worker.look)))
    tasks.append(asyncio.create_task(_ready(server, worker)))
    await server.serve(sockets=[listening])
    for task in tasks:
        task.cancel()
    service.metrics.flush()
    service.pool.shutdown(wait=False, cancel_futures=True)
    service.served.close()
    log("drained")


async def _ready(server: Any, worker: Worker) -> None:
    """Tell the supervisor when requests are answered, and writes reach the writer."""
    while not server.started or (worker.link is not None and not worker.link.up):
        await asyncio.sleep(0.01)
    worker.service.started = True
    log("serving", generation=worker.served.now.generation, documents=worker.served.now.view.count)
    report_startup({"ready": True})


def get_event_loop_runner() -> Any:
    """What runs the event loop: the quicker one where it is installed."""
    try:
        return import_module("uvloop").run
    except ModuleNotFoundError:
        return asyncio.run


def main() -> None:
    """Settings come on standard input, the listening socket as the file descriptor that argv names."""
    settings = read_config()
    log_libraries()
    listening = socket.socket(fileno=int(sys.argv[1]))
    try:
        get_event_loop_runner()(serve(settings, listening))
    except BidrError as error:
        report_startup({"error": str(error)})
        sys.exit(2)


if __name__ == "__main__":
    main()
