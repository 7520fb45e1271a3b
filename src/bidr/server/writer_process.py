"""The writer process: takes jobs from all workers, commits them, and answers when every worker has seen the commit."""

import asyncio
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from bidr.data.types import Document
from bidr.errors import BidrError
from bidr.server.config import ServerConfig
from bidr.server.errors import HTTPError, InternalError, Overloaded, to_http_error
from bidr.server.framing import SOCKET, encode_error, read_frame, write_frame
from bidr.server.json_logs import log, log_fault
from bidr.server.process import read_config, report_startup, watch_parent
from bidr.server.write_batcher import AddJob, DeleteJob, Job, Outcome, WriteBatcher
from bidr.utils.progress import console

SEEN_WITHIN = 1.0
JOBS_AT_ONCE = 64


class WorkerConnection:
    """A worker: what it was told last, and what it has seen."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer, self.seen = writer, 0


class WriteServer:
    """Takes jobs, has them done a few at a time, and answers them."""

    def __init__(self, writing: WriteBatcher, most: int, idle: float) -> None:
        self.writing, self.most, self.idle = writing, most, idle
        self.links: set[WorkerConnection] = set()
        self.jobs: asyncio.Queue[tuple[WorkerConnection, int, Job]] = asyncio.Queue()
        self.commits = 0
        self._thread = ThreadPoolExecutor(1, "write")
        self._news = asyncio.Condition()
        self._answering: set[asyncio.Task[None]] = set()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Listen to one worker for as long as it is there."""
        link = WorkerConnection(writer)
        link.seen = self.commits  # it has looked at the index before it came, and looks again when it is here
        self.links.add(link)
        try:
            while True:
                about, more = await read_frame(reader)
                if about["op"] == "seen":
                    link.seen = max(link.seen, about["commit"])
                    async with self._news:
                        self._news.notify_all()
                elif self.jobs.qsize() >= self.most:
                    self._refuse(link, about["n"], Overloaded(1.0, "too many writes are waiting"))
                else:
                    self.jobs.put_nowait((link, about["n"], parse_job(about, more)))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.links.discard(link)
            writer.close()
            async with self._news:
                self._news.notify_all()

    async def work(self) -> None:
        """Do what is asked, as much at once as there is."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                taken = [await asyncio.wait_for(self.jobs.get(), self.idle)]
            except TimeoutError:
                if self.writing.open:
                    await loop.run_in_executor(self._thread, self.writing.release)
                continue
            while len(taken) < JOBS_AT_ONCE and not self.jobs.empty():
                taken.append(self.jobs.get_nowait())
            outcomes = await loop.run_in_executor(self._thread, self._apply, [job for _, _, job in taken])
            self.commits += 1
            answering = asyncio.create_task(self._answer(taken, outcomes, self.commits))
            self._answering.add(answering)
            answering.add_done_callback(self._answering.discard)

    def _apply(self, jobs: Sequence[Job]) -> list[Outcome]:
        try:
            return self.writing.apply(jobs)
        except Exception as error:
            log_fault("fault", error, where="writer")
            return [InternalError("a fault of the writer; the server's log says more")] * len(jobs)

    async def _answer(
        self, taken: Sequence[tuple[WorkerConnection, int, Job]], outcomes: list[Outcome], commit: int
    ) -> None:
        """Tell every worker to look, wait until all have, then answer: the next search finds what was added."""
        for link in self.links:
            write_frame(link.writer, {"op": "commit", "commit": commit})
        try:
            async with asyncio.timeout(SEEN_WITHIN), self._news:
                await self._news.wait_for(lambda: all(link.seen >= commit for link in self.links))
        except TimeoutError:
            log("unseen", "warning", why="a worker did not look in time; it will within a second")
        for (link, number, _), outcome in zip(taken, outcomes, strict=True):
            if isinstance(outcome, BidrError):
                refused = to_http_error(outcome) or Overloaded(5.0, "the index cannot be written")
                if refused is not outcome:
                    log("refused", "warning", why=str(outcome))
                self._refuse(link, number, refused)
            elif link in self.links:
                write_frame(link.writer, {"op": "done", "n": number, "result": outcome})

    def _refuse(self, link: WorkerConnection, number: int, error: HTTPError) -> None:
        if link in self.links:
            write_frame(link.writer, {"op": "refused", "n": number, "error": encode_error(error)})

    async def close(self) -> None:
        if self._answering:
            await asyncio.wait(self._answering, timeout=SEEN_WITHIN)
        await asyncio.get_running_loop().run_in_executor(self._thread, self.writing.release)


def parse_job(about: dict[str, Any], more: bytes) -> Job:
    """What a frame asks for; the worker has checked it."""
    if about["op"] == "delete":
        return DeleteJob(about["ids"], about["missing_ok"])
    documents = [Document(*fields) for fields in about["documents"]]
    vectors = np.frombuffer(more, dtype="<f4").reshape(len(documents), -1).astype(np.float32) if more else None
    return AddJob(documents, vectors, about["replace"])


async def run(settings: ServerConfig) -> None:
    """Write for the workers until SIGTERM, or until the supervisor is gone."""
    from bidr.server.worker import make_encoder

    writing = WriteBatcher(settings.index, settings.model, lambda model: make_encoder(settings, model))
    desk = WriteServer(writing, settings.limits.queue, settings.writer_idle)
    assert settings.runtime is not None
    path = settings.runtime / SOCKET
    path.unlink(missing_ok=True)
    server = await asyncio.start_unix_server(desk.connected, path)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, lambda: None)  # a terminal sends it to all; the supervisor says when
    watch_parent(stop.set)
    working = asyncio.create_task(desk.work())
    report_startup({"ready": True})
    await stop.wait()
    server.close()
    working.cancel()
    await desk.close()


def main() -> None:
    settings = read_config()
    console.quiet = True  # bars are for people; the log is for machines
    asyncio.run(run(settings))


if __name__ == "__main__":
    main()
    sys.exit(0)
