"""What /metrics tells, summed over all workers: each writes its numbers into files in memory that any of them reads."""

import os
from pathlib import Path
from typing import Any

STEPS = ("encode", "candidates", "reads", "ranking", "total")
SECONDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Counters and histograms of one worker. `folder` is shared by the workers; None: this process alone."""

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
        self._steps = {step: steps.labels(step) for step in STEPS}
        self._latency = prometheus.Histogram(
            "bidr_request_seconds", "First byte of a request to last of its answer", ["path"], buckets=SECONDS, **made
        )
        self._queries = prometheus.Histogram(
            "bidr_search_queries", "Queries of a search request", buckets=COUNTS, **made
        )
        self._reads = prometheus.Counter("bidr_vector_reads", "Vectors read to rank candidates", **made)
        self._written = prometheus.Counter("bidr_documents_written", "Documents written", ["what"], **made)
        gauge: dict[str, Any] = {**made, "multiprocess_mode": "livesum"}
        self.waiting = prometheus.Gauge("bidr_queue", "Searches that wait for a thread, or have one", **gauge)
        self.batches = prometheus.Histogram("bidr_encode_batch", "Texts encoded together", buckets=COUNTS, **made)
        self.encoding = prometheus.Gauge("bidr_encode_queue", "Texts that wait to be encoded", **gauge)
        self.memory = prometheus.Gauge("bidr_worker_pss_bytes", "Memory of all workers, what they share once", **gauge)
        gauge["multiprocess_mode"] = "mostrecent"
        self.documents = prometheus.Gauge("bidr_documents", "Documents that can be found", **gauge)
        self.generation = prometheus.Gauge("bidr_generation", "Generation of the index that is served", **gauge)
        gauge["multiprocess_mode"] = "livemax"
        self.behind = prometheus.Gauge("bidr_behind", "1: a newer state of the index cannot be opened", **gauge)
        self._known: dict[tuple[str, int], tuple[Any, Any]] = {}

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        known = self._known.get((path, status))
        if known is None:
            known = self._requests.labels(path, str(status)), self._latency.labels(path)
            self._known[path, status] = known
        known[0].inc()
        known[1].observe(seconds)

    def searched(self, queries: int, steps: dict[str, float], reads: int) -> None:
        """Count a search; times are milliseconds."""
        self._queries.observe(queries)
        self._reads.inc(reads)
        for step, took in steps.items():
            if took:
                self._steps[step].observe(took / 1000)
        self._steps["total"].observe(sum(steps.values()) / 1000)

    def encoded(self, texts: int, waiting: int) -> None:
        """Count a batch of texts, and those that still wait."""
        self.batches.observe(texts)
        self.encoding.set(waiting)

    def wrote(self, what: str, documents: int) -> None:
        self._written.labels(what).inc(documents)

    def render(self) -> tuple[bytes, str]:
        """The text that Prometheus reads, and its type."""
        registry = self._registry
        if self._folder is not None:
            from prometheus_client import multiprocess

            registry = self._library.CollectorRegistry()
            multiprocess.MultiProcessCollector(registry, path=str(self._folder))  # type: ignore[no-untyped-call]
        return self._library.generate_latest(registry), str(self._library.CONTENT_TYPE_LATEST)


def forget_worker(folder: Path, pid: int) -> None:
    """What a worker that has ended counted stays; what it had at the moment (memory, a queue) is gone with it."""
    from prometheus_client import multiprocess

    multiprocess.mark_process_dead(pid, str(folder))  # type: ignore[no-untyped-call]
