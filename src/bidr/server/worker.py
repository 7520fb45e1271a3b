"""Worker process: opens the index, answers requests, drains on SIGTERM."""

import asyncio
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bidr.errors import BidrError
from bidr.index.engines.shared_memory import share_in
from bidr.index.live.view import LiveView
from bidr.index.vectors import VectorMemory
from bidr.server.app import SearchService, make_app
from bidr.server.config import ServerConfig
from bidr.server.connections import raise_file_limit
from bidr.server.framing import SOCKET_NAME
from bidr.server.index_endpoint import IndexTable
from bidr.server.index_holder import MODEL_LINGER_SECONDS, REFRESH_SECONDS, EncodingService, IndexHolder
from bidr.server.json_logs import log, log_fault, log_libraries
from bidr.server.metrics import Metrics
from bidr.server.process import read_config, report_startup, watch_parent
from bidr.server.writer_client import WriterClient

if TYPE_CHECKING:
    from bidr.models.codes_only_model import CodesOnlyModel
    from bidr.models.saved_model import Model
    from bidr.server.encoding.service import IndexQueryService

KEEP_ALIVE_SECONDS = 75
DRAIN_SECONDS = 1.0
MEMORY_SECONDS = 15.0


def make_encoder(
    config: ServerConfig, model: "Model | CodesOnlyModel", metrics: Metrics | None = None
) -> EncodingService | None:
    """Open the text encoder of a model; None for models that were trained on vectors."""
    from bidr.models.saved_model import Model
    from bidr.server.encoding import make_query_service

    if not isinstance(model, Model):
        return None
    service = make_query_service(model, config)
    if metrics is not None:
        service.batcher.batch_done = metrics.record_batch
    return service


def make_vector_encoder(
    config: ServerConfig, view: LiveView, metrics: Metrics | None = None
) -> "IndexQueryService | None":
    """Open the text encoder of an index of vectors; None if there is none."""
    if config.encoder is None and view.manifest.encoder is None:
        return None
    from bidr.server.encoding.service import open_index_query_service

    service = open_index_query_service(view, config.encoder, config.encoding, config.limits.queue)
    if metrics is not None:
        service.batcher.batch_done = metrics.record_batch
    return service


def open_service(config: ServerConfig) -> SearchService:
    """Open the index and the service that searches it."""
    share_in(config.runtime / "codes" if config.runtime else None)
    metrics = Metrics(config.runtime / "metrics" if config.runtime else None)

    def open_holder(folder: Path) -> IndexHolder:
        # Another index has an encoder of its own, which it names.
        of_index = config if folder == config.index else replace(config, index=folder, encoder=None)
        return IndexHolder(
            folder,
            config.model if folder == config.index else None,
            lambda model: make_encoder(of_index, model, metrics),
            linger=max(MODEL_LINGER_SECONDS, config.limits.seconds),
            make_vector_encoder=lambda view: make_vector_encoder(of_index, view, metrics),
            memory=VectorMemory(config.cache, processes=config.workers),
        )

    holder = open_holder(config.index)
    writer = None
    if config.writable and config.runtime is not None:
        writer = WriterClient(config.runtime / SOCKET_NAME, config.limits.queue)
    service = SearchService(config, holder, metrics, writer)
    if config.indexes or config.root is not None:
        service.table = IndexTable(service, open_holder)
        service.table.refresh()
    return service


class Worker:
    """The service and its background task."""

    def __init__(self, service: SearchService) -> None:
        self.service, self.holder, self.writer = service, service.holder, service.writer
        self._measured_at = 0.0
        self._logged_error: str | None = None

    async def refresh(self) -> None:
        """Open what was committed to the index, and update metrics and the log."""
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, self._refresh_all)
        except Exception as error:  # retried by the next call
            log_fault("fault", error, where="follow")
        holder, metrics = self.holder, self.service.metrics
        metrics.flush()
        metrics.documents.set(holder.current.view.count)
        metrics.cache.set(holder.memory.cache.ram_bytes)
        metrics.generation.set(holder.current.generation)
        metrics.stale.set(1 if holder.error else 0)
        reason, logged_error, self._logged_error = holder.error, self._logged_error, holder.error
        if reason and reason != logged_error:
            log("behind", "warning", index=str(holder.folder), why=reason, serving=holder.current.generation)
        if loop.time() - self._measured_at > MEMORY_SECONDS:
            self._measured_at = loop.time()
            metrics.memory.set(get_pss())
            self._log_evictions()

    def _refresh_all(self) -> None:
        self.holder.refresh()
        if self.service.table is not None:
            self.service.table.refresh()

    def _log_evictions(self) -> None:
        connections = self.service.connections
        if connections.evicted:
            log("connections_full", "warning", evicted=connections.evicted, limit=connections.limit)
            connections.evicted = 0

    async def follow(self) -> None:
        """Refresh periodically until the worker ends."""
        while True:
            await self.refresh()
            await asyncio.sleep(REFRESH_SECONDS)


