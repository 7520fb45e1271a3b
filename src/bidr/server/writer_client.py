"""Client of the writer process: submits write jobs and receives notices of commits."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bidr.server.errors import Overloaded
from bidr.server.framing import decode_error, read_frame, write_frame
from bidr.server.json_logs import log

RECONNECT_SECONDS = 0.2
Refresh = Callable[[], Awaitable[None]]


class WriterClient:
    """Submits jobs to the writer process and waits for their results."""

    def __init__(self, path: Path, max_pending: int) -> None:
        self.path, self._max_pending = path, max_pending
        self._pending: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._last_number = 0
        self._writer: asyncio.StreamWriter | None = None

    @property
    def is_connected(self) -> bool:
        return self._writer is not None

    async def submit(self, job: dict[str, Any], payload: bytes = b"") -> dict[str, Any]:
        """Execute a job and return its result; raises the HTTPError that rejected it."""
        if self._writer is None:
            raise Overloaded(1.0, "the writer is starting")
        if len(self._pending) >= self._max_pending:
            raise Overloaded(1.0, "too many writes are waiting", hint="try again later (limit.queue)")
        self._last_number += 1
        number = self._last_number
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._pending[number] = future
        try:
            write_frame(self._writer, job | {"n": number}, payload)
            await self._writer.drain()
            return await future
        except ConnectionError as error:
            raise _make_lost_error() from error
        finally:
            self._pending.pop(number, None)

    async def run(self, refresh: Refresh) -> None:
        """Keep the connection open. `refresh` is awaited on connection and after each commit."""
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(self.path, limit=1 << 20)
            except OSError:
                await asyncio.sleep(RECONNECT_SECONDS)
                continue
            self._writer = writer
            try:
                await refresh()
                await self._receive(reader, writer, refresh)
            except (asyncio.IncompleteReadError, ConnectionError):
                log("writer_gone", "warning")
            finally:
                self._writer = None
                writer.close()
                for future in self._pending.values():
                    if not future.done():
                        future.set_exception(_make_lost_error())

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, refresh: Refresh) -> None:
        while True:
            message, _ = await read_frame(reader)
            if message["op"] == "commit":
                await refresh()
                write_frame(writer, {"op": "seen", "commit": message["commit"]})
                continue
            future = self._pending.get(message["n"])
            if future is None or future.done():
                continue
            if message["op"] == "done":
                future.set_result(message["result"])
            else:
                future.set_exception(decode_error(message["error"]))


def _make_lost_error() -> Overloaded:
    return Overloaded(
        1.0,
        "the writer ended before it answered: the documents may have been written, or not",
        hint="send the request again: adding a document again replaces it",
    )
