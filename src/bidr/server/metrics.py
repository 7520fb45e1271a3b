"""What /metrics tells, summed over all workers: each writes its numbers into files in memory that any of them reads.

Writing a number there takes longer than counting it, and a search has a dozen: requests are counted in plain lists, and
put into the files some times a second.
"""

import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bidr.search.types import Timings

SECONDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MOST_UNSETTLED = 1_000


class Metrics:
    """Counters and histograms of one worker. `folder` is shared by the workers; None: this process alone.

    Requests are counted on the thread of the event loop.
    """

    def __init__(self, folder: Path | None = None) -> None:
        if folder is not None:
            # The library looks for this when it is first imported, and keeps its numbers in files there.
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
        import prometheus_client as prometheus

        self._folder, self._library = folder, prometheus
        self._registry = prometheus.CollectorRegistry()
        made: dict[str, Any] = {"registry": self._registry}
        self._requests = prometheus.Counter("bidr_requests", "Requests answered", ["path", "status"], **made)
        steps = prometheus.Histogram(
            "bidr_search_step_seconds", "Time of a search, by step", ["step"], buckets=SECONDS, **made
        )
        self._steps = [steps.labels(step) for step in (*Timings._fields, "total")]
        self._latency = prometheus.Histogram(
            "bidr_request_seconds", "First byte of a request to last of its answer", ["path"], buckets=SECONDS, **made
        )
        self._queries = prometheus.Histogram(
            "bidr_search_queries", "Queries of a search request", buckets=COUNTS, **made
        )
        self._reads = prometheus.Counter("bidr_vector_reads", "Vectors read to rank candidates", **made)
        self._written = prometheus.Counter("bidr_documents_written", "Documents written", ["what"], **made)
        gauge: dict[str, Any] = {**made, "multiprocess_mode": "livesum"}
        self._waiting = prometheus.Gauge("bidr_queue", "Searches that wait for a thread, or have one", **gauge)
        self.batches = prometheus.Histogram("bidr_encode_batch", "Texts encoded together", buckets=COUNTS, **made)
        self.encoding = prometheus.Gauge("bidr_encode_queue", "Texts that wait to be encoded", **gauge)
        self.memory = prometheus.Gauge("bidr_worker_pss_bytes", "Memory of all workers, what they share once", **gauge)
        gauge["multiprocess_mode"] = "mostrecent"
        self.documents = prometheus.Gauge("bidr_documents", "Documents that can be found", **gauge)
        self.generation = prometheus.Gauge("bidr_generation", "Generation of the index that is served", **gauge)
        gauge["multiprocess_mode"] = "livemax"
        self.behind = prometheus.Gauge("bidr_behind", "1: a newer state of the index cannot be opened", **gauge)
        self.queue: Callable[[], int] = lambda: 0
        """Says how many searches wait, or have a thread."""
        self._answered: list[tuple[str, int, float]] = []
        self._searched: list[tuple[int, int, Timings]] = []

    def record_request(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._answered.append((path, status, seconds))
        if len(self._answered) >= MOST_UNSETTLED:
            self.flush()

    def record_search(self, queries: int, reads: int, steps: Timings) -> None:
        """Count a search; times are milliseconds."""
        self._searched.append((queries, reads, steps))

    def flush(self) -> None:
        """Put what was counted into the files."""
        answered, self._answered = self._answered, []
        searched, self._searched = self._searched, []
        self._waiting.set(self.queue())
        for (path, status), count in Counter((path, status) for path, status, _ in answered).items():
            self._requests.labels(path, str(status)).inc(count)
        for path in {path for path, _, _ in answered}:
            observe_many(self._latency.labels(path), [seconds for own, _, seconds in answered if own == path], SECONDS)
        if not searched:
            return
        queries, reads, times = zip(*searched, strict=True)
        observe_many(self._queries, queries, COUNTS)
        self._reads.inc(sum(reads))
        columns = [*zip(*times, strict=True), [sum(steps) for steps in times]]
        for histogram, column in zip(self._steps, columns, strict=True):
            observe_many(histogram, [took / 1000 for took in column if took], SECONDS)

    def record_batch(self, texts: int, waiting: int) -> None:
        """Count a batch of texts, and those that still wait."""
        self.batches.observe(texts)
        self.encoding.set(waiting)

    def record_write(self, what: str, documents: int) -> None:
        self._written.labels(what).inc(documents)

    def render(self) -> tuple[bytes, str]:
        """The text that Prometheus reads, and its type."""
        self.flush()
        registry = self._registry
        if self._folder is not None:
            from prometheus_client import multiprocess

            registry = self._library.CollectorRegistry()
            multiprocess.MultiProcessCollector(registry, path=str(self._folder))  # type: ignore[no-untyped-call]
        return self._library.generate_latest(registry), str(self._library.CONTENT_TYPE_LATEST)


def observe_many(histogram: Any, values: Sequence[float], bounds: tuple[float, ...]) -> None:
    """`histogram.observe` of many values: each of its numbers is written once.

    By the library's own parts: what is public writes three numbers into the files for every value.
    """
    for place, count in Counter(bisect_left(bounds, value) for value in values).items():
        histogram._buckets[place].inc(count)
    if values:
        histogram._sum.inc(sum(values))


def forget_worker(folder: Path, pid: int) -> None:
    """What a worker that has ended counted stays; what it had at the moment (memory, a queue) is gone with it."""
    from prometheus_client import multiprocess

    multiprocess.mark_process_dead(pid, str(folder))  # type: ignore[no-untyped-call]
