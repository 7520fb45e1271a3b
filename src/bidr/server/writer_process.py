"""Writer process: commits jobs of all workers and answers when every worker has opened the commit."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bidr.data.types import Document
from bidr.errors import BidrError
from bidr.index.storage.commit import hold_writer_lock
from bidr.pipeline.create import create_index
from bidr.server.config import ServerConfig
from bidr.server.errors import HTTPError, IndexConflict, InternalError, NotFound, Overloaded, to_http_error
from bidr.server.framing import SOCKET_NAME, encode_error, read_frame, write_frame
from bidr.server.index_endpoint import list_folders
from bidr.server.json_logs import log, log_fault
from bidr.server.process import read_config, report_startup, watch_parent
from bidr.server.write_batcher import (
    LOCK_TIMEOUT,
    AddJob,
    AttributesJob,
    AttributesWhereJob,
    DeleteJob,
    DeleteWhereJob,
    Job,
    Outcome,
    WriteBatcher,
)
from bidr.utils.files import remove, storage_errors, sync_folder
from bidr.utils.progress import console

REFRESH_TIMEOUT = 1.0
MAX_BATCH_JOBS = 64


class WorkerConnection:
    """Connection of a worker, and the last commit that it has opened."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer, self.last_commit = writer, 0


class WriteServer:
    """Queues jobs, commits them in batches, and answers them."""

    def __init__(self, batcher: WriteBatcher, max_jobs: int, idle_seconds: float) -> None:
        self.batcher, self.max_jobs, self.idle_seconds = batcher, max_jobs, idle_seconds
        self.batchers: dict[str, WriteBatcher] = {}
        self.open_batcher: Callable[[str], WriteBatcher] | None = None
        self.root: Path | None = None
        self.workers: set[WorkerConnection] = set()
        self.jobs: asyncio.Queue[QueuedJob] = asyncio.Queue()
        self.commits = 0
        self._thread = ThreadPoolExecutor(1, "write")
        self._refreshed = asyncio.Condition()
        self._answer_tasks: set[asyncio.Task[None]] = set()

    async def handle_worker(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Receive jobs of one worker until it disconnects."""
        worker = WorkerConnection(writer)
        worker.last_commit = self.commits  # workers refresh when they connect
        self.workers.add(worker)
        try:
            while True:
                message, payload = await read_frame(reader)
                if message["op"] == "seen":
                    worker.last_commit = max(worker.last_commit, message["commit"])
                    async with self._refreshed:
                        self._refreshed.notify_all()
                elif self.jobs.qsize() >= self.max_jobs:
                    self._reject(worker, message["n"], Overloaded(1.0, "too many writes are waiting"))
                else:
                    job = parse_job(message, payload)
                    self.jobs.put_nowait(QueuedJob(worker, message["n"], job, message.get("index")))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.workers.discard(worker)
            writer.close()
            async with self._refreshed:
                self._refreshed.notify_all()

    async def process_jobs(self) -> None:
        """Commit queued jobs in batches; release the index when idle."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                batch = [await asyncio.wait_for(self.jobs.get(), self.idle_seconds)]
            except TimeoutError:
                if self.batcher.is_open:
                    await loop.run_in_executor(self._thread, self.batcher.release)
                for batcher in self.batchers.values():
                    if batcher.is_open:
                        await loop.run_in_executor(self._thread, batcher.release)
                continue
            while len(batch) < MAX_BATCH_JOBS and not self.jobs.empty():
                batch.append(self.jobs.get_nowait())
            outcomes: list[Outcome] = []
            for (index, _), jobs in groupby(batch, key=lambda queued: (queued.name, isinstance(queued.job, IndexJob))):
                of_index = [queued.job for queued in jobs]
                outcomes += await loop.run_in_executor(self._thread, self._apply, of_index, index)
            self.commits += 1
            task = asyncio.create_task(self._answer(batch, outcomes, self.commits))
            self._answer_tasks.add(task)
            task.add_done_callback(self._answer_tasks.discard)
            if await loop.run_in_executor(self._thread, self._fit_codes):
                self.commits += 1
                for worker in self.workers:
                    write_frame(worker.writer, {"op": "commit", "commit": self.commits})

    def _apply(self, jobs: "Sequence[Job | IndexJob]", index: str | None = None) -> list[Outcome]:
        try:
            if isinstance(jobs[0], IndexJob):
                return [self._change_indexes(job) for job in jobs if isinstance(job, IndexJob)]
            writes = [job for job in jobs if not isinstance(job, IndexJob)]
            return self._get_batcher(index).apply(writes)
        except BidrError as error:
            return [error] * len(jobs)
        except Exception as error:
            log_fault("fault", error, where="writer")
            return [InternalError("a fault of the writer; the server's log says more")] * len(jobs)

    def _get_batcher(self, index: str | None) -> WriteBatcher:
        """Return the batcher of a named index, or that of the index without a name."""
        if index is None:
            return self.batcher
        if index not in self.batchers:
            if self.open_batcher is None:
                raise _make_unknown_error(index)
            self.batchers[index] = self.open_batcher(index)
        return self.batchers[index]

    def _change_indexes(self, job: "IndexJob") -> Outcome:
        """Create or drop an index in the root folder."""
        try:
            assert self.root is not None
            folder = self.root / job.name
            if job.options is None:
                if (batcher := self.batchers.pop(job.name, None)) is not None:
                    batcher.release()
                drop_index(folder)
                return {"dropped": job.name}
            if folder.exists():
                raise IndexConflict(
                    "there is an index of this name", given=job.name, expected="another name", hint="choose another"
                )
            create_index(folder, **job.options)
            return {"created": job.name}
        except BidrError as error:
            return error

    def _fit_codes(self) -> bool:
        """Fit codes if they are due; return whether there is a new state."""
        try:
            batchers = (self.batcher, *self.batchers.values())
            return sum(batcher.fit_codes_if_due() for batcher in batchers) > 0
        except Exception as error:
            log_fault("fault", error, where="fit_codes")
            return False

    async def _answer(self, batch: "Sequence[QueuedJob]", outcomes: list[Outcome], commit: int) -> None:
        """Wait until all workers have opened the commit, then answer: the next search finds the documents."""
        for worker in self.workers:
            write_frame(worker.writer, {"op": "commit", "commit": commit})
        try:
            async with asyncio.timeout(REFRESH_TIMEOUT), self._refreshed:
                await self._refreshed.wait_for(lambda: all(worker.last_commit >= commit for worker in self.workers))
        except TimeoutError:
            log("unseen", "warning", why="a worker did not look in time; it will within a second")
        for (worker, number, *_), outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, BidrError):
                http_error = to_http_error(outcome) or Overloaded(5.0, "the index cannot be written")
                if http_error is not outcome:
                    log("refused", "warning", why=str(outcome))
                self._reject(worker, number, http_error)
            elif worker in self.workers:
                write_frame(worker.writer, {"op": "done", "n": number, "result": outcome})

    def _reject(self, worker: WorkerConnection, number: int, error: HTTPError) -> None:
        if worker in self.workers:
            write_frame(worker.writer, {"op": "refused", "n": number, "error": encode_error(error)})

    async def close(self) -> None:
        if self._answer_tasks:
            await asyncio.wait(self._answer_tasks, timeout=REFRESH_TIMEOUT)
        for batcher in (self.batcher, *self.batchers.values()):
            await asyncio.get_running_loop().run_in_executor(self._thread, batcher.release)


