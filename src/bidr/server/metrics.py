"""Prometheus metrics, summed over all workers through memory-mapped files.

Writing to the files is slower than counting and a search has a dozen metrics: requests are buffered in lists and
flushed a few times a second.
"""

import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bidr.search.types import Timings
from bidr.utils.read_stats import ReadStats

SECONDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MAX_BUFFERED = 1_000
DISK_COUNTS = {
    "vector_hits": "Vectors that were in memory",
    "disk_reads": "Reads requested",
    "disk_read_bytes": "Bytes of the reads requested",
}


NO_READS = ReadStats()


class Metrics:
    """Counters and histograms of one worker.

    `folder` is shared by all workers; None: this process only. Not thread-safe: used on the event loop.
    """

    def __init__(self, folder: Path | None = None) -> None:
        if folder is not None:
            # Read by prometheus_client on import: it then keeps its numbers in files of this folder.
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
        import prometheus_client as prometheus

        self._folder, self._library = folder, prometheus
        self._registry = prometheus.CollectorRegistry()
        options: dict[str, Any] = {"registry": self._registry}
        self._requests = prometheus.Counter("bidr_requests", "Requests answered", ["path", "status"], **options)
        steps = prometheus.Histogram(
            "bidr_search_step_seconds", "Time of a search, by step", ["step"], buckets=SECONDS, **options
        )
        self._steps = [steps.labels(step) for step in (*Timings._fields, "total")]
        self._latency = prometheus.Histogram(
            "bidr_request_seconds",
            "First byte of a request to last of its answer",
            ["path"],
            buckets=SECONDS,
            **options,
        )
        self._queries = prometheus.Histogram(
            "bidr_search_queries", "Queries of a search request", buckets=COUNTS, **options
        )
        self._reads = prometheus.Counter("bidr_vector_reads", "Vectors read to rank candidates", **options)
        disk = {name: f"{what} to rank candidates" for name, what in DISK_COUNTS.items()}
        self._disk = [prometheus.Counter(f"bidr_{name}", text, **options) for name, text in disk.items()]
        self._written = prometheus.Counter("bidr_documents_written", "Documents written", ["what"], **options)
        gauge: dict[str, Any] = {**options, "multiprocess_mode": "livesum"}
        self._waiting = prometheus.Gauge("bidr_queue", "Searches that wait for a thread, or have one", **gauge)
        self.batches = prometheus.Histogram("bidr_encode_batch", "Texts encoded together", buckets=COUNTS, **options)
        self.encoding = prometheus.Gauge("bidr_encode_queue", "Texts that wait to be encoded", **gauge)
        self.cache = prometheus.Gauge("bidr_row_cache_bytes", "Row caches of all workers", **gauge)
        self.memory = prometheus.Gauge("bidr_worker_pss_bytes", "Memory of all workers, what they share once", **gauge)
        gauge["multiprocess_mode"] = "mostrecent"
        self.documents = prometheus.Gauge("bidr_documents", "Documents that can be found", **gauge)
        self.generation = prometheus.Gauge("bidr_generation", "Generation of the index that is served", **gauge)
        gauge["multiprocess_mode"] = "livemax"
        self.stale = prometheus.Gauge("bidr_behind", "1: a newer state of the index cannot be opened", **gauge)
        self.count_searches: Callable[[], int] = lambda: 0
        """Returns how many searches wait for a thread or have one."""
        self._request_log: list[tuple[str, int, float]] = []
        self._search_log: list[tuple[int, int, Timings, ReadStats]] = []

    def record_request(self, path: str, status: int, seconds: float) -> None:
        """Record a request."""
        self._request_log.append((path, status, seconds))
        if len(self._request_log) >= MAX_BUFFERED:
            self.flush()

    def record_search(self, queries: int, reads: int, steps: Timings, disk: ReadStats = NO_READS) -> None:
        """Record a search; times are milliseconds."""
        self._search_log.append((queries, reads, steps, disk))

    def flush(self) -> None:
        """Write buffered records to the files."""
        requests, self._request_log = self._request_log, []
        searches, self._search_log = self._search_log, []
        self._waiting.set(self.count_searches())
        for (path, status), count in Counter((path, status) for path, status, _ in requests).items():
            self._requests.labels(path, str(status)).inc(count)
        for path in {path for path, _, _ in requests}:
            observe_many(
                self._latency.labels(path),
                [seconds for request_path, _, seconds in requests if request_path == path],
                SECONDS,
            )
        if not searches:
            return
        queries, reads, times, disk = zip(*searches, strict=True)
        observe_many(self._queries, queries, COUNTS)
        self._reads.inc(sum(reads))
        for counter, count in zip(self._disk, [sum(counts) for counts in zip(*disk, strict=True)][1:], strict=True):
            counter.inc(count)
        columns = [*zip(*times, strict=True), [sum(steps) for steps in times]]
        for histogram, column in zip(self._steps, columns, strict=True):
            observe_many(histogram, [ms / 1000 for ms in column if ms], SECONDS)

    def record_batch(self, texts: int, waiting: int) -> None:
        """Record an encoded batch, and the length of the queue."""
        self.batches.observe(texts)
        self.encoding.set(waiting)

    def record_write(self, what: str, documents: int) -> None:
        self._written.labels(what).inc(documents)

    def render(self) -> tuple[bytes, str]:
        """Return the text in the format of Prometheus, and its content type."""
        self.flush()
        registry = self._registry
        if self._folder is not None:
            from prometheus_client import multiprocess

            registry = self._library.CollectorRegistry()
            multiprocess.MultiProcessCollector(registry, path=str(self._folder))  # type: ignore[no-untyped-call]
        return self._library.generate_latest(registry), str(self._library.CONTENT_TYPE_LATEST)


def observe_many(histogram: Any, values: Sequence[float], bounds: tuple[float, ...]) -> None:
    """Like `histogram.observe` for many values, with one write per bucket.

    Uses private attributes: the public method writes three numbers to the files for every value.
    """
    for bucket, count in Counter(bisect_left(bounds, value) for value in values).items():
        histogram._buckets[bucket].inc(count)
    if values:
        histogram._sum.inc(sum(values))


def forget_worker(folder: Path, pid: int) -> None:
    """Drop the gauges of a worker that has ended; its counters remain."""
    from prometheus_client import multiprocess

    multiprocess.mark_process_dead(pid, str(folder))  # type: ignore[no-untyped-call]
