"""Builds and searches a corpus that does not fit in memory, and compares its cost with the plan.

python bench/larger_than_ram.py documents.npy queries.npy --work FOLDER --count 40000000 --ram-budget 4GiB --limit 10%

The vectors are synthetic (synthetic_million.py) and computed where they are read, so the disk holds one copy: the
index's. Each step is resumable; run the command again after an interruption. Searches run in a memory cgroup with
--limit of the vectors file for page cache beside the anonymous memory that the process needs (see
docs/reports/peers-larger-than-memory.md for the protocol), with settings chosen on other queries than reported.
"""

import json
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from synthetic_million import SyntheticVectors, find_clusters
from tyro.conf import Positional
from unit import unit

import bidr
from bidr.bench.limited_report import render_limited_tables
from bidr.bench.limited_run import (
    LimitedConfig,
    LimitedMeasurement,
    divide_queries,
    parse_memory_limit,
)
from bidr.bench.limited_variants import DEPTHS
from bidr.bench.run import RESULTS, SMALL_ROWS, BenchmarkData, Limits
from bidr.data.vector_source import VectorSource
from bidr.errors import BidrError, ConfigError
from bidr.index.cost_model.memory_split import SHARED_READS
from bidr.index.cost_model.sizes import PROCESS_BYTES, Shape, count_cold_pages, estimate_disk, estimate_ram
from bidr.index.engines.engine_choice import choose_engine
from bidr.quantization.exact_search import search_vectors
from bidr.utils.files import write_json

# Codes and order while building, beside the finished index.
WORK_BYTES_PER_DOCUMENT, SPARE_BYTES = 150, 2 << 30
BITS = 4
ADAPTER = Path(bidr.__file__).parent / "bench" / "peers" / "ours.py"


@dataclass(frozen=True)
class Run:
    """What to build and how to search it.

    code_bytes: None: chosen by the build from a sample.
    limit: share of the vectors file, or a size.
    asked: reported queries.
    """

    documents: Positional[Path]
    queries: Positional[Path]
    work: Path
    count: int = 40_000_000
    amount: float = 0.5
    ram_budget: str = "4GiB"
    code_bytes: int = 64
    limit: str = "10%"
    asked: int = 300
    clients: tuple[int, ...] = (1, 2, 4, 8, 16)
    targets: tuple[float, ...] = (0.95, 0.98)
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None


def main(run: Run) -> None:
    run.work.mkdir(parents=True, exist_ok=True)
    corpus, queries = unit(np.load(run.documents)), unit(np.load(run.queries))
    shape = Shape(run.count, corpus.shape[1], choose_engine("auto", run.count, BITS), BITS, run.code_bytes, live=False)
    files = estimate_disk(shape)
    check_space(run, sum(files.values()) + run.count * WORK_BYTES_PER_DOCUMENT)
    clusters = keep(run.work / "clusters.npy", lambda: find_clusters(corpus))
    vectors = SyntheticVectors(corpus, run.count, run.amount, clusters=clusters)
    built = build(run, vectors)
    parts = divide_queries(len(queries), run.asked)
    shuffled = queries[np.random.default_rng(0).permutation(len(queries))]
    np.save(run.work / "queries.npy", shuffled)
    exact = keep(
        run.work / f"exact-{run.asked}.npy", lambda: search_vectors(shuffled[: parts.report[1]], vectors, RESULTS).rows
    )
    index = run.work / "whole"
    rows = max(index.rglob("vectors.npy"), key=lambda path: path.stat().st_size)
    prepared = BenchmarkData(run.work, rows, run.work / "queries.npy", rows, exact, run.count)
    cache = parse_memory_limit(run.limit, rows.stat().st_size)
    row: dict[str, Any] = {"name": f"bidr {run.code_bytes} B", "points": [], "build": built}
    row["disk_per_document"] = sum(path.stat().st_size for path in index.rglob("*") if path.is_file()) / run.count
    measurement = LimitedMeasurement(
        sys.executable, make_request(run), prepared, parts, Limits(), LimitedConfig(cache, run.clients, run.targets)
    )
    measurement.measure([{"candidates": depth} for depth in DEPTHS], row, lambda: None)
    print(render_limited_tables([row], cache))
    planned = compare_with_plan(shape, row, cache)
    print("\n| | planned | measured | difference |\n| --- | --- | --- | --- |")
    for name, (expected, measured) in planned.items():
        print(f"| {name} | {expected:,.1f} | {measured:,.1f} | {measured / expected - 1:+.1%} |")
    if run.json:
        write_json(run.json, {"documents": run.count, "cache_bytes": cache, "row": row, "planned": planned})


