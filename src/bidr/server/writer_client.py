"""A worker's end of the line to the writer: jobs go there, and news of commits come from there."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bidr.server.errors import Overloaded
from bidr.server.framing import decode_error, read_frame, write_frame
from bidr.server.json_logs import log

AGAIN = 0.2
Look = Callable[[], Awaitable[None]]


class WriterClient:
    """Sends jobs and waits for what became of them."""

    def __init__(self, path: Path, most: int) -> None:
        self.path, self._most = path, most
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._number = 0
        self._writer: asyncio.StreamWriter | None = None

    @property
    def up(self) -> bool:
        return self._writer is not None

    async def ask(self, about: dict[str, Any], more: bytes = b"") -> dict[str, Any]:
        """Have a job done; raises what it was refused with."""
        if self._writer is None:
            raise Overloaded(1.0, "the writer is starting")
        if len(self._waiting) >= self._most:
            raise Overloaded(1.0, "too many writes are waiting", hint="try again later (limit.queue)")
        self._number += 1
        number = self._number
        done: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = done
        try:
            write_frame(self._writer, about | {"n": number}, more)
            await self._writer.drain()
            return await done
        except ConnectionError as error:
            raise _lost() from error
        finally:
            self._waiting.pop(number, None)

    async def run(self, look: Look) -> None:
        """Keep the line up for as long as the worker lives. `look` is called, and waited for, after each commit."""
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(self.path, limit=1 << 20)
            except OSError:
                await asyncio.sleep(AGAIN)
                continue
            self._writer = writer
            try:
                await look()
                await self._listen(reader, writer, look)
            except (asyncio.IncompleteReadError, ConnectionError):
                log("writer_gone", "warning")
            finally:
                self._writer = None
                writer.close()
                for done in self._waiting.values():
                    if not done.done():
                        done.set_exception(_lost())

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, look: Look) -> None:
        while True:
            about, _ = await read_frame(reader)
            if about["op"] == "commit":
                await look()
                write_frame(writer, {"op": "seen", "commit": about["commit"]})
                continue
            done = self._waiting.get(about["n"])
            if done is None or done.done():
                continue
            if about["op"] == "done":
                done.set_result(about["result"])
            else:
                done.set_exception(decode_error(about["error"]))


def _lost() -> Overloaded:
    return Overloaded(
        1.0,
        "the writer went away before it answered: it may have written this, or not",
        hint="send it again: adding what is there already replaces it",
    )
