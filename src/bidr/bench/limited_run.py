"""Run a comparison with less memory than data: every peer in a memory cgroup, with fresh queries."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bidr.bench.launch import MemoryExceededError, PeerError, run_harness
from bidr.bench.memory_cgroup import UNLIMITED, MemoryCgroup, find_disk
from bidr.bench.run import (
    RESULTS,
    BenchmarkData,
    Limits,
    Row,
    build_variant,
    compute_recall,
    make_request,
    make_row,
    train_codebooks,
    write_vectors,
)
from bidr.bench.variants import Variant
from bidr.data.vector_source import VectorSource
from bidr.errors import ConfigError
from bidr.utils.byte_sizes import parse_bytes

SAMPLING_SECONDS = 0.01
COMPILATION_BYTES = 64 << 20
# Queries that do not count: half of them warm up, the others measure throughput.
OTHER_QUERIES = 4
RECALL_TARGETS = (0.9, 0.95, 0.96, 0.98, 0.99)


class QueryParts(NamedTuple):
    """Ranges of queries by use; none is used twice for one setting."""

    sweep: tuple[int, int]
    report: tuple[int, int]
    warm_up: tuple[int, int]
    throughput: tuple[int, int]


class LimitedConfig(NamedTuple):
    """A comparison in limited memory.

    cache: bytes of page cache that a process gets beside the anonymous memory it needs.
    clients: numbers of threads that ask at once.
    targets: recall@10 of the settings to report.
    """

    cache: int
    clients: tuple[int, ...] = (1, 2, 4, 8, 16)
    targets: tuple[float, ...] = RECALL_TARGETS


def parse_memory_limit(text: str, vectors_bytes: int) -> int:
    """Parse a share of the vectors file, such as 10%, or a size."""
    if not text.strip().endswith("%"):
        return parse_bytes("--memory-limit", text)
    try:
        share = float(text.strip()[:-1]) / 100
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise ConfigError(f"--memory-limit: given {text!r}, expected a share such as 10% or a size such as 2GiB")
    return max(1, round(share * vectors_bytes))


def divide_queries(count: int, reported: int) -> QueryParts:
    """Divide the queries of a file by use."""
    minimum = (2 + OTHER_QUERIES) * reported
    if count < minimum:
        raise ConfigError(
            f"--query-count: given {reported} with {count:,} queries, expected {minimum:,} or more: others choose "
            f"settings, warm up and measure throughput; give more, or --query-count {count // (2 + OTHER_QUERIES)}"
        )
    middle = 2 * reported + (count - 2 * reported) // 2
    return QueryParts((0, reported), (reported, 2 * reported), (2 * reported, middle), (middle, count))


def prepare_limited(
    folder: Path, documents: VectorSource, queries: VectorSource, reported: int
) -> tuple[BenchmarkData, QueryParts]:
    """Write vectors and shuffled queries, and compute the exact top 100 of the queries that are scored."""
    from bidr.quantization.exact_search import search_vectors

    parts = divide_queries(len(queries), reported)
    rows = write_vectors(folder, documents)
    shuffled = queries[np.random.default_rng(0).permutation(len(queries))]
    np.save(folder / "queries.npy", shuffled)
    exact = search_vectors(shuffled[: parts.report[1]], rows, RESULTS).rows
    documents_path, queries_path, rows_path = (folder / f"{name}.npy" for name in ("documents", "queries", "vectors"))
    return BenchmarkData(folder, documents_path, queries_path, rows_path, exact, len(rows)), parts


def compare_limited(
    variants: list[Variant],
    prepared: BenchmarkData,
    parts: QueryParts,
    get_python: Callable[[str], str],
    failed: dict[str, str],
    limits: Limits,
    config: LimitedConfig,
    keep: Callable[[list[Row]], None] = lambda rows: None,
) -> list[Row]:
    """Return a row per variant, with a point per reported setting or the reason for a failure.

    Settings are chosen on queries of their own: for each recall, the one with the lowest median latency. Each reported
    setting has a process of its own, which opens an evicted index and warms up with other queries.
    """
    books = {variant.settings["fitted"] for variant in variants if "fitted" in variant.settings}
    fitted = {number: train_codebooks(prepared, number) for number in sorted(books)}
    rows = []
    for variant in variants:
        row = make_row(variant)
        rows.append(row)
        try:
            if variant.peer in failed:
                raise PeerError(failed[variant.peer])
            python, request = get_python(variant.peer), make_request(variant, prepared, fitted, limits)
            request["settings"]["cache_bytes"] = config.cache
            build_variant(variant, request, row, python, limits, prepared, fitted)
            measurement = LimitedMeasurement(python, request, prepared, parts, limits, config)
            measurement.measure(variant.grid, row, lambda: keep(rows))
        except PeerError as error:
            row["stopped" if row["points"] else "error"] = str(error)
        print(f"{variant.name}: {row.get('error', 'measured')}", file=sys.stderr, flush=True)
        keep(rows)
    return rows


class LimitedMeasurement(NamedTuple):
    """Measurement of an index in request["folder"]: it is in `whole`, and one of few documents in `small`."""

    python: str
    request: dict[str, Any]
    prepared: BenchmarkData
    parts: QueryParts
    limits: Limits
    config: LimitedConfig

    def measure(self, grid: list[dict[str, Any]], row: Row, keep: Callable[[], None]) -> None:
        """Add memory, the swept settings and the reported points to a row."""
        # The first process of an installation may compile, which takes memory that later ones do not need.
        self._run("need", grid, UNLIMITED)
        index_bytes = self._run("index", grid, UNLIMITED)[0][-1]["bytes"]
        needed, peak = self._run("need", grid, UNLIMITED)
        need = needed[-1]["bytes"]
        # Opening may take more than searching: the process lowers the limit itself once it is open.
        limit = max(need, peak) + self.config.cache
        self.request["limit_bytes"] = need + self.config.cache
        row |= {
            "index_bytes_per_document": index_bytes / self.prepared.documents,
            "anonymous_bytes": need,
            "peak_anonymous_bytes": peak,
            "limit_bytes": need + self.config.cache,
        }
        swept = self._run_limited("sweep", grid, limit)
        row["sweep"] = [self._score(line, self.parts.sweep) for line in swept if line["event"] == "swept"]
        for setting in choose_settings(row["sweep"], self.config.targets):
            lines = self._run_limited("report", [setting], limit)
            row["opened_seconds"] = next(line["seconds"] for line in lines if line["event"] == "opened")
            reported = [line for line in lines if line["event"] == "reported"]
            row["points"] += [self._score(line, self.parts.report) for line in reported]
            keep()

    def _run_limited(self, phase: str, grid: list[dict[str, Any]], limit: int) -> list[dict[str, Any]]:
        """Run a phase; one that exceeds its memory, as it may compile, gets more of it once and then runs again."""
        try:
            return self._run(phase, grid, limit)[0]
        except MemoryExceededError:
            self._run(phase, grid, limit, COMPILATION_BYTES)
            return self._run(phase, grid, limit)[0]

    def _run(
        self, phase: str, grid: list[dict[str, Any]], limit: int, extra: int = 0
    ) -> tuple[list[dict[str, Any]], int]:
        """Run a phase in a cgroup of its own; return its lines and the peak of anonymous memory."""
        with _make_cgroup(self.prepared) as cgroup:
            cgroup.set_limit(limit + extra)
            folders = [None if folder is None else str(folder) for folder in (cgroup.memory, cgroup.io)]
            request = {**self.request, "phase": phase, "grid": grid, "cgroup": [cgroup.version, *folders]}
            request |= {"parts": self.parts._asdict(), "clients": list(self.config.clients)}
            request["limit_bytes"] = self.request.get("limit_bytes", limit) + extra
            with _sample_peak(cgroup) as peak:
                lines = run_harness(self.python, request, self.limits.seconds, os.cpu_count() or 1)
        return lines, peak[0]

    def _score(self, line: dict[str, Any], part: tuple[int, int]) -> dict[str, Any]:
        """Return the figures of a setting with its recall."""
        ids: npt.NDArray[np.int64] = np.load(line["found"])
        exact = self.prepared.exact[slice(*part)]
        figures = {name: value for name, value in line.items() if name not in ("event", "found")}
        return {**figures, **{f"recall@{k}": compute_recall(ids, exact, k) for k in (10, 100)}}


def choose_settings(points: list[dict[str, Any]], targets: tuple[float, ...]) -> list[dict[str, Any]]:
    """Return for each recall@10 the setting with the lowest median that reaches it, and the one with most recall."""
    chosen = []
    for target in targets:
        enough = [point for point in points if point["recall@10"] >= target]
        if enough:
            chosen.append(min(enough, key=lambda point: float(point["p50_ms"])))
    if not chosen or all(point["recall@10"] < max(targets) for point in chosen):
        chosen.append(max(points, key=lambda point: (point["recall@10"], -point["p50_ms"])))
    return [point["setting"] for number, point in enumerate(chosen) if point not in chosen[:number]]


@contextmanager
def _make_cgroup(prepared: BenchmarkData) -> Iterator[MemoryCgroup]:
    cgroup = MemoryCgroup.create()
    try:
        cgroup.count_reads(prepared.folder)
        yield cgroup
    finally:
        cgroup.remove()


def get_read_ahead(folder: Path) -> int:
    """Return the bytes that the disk of a folder reads ahead in files mapped without advice; 0: unknown."""
    try:
        device = f"/sys/dev/block/{find_disk(os.stat(folder).st_dev)}"
        return 1024 * int((Path(device) / "queue" / "read_ahead_kb").read_text(encoding="ascii"))
    except OSError:
        return 0


@contextmanager
def _sample_peak(cgroup: MemoryCgroup) -> Iterator[list[int]]:
    """Sample the anonymous memory of a cgroup in a thread; yield a list with the peak."""
    peak, stop = [0], threading.Event()

    def sample() -> None:
        while not stop.wait(SAMPLING_SECONDS):
            peak[0] = max(peak[0], cgroup.read_memory().anonymous)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()