class IndexJob(NamedTuple):
    """An index to create with options of `create_index`, or to drop (None)."""

    name: str
    options: dict[str, Any] | None


class QueuedJob(NamedTuple):
    """A job, the worker that submitted it and the number it has there, and the name of its index if it has one."""

    worker: WorkerConnection
    number: int
    job: Job | IndexJob
    name: str | None = None


def _make_unknown_error(name: str) -> NotFound:
    return NotFound("no such index", given=name, expected="a named index", hint="GET /v1/indexes lists them")


def drop_index(folder: Path) -> None:
    """Remove an index: renamed first, so that it is gone at once."""
    dropped = folder.with_name(f".{folder.name}.{os.getpid()}.dropped")
    with storage_errors(folder), hold_writer_lock(folder, LOCK_TIMEOUT):
        os.rename(folder, dropped)
        sync_folder(folder.parent)
    remove(dropped)


def parse_job(message: dict[str, Any], payload: bytes) -> Job | IndexJob:
    """Convert a frame to a job; the worker has validated it."""
    if message["op"] in ("create_index", "drop_index"):
        return IndexJob(message["index"], message.get("options"))
    if message["op"] == "delete":
        return DeleteJob(message["ids"], message["missing_ok"])
    if message["op"] == "delete_where":
        return DeleteWhereJob(message["filter"])
    if message["op"] == "set_attributes":
        return AttributesJob(message["changes"], message["missing_ok"])
    if message["op"] == "set_attributes_where":
        return AttributesWhereJob(message["filter"], message["values"])
    documents = [Document(*fields) for fields in message["documents"]]
    vectors = np.frombuffer(payload, dtype="<f4").reshape(len(documents), -1).astype(np.float32) if payload else None
    return AddJob(documents, vectors, message["replace"])


async def run(config: ServerConfig) -> None:
    """Process jobs until SIGTERM, or until the supervisor ends."""
    from bidr.server.worker import make_encoder, make_vector_encoder

    batcher = WriteBatcher(
        config.index,
        config.model,
        lambda model: make_encoder(config, model),
        lambda view: make_vector_encoder(config, view),
    )
    write_server = WriteServer(batcher, config.limits.queue, config.writer_idle)

    def open_batcher(name: str) -> WriteBatcher:
        folder = list_folders(config).get(name)
        if folder is None:
            raise _make_unknown_error(name)
        if folder.resolve() == config.index.resolve():
            return batcher
        of_index = replace(config, index=folder, encoder=None)
        return WriteBatcher(
            folder,
            None,
            lambda model: make_encoder(of_index, model),
            lambda view: make_vector_encoder(of_index, view),
        )

    write_server.open_batcher, write_server.root = open_batcher, config.root
    assert config.runtime is not None
    path = config.runtime / SOCKET_NAME
    path.unlink(missing_ok=True)
    server = await asyncio.start_unix_server(write_server.handle_worker, path)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, lambda: None)  # Ctrl-C: the supervisor sends SIGTERM
    watch_parent(stop.set)
    job_task = asyncio.create_task(write_server.process_jobs())
    report_startup({"ready": True})
    await stop.wait()
    server.close()
    job_task.cancel()
    await write_server.close()


def main() -> None:
    config = read_config()
    console.quiet = True  # no progress bars in the log
    asyncio.run(run(config))


if __name__ == "__main__":
    main()
    sys.exit(0)
