"""Micro-batching: a free thread encodes the waiting texts of many requests together."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from bidr.search.types import QueryVectors
from bidr.server.errors import DEADLINE_MESSAGE, DeadlineExceeded, Overloaded
from bidr.utils.array_types import Floats

Encode = Callable[[list[str]], QueryVectors]
MAX_RETRY_SECONDS = 30.0


class MicroBatcher:
    """Encodes queued texts in batches on threads.

    Args:
        encode: converts texts to vectors; called by several threads.
        parallel: number of threads.
        max_batch: maximum number of texts in a batch.
        wait: seconds that an incomplete batch waits for more texts, only while another thread is encoding.
        limit: maximum length of the queue.
        on_close: called after `close`, when the last text has been encoded.
    """

    def __init__(
        self,
        encode: Encode,
        *,
        parallel: int,
        max_batch: int,
        wait: float,
        limit: int,
        on_close: Callable[[], object] | None = None,
    ) -> None:
        self._encode, self._max_batch, self._wait, self._limit = encode, max_batch, wait, limit
        self._on_close, self._running_threads = on_close, parallel
        self._jobs: deque[_EncodeJob] = deque()
        self._changed = threading.Condition()
        self._waiting, self._busy, self._closed = 0, 0, False
        self._seconds = 0.01  # moving average for one text
        self.batch_done: Callable[[int, int], object] | None = None
        """Called after every batch with its number of texts and the length of the queue."""
        names = (f"encode-{number}" for number in range(parallel))
        self._threads = [threading.Thread(target=self._run, name=name, daemon=True) for name in names]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """Number of texts in the queue."""
        return self._waiting

    async def encode(self, texts: Sequence[str], deadline: float) -> QueryVectors:
        """Encode the texts of one request. `deadline` is of time.monotonic()."""
        job = _EncodeJob(list(texts), deadline, asyncio.get_running_loop())
        with self._changed:
            if self._waiting >= self._limit or self._closed:
                expected = self._waiting * self._seconds / len(self._threads)
                raise Overloaded(
                    min(max(expected, 1.0), MAX_RETRY_SECONDS), "too many texts are waiting to be encoded", hint=HINT
                )
            self._jobs.append(job)
            self._waiting += len(job.texts)
            self._changed.notify()
        try:
            return await job.future
        finally:
            job.is_cancelled = True  # skipped if it has not been encoded

    def close(self) -> None:
        """Reject new texts; queued ones are still encoded."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while (batch := self._take_batch()) is not None:
            started = time.perf_counter()
            texts = [job.texts[number] for job, number in batch]
            try:
                vectors = self._encode(texts)
            except BaseException as error:
                _notify(batch, error)
            else:
                for row, (job, number) in enumerate(batch):
                    job.put(number, vectors, row)
                _notify(batch, None)
            seconds = (time.perf_counter() - started) / len(texts)
            with self._changed:
                self._busy -= 1
                self._seconds += 0.1 * (seconds - self._seconds)
            if self.batch_done is not None:
                self.batch_done(len(texts), self._waiting)
        with self._changed:
            self._running_threads -= 1
            is_last = not self._running_threads
        if is_last and self._on_close is not None:
            self._on_close()

    def _take_batch(self) -> "list[_JobText] | None":
        """Wait for the next batch; None when closed and empty."""
        with self._changed:
            while True:
                while not self._jobs:
                    if self._closed:
                        return None
                    self._changed.wait()
                if self._busy and self._max_batch > 1:
                    deadline = time.monotonic() + self._wait
                    while 0 < self._waiting < self._max_batch and (remaining := deadline - time.monotonic()) > 0:
                        self._changed.wait(remaining)
                batch = self._pick_batch()
                if batch:
                    self._busy += 1
                    return batch

    def _pick_batch(self) -> "list[_JobText]":
        """Pick texts of all requests in turn, so that a large request does not delay the others."""
        batch: list[_JobText] = []
        now = time.monotonic()
        while self._jobs and len(batch) < self._max_batch:
            job = self._jobs.popleft()
            if job.is_cancelled or now > job.deadline:
                self._waiting -= len(job.texts) - job.started
                _notify(
                    [_JobText(job, job.started)],
                    DeadlineExceeded(DEADLINE_MESSAGE, hint="send fewer texts at once"),
                )
                continue
            batch.append(_JobText(job, job.started))
            job.started += 1
            self._waiting -= 1
            if job.started < len(job.texts):
                self._jobs.append(job)
        return batch


HINT = "try again later, or start more workers (limit.queue)"


class _EncodeJob:
    """Texts of a request and their vectors."""

    __slots__ = ("_lock", "deadline", "future", "is_cancelled", "loop", "remaining", "rows", "started", "texts")

    def __init__(self, texts: list[str], deadline: float, loop: asyncio.AbstractEventLoop) -> None:
        self.texts, self.deadline, self.loop = texts, deadline, loop
        self.future: asyncio.Future[QueryVectors] = loop.create_future()
        self.started, self.remaining, self.is_cancelled = 0, len(texts), False
        self.rows: QueryVectors | None = None
        self._lock = threading.Lock()

    def put(self, number: int, vectors: QueryVectors, row: int) -> None:
        with self._lock:
            if self.rows is None:
                codes = _allocate(len(self.texts), vectors.codes)
                is_shared = vectors.vectors is vectors.codes
                self.rows = QueryVectors(codes, codes if is_shared else _allocate(len(self.texts), vectors.vectors))
            self.rows.codes[number] = vectors.codes[row]
            self.rows.vectors[number] = vectors.vectors[row]
            self.remaining -= 1

    def finish(self, error: BaseException | None) -> None:
        """Set the result or error; called on the event loop."""
        if self.future.done():
            return
        if error is not None:
            self.future.set_exception(error)
        elif self.remaining == 0 and self.rows is not None:
            self.future.set_result(self.rows)


class _JobText(NamedTuple):
    job: _EncodeJob
    number: int


def _allocate(count: int, like: Floats) -> Floats:
    return np.empty((count, like.shape[1]), dtype=np.float32)


def _notify(batch: list[_JobText], error: BaseException | None) -> None:
    """Resolve finished jobs with one call per event loop."""
    for loop in {text.job.loop for text in batch}:
        jobs = {id(text.job): text.job for text in batch if text.job.loop is loop}
        finished = [job for job in jobs.values() if error is not None or job.remaining == 0]
        if finished and not loop.is_closed():
            loop.call_soon_threadsafe(_finish, finished, error)


def _finish(jobs: list[_EncodeJob], error: BaseException | None) -> None:
    for job in jobs:
        job.finish(error)