def get_pss(pid: int | str = "self") -> int:
    """Return the proportional set size (PSS) of a process in bytes; 0 if unknown."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def make_uvicorn_server(service: SearchService) -> Any:
    """Make the HTTP server, with the protocol of `uvicorn_protocol`."""
    import uvicorn

    from bidr.server.uvicorn_protocol import make_protocol

    limits = service.limits
    config = uvicorn.Config(
        make_app(service),
        http=make_protocol(limits.body_seconds, limits.seconds, service.connections, service.reject_malformed),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=max(1, round(service.config.drain)),
    )

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # the worker installs its own handlers

    return Server(config)


async def drain(service: SearchService, server: Any) -> None:
    """Stop accepting, close keep-alive connections after one more response, and end."""
    service.draining = True
    while not server.started:  # SIGTERM during start: there is nothing to close yet
        await asyncio.sleep(0.01)
    log("draining", connections=len(server.server_state.connections))
    for listener in server.servers:
        listener.close()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DRAIN_SECONDS
    # Every connection gets one more response, with "Connection: close": no request fails.
    while server.server_state.connections and loop.time() < deadline:
        await asyncio.sleep(0.02)
    server.should_exit = True


async def serve(config: ServerConfig, listener: socket.socket) -> None:
    """Answer requests until SIGTERM, or until the supervisor ends."""
    service = await asyncio.to_thread(open_service, config)
    connections = service.connections
    connections.limit = raise_file_limit(config.limits.connections)
    if connections.limit < config.limits.connections:
        log("few_files", "warning", connections=connections.limit, asked=config.limits.connections)
    worker = Worker(service)
    server = make_uvicorn_server(service)
    loop = asyncio.get_running_loop()
    deadline_scope: list[asyncio.Task[None]] = []

    def stop() -> None:
        if not deadline_scope:
            deadline_scope.append(loop.create_task(drain(service, server)))

    loop.add_signal_handler(signal.SIGTERM, stop)
    loop.add_signal_handler(signal.SIGINT, lambda: None)  # Ctrl-C: the supervisor sends SIGTERM
    watch_parent(stop)
    tasks = [asyncio.create_task(worker.follow())]
    if worker.writer is not None:
        tasks.append(asyncio.create_task(worker.writer.run(worker.refresh)))
    tasks.append(asyncio.create_task(_report_ready(server, worker)))
    await server.serve(sockets=[listener])
    for task in tasks:
        task.cancel()
    service.metrics.flush()
    service.pool.shutdown(wait=False, cancel_futures=True)
    if service.tracer is not None:
        await loop.run_in_executor(None, service.tracer.close)
    if service.table is not None:
        service.table.close()
    service.holder.close()
    log("drained")


async def _report_ready(server: Any, worker: Worker) -> None:
    """Report readiness once the server has started and the writer is connected."""
    while not server.started or (worker.writer is not None and not worker.writer.is_connected):
        await asyncio.sleep(0.01)
    worker.service.started = True
    log("serving", generation=worker.holder.current.generation, documents=worker.holder.current.view.count)
    report_startup({"ready": True})


def get_event_loop_runner() -> Any:
    """Return the `run` of uvloop, or of asyncio if uvloop is not installed."""
    try:
        return import_module("uvloop").run
    except ModuleNotFoundError:
        return asyncio.run


def main() -> None:
    """Run a worker: configuration on standard input, the listener socket as the file descriptor in argv."""
    config = read_config()
    log_libraries()
    listener = socket.socket(fileno=int(sys.argv[1]))
    try:
        get_event_loop_runner()(serve(config, listener))
    except BidrError as error:
        report_startup({"error": str(error)})
        sys.exit(2)


if __name__ == "__main__":
    main()
