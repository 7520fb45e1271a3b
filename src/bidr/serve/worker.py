"""One worker process: opens the index, answers requests, drains when it is told to."""

import asyncio
import os
import signal
import socket
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from bidr.serve.app import Service, make_app
from bidr.serve.logs import log
from bidr.serve.metrics import Metrics
from bidr.serve.served import LOOK_EVERY, Served, TextService
from bidr.serve.settings import Settings

if TYPE_CHECKING:
    from bidr.model.folder import Model
    from bidr.model.frozen import FrozenModel

KEEP_ALIVE = 75


def service_of(settings: Settings, model: "Model | FrozenModel") -> TextService | None:
    """What encodes queries in words; none where the model was learned from vectors."""
    from bidr.model.folder import Model

    if not isinstance(model, Model):
        return None
    try:
        made: TextService = import_module("bidr.serve.encoding").query_service(model, settings)
    except ModuleNotFoundError:
        from bidr.serve.plain import PlainService

        made = PlainService(model)
    return made


def open_service(settings: Settings) -> Service:
    """The index and all that answers from it."""
    metrics = Metrics(settings.runtime / "metrics" if settings.runtime else None)
    served = Served(settings.index, settings.model, lambda model: service_of(settings, model))
    return Service(settings, served, metrics)


async def follow(service: Service) -> None:
    """Look for what is new in the index, for as long as the worker lives."""
    loop = asyncio.get_running_loop()
    while True:
        before = service.served.trouble
        await loop.run_in_executor(None, service.served.look)
        tell(service, before)
        await asyncio.sleep(LOOK_EVERY)


def tell(service: Service, before: str | None) -> None:
    """Say in log and metrics what is served now."""
    served, metrics = service.served, service.metrics
    metrics.documents.set(served.now.view.count)
    metrics.generation.set(served.now.generation)
    metrics.behind.set(1 if served.trouble else 0)
    if served.trouble and served.trouble != before:
        log("behind", "warning", index=str(served.folder), why=served.trouble, serving=served.now.generation)


async def serve(settings: Settings, listening: socket.socket, ready: Any = None) -> None:
    """Answer requests until SIGTERM."""
    import uvicorn

    service = await asyncio.to_thread(open_service, settings)
    config = uvicorn.Config(
        make_app(service),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        limit_concurrency=settings.limits.connections,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=max(1, round(settings.drain)),
    )
    server = uvicorn.Server(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: setattr(server, "should_exit", True))
    following = asyncio.create_task(follow(service))
    log("serving", index=str(settings.index), generation=service.served.now.generation)
    if ready is not None:
        ready()
    await server._serve(sockets=[listening])
    following.cancel()
    service.pool.shutdown(wait=False, cancel_futures=True)
    service.served.close()


def main() -> None:
    """Settings come on standard input, the listening socket as the file descriptor that argv names."""
    settings = Settings.from_bytes(sys.stdin.buffer.read())
    listening = socket.socket(fileno=int(sys.argv[1]))
    asyncio.run(serve(settings, listening))
    os._exit(0)


if __name__ == "__main__":
    main()
