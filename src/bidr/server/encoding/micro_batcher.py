"""Micro-batching: texts of many requests are encoded together, by what is waiting when a thread is free."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from bidr.search.types import QueryVectors
from bidr.server.errors import DeadlineExceeded, Overloaded
from bidr.utils.array_types import Floats

Encode = Callable[[list[str]], QueryVectors]
LONGEST_RETRY = 30.0


class MicroBatcher:
    """Threads that encode what waits for them.

    encode:   texts to vectors; called by several threads at once.
    parallel: how many threads; most: texts of a batch; limit: texts that may wait.
    ended:    called when the batcher was closed and its last text is encoded.
    wait:     seconds that a batch which is not full waits for more. It waits only while another thread is encoding:
              a text that comes alone is begun at once.
    """

    def __init__(
        self,
        encode: Encode,
        *,
        parallel: int,
        most: int,
        wait: float,
        limit: int,
        ended: Callable[[], object] | None = None,
    ) -> None:
        self._encode, self._most, self._wait, self._limit = encode, most, wait, limit
        self._ended, self._working = ended, parallel
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._waiting, self._busy, self._closed = 0, 0, False
        self._seconds = 0.01  # that a text takes, of late
        self.batch_done: Callable[[int, int], object] | None = None
        """Told the texts of every batch, and how many wait."""
        names = (f"encode-{number}" for number in range(parallel))
        self._threads = [threading.Thread(target=self._work, name=name, daemon=True) for name in names]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """Texts that no thread has taken yet."""
        return self._waiting

    async def encode(self, texts: Sequence[str], deadline: float) -> QueryVectors:
        """Vectors of one request's texts, in their order. `deadline` is of time.monotonic()."""
        job = _Job(list(texts), deadline, asyncio.get_running_loop())
        with self._changed:
            if self._waiting >= self._limit or self._closed:
                expected = self._waiting * self._seconds / len(self._threads)
                raise Overloaded(
                    min(max(expected, 1.0), LONGEST_RETRY), "too many texts are waiting to be encoded", hint=HINT
                )
            self._jobs.append(job)
            self._waiting += len(job.texts)
            self._changed.notify()
        try:
            return await job.future
        finally:
            job.gone = True  # nobody waits any more, if it is not done

    def close(self) -> None:
        """Take no more; what waits is encoded."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _work(self) -> None:
        while (places := self._take()) is not None:
            started = time.perf_counter()
            texts = [job.texts[number] for job, number in places]
            try:
                found = self._encode(texts)
            except BaseException as error:
                _tell(places, error)
            else:
                for row, (job, number) in enumerate(places):
                    job.put(number, found, row)
                _tell(places, None)
            took = (time.perf_counter() - started) / len(texts)
            with self._changed:
                self._busy -= 1
                self._seconds += 0.1 * (took - self._seconds)
            if self.batch_done is not None:
                self.batch_done(len(texts), self._waiting)
        with self._changed:
            self._working -= 1
            last = not self._working
        if last and self._ended is not None:
            self._ended()

    def _take(self) -> "list[_Place] | None":
        """The next batch; None when there will be no more."""
        with self._changed:
            while True:
                while not self._jobs:
                    if self._closed:
                        return None
                    self._changed.wait()
                if self._busy and self._most > 1:
                    until = time.monotonic() + self._wait
                    while 0 < self._waiting < self._most and (left := until - time.monotonic()) > 0:
                        self._changed.wait(left)
                places = self._picked()
                if places:
                    self._busy += 1
                    return places

    def _picked(self) -> "list[_Place]":
        """A text of each request in turn, so that a request of hundreds does not keep the others waiting."""
        places: list[_Place] = []
        now = time.monotonic()
        while self._jobs and len(places) < self._most:
            job = self._jobs.popleft()
            if job.gone or now > job.deadline:
                self._waiting -= len(job.texts) - job.taken
                _tell(
                    [_Place(job, job.taken)],
                    DeadlineExceeded("the time for this request is over", hint="ask for less at once"),
                )
                continue
            places.append(_Place(job, job.taken))
            job.taken += 1
            self._waiting -= 1
            if job.taken < len(job.texts):
                self._jobs.append(job)
        return places


HINT = "try again later, or start more workers (limit.queue)"


class _Job:
    """A request's texts, and what became of them."""

    __slots__ = ("_lock", "deadline", "future", "gone", "left", "loop", "rows", "taken", "texts")

    def __init__(self, texts: list[str], deadline: float, loop: asyncio.AbstractEventLoop) -> None:
        self.texts, self.deadline, self.loop = texts, deadline, loop
        self.future: asyncio.Future[QueryVectors] = loop.create_future()
        self.taken, self.left, self.gone = 0, len(texts), False
        self.rows: QueryVectors | None = None
        self._lock = threading.Lock()

    def put(self, number: int, found: QueryVectors, row: int) -> None:
        with self._lock:
            if self.rows is None:
                codes = _empty(len(self.texts), found.codes)
                same = found.vectors is found.codes
                self.rows = QueryVectors(codes, codes if same else _empty(len(self.texts), found.vectors))
            self.rows.codes[number] = found.codes[row]
            self.rows.vectors[number] = found.vectors[row]
            self.left -= 1

    def finish(self, error: BaseException | None) -> None:
        """On the event loop."""
        if self.future.done():
            return
        if error is not None:
            self.future.set_exception(error)
        elif self.left == 0 and self.rows is not None:
            self.future.set_result(self.rows)


class _Place(NamedTuple):
    job: _Job
    number: int


def _empty(count: int, like: Floats) -> Floats:
    return np.empty((count, like.shape[1]), dtype=np.float32)


def _tell(places: list[_Place], error: BaseException | None) -> None:
    """Wake those whose request is done: one call for all requests of a loop."""
    for loop in {place.job.loop for place in places}:
        jobs = {id(place.job): place.job for place in places if place.job.loop is loop}
        done = [job for job in jobs.values() if error is not None or job.left == 0]
        if done and not loop.is_closed():
            loop.call_soon_threadsafe(_finish, done, error)


def _finish(jobs: list[_Job], error: BaseException | None) -> None:
    for job in jobs:
        job.finish(error)