def check_space(run: Run, needed: int) -> None:
    """Refuse a corpus that the disk cannot hold, and name the largest one that it can."""
    free = shutil.disk_usage(run.work).free - SPARE_BYTES
    held = sum(path.stat().st_size for path in run.work.rglob("*") if path.is_file())
    if needed > free + held:
        raise ConfigError(
            f"--count: given {run.count:,}, which takes {needed / 1e9:,.0f} GB in {run.work}, where "
            f"{(free + held) / 1e9:,.0f} GB are free; choose {int(run.count * (free + held) / needed):,} or fewer"
        )


def build(run: Run, vectors: SyntheticVectors) -> dict[str, Any]:
    """Build the index, and one of few documents that processes warm up with; return what the build took."""
    marker = run.work / "built.json"
    if marker.exists():
        return dict(json.loads(marker.read_text()))
    plain = bidr.PlainCodes(run.code_bytes)
    bidr.build_vectors(vectors[:SMALL_ROWS], None, run.work / "small", plain=plain)
    wall, cpu = time.perf_counter(), time.process_time()
    source = VectorSource(vectors, "synthetic vectors", "cosine")
    bidr.build_vectors(source, None, run.work / "whole", plain=plain, ram_budget=run.ram_budget)
    # Of the last process: an interrupted build is continued by another one.
    figures = {
        "seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
        "peak_bytes": read_peak_bytes(),
    }
    write_json(marker, figures)
    return figures


def read_peak_bytes() -> int:
    """Return the peak of resident memory of this process, mapped files included."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def make_request(run: Run) -> dict[str, Any]:
    """Return the request for `bidr.bench.peers.harness`."""
    return {
        "adapter": str(ADAPTER),
        "folder": str(run.work),
        "queries": str(run.work / "queries.npy"),
        "rows": "",
        "rank": None,
        "found": str(run.work / "found-{}.npy"),
        "settings": {"threads": 1},
    }


def compare_with_plan(shape: Shape, row: dict[str, Any], cache: int) -> dict[str, tuple[float, float]]:
    """Return planned and measured costs by name."""
    ram = sum(estimate_ram(shape).values()) - PROCESS_BYTES
    share = 1 - min(1.0, cache / shape.vector_bytes)
    figures = {
        "RAM of the index, B/doc": (ram / shape.count, row["index_bytes_per_document"]),
        "disk, B/doc": (sum(estimate_disk(shape).values()) / shape.count, row["disk_per_document"]),
    }
    for point in row["points"]:
        candidates = point["setting"]["candidates"]
        reads = SHARED_READS * count_cold_pages(shape, candidates) * share
        figures[f"reads, {candidates:,} candidates"] = (reads, point.get("reads", point["read_bytes"] / 4_096))
    return figures


def keep(path: Path, compute: Any) -> np.ndarray:
    """Load an array, or compute and save it."""
    if not path.exists():
        temporary = path.with_name(f".{path.name}")
        np.save(temporary, compute())
        temporary.replace(path)
    return np.load(path)


if __name__ == "__main__":
    try:
        main(tyro.cli(Run))
    except BidrError as error:
        sys.exit(f"error: {error}")
