"""DiskANN itself (diskannpy) over a recipe's full vectors, in a process of its own."""

import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bidr.bench.install import get_python, install
from bidr.bench.launch import PeerError, run_harness
from bidr.bench.run import BenchmarkData, Limits, make_request
from bidr.bench.variants import Variant
from bidr.experiments.reproduce.measurement import ANSWERS, to_distance_space
from bidr.utils.array_types import Floats, Rows

LINKS, EF_CONSTRUCTION, SECONDS = 64, 128, 3_600.0


class DiskAnnResult(NamedTuple):
    """Rows found (queries, ANSWERS), times, and bytes of RAM a document."""

    rows: Rows
    values: dict[str, float]
    ram: dict[str, float]


def describe_diskann(complexity: int) -> str:
    """Describe the settings of the search."""
    return f"diskannpy, {LINKS} links, search complexity {complexity}; time without encoding the query"


def find_diskann(folder: Path) -> str:
    """Find or install the Python that has diskannpy; PeerError if it cannot be installed."""
    failed = install(folder, ("diskann",))
    if failed:
        raise PeerError(failed["diskann"])
    return str(get_python(folder, "diskann"))


def search_diskann(python: str, vectors: Floats, queries: Floats, code_bytes: int, complexity: int) -> DiskAnnResult:
    """Build an index and search it; PeerError if either fails."""
    with tempfile.TemporaryDirectory(prefix="bidr-diskann-") as temporary:
        folder = Path(temporary)
        points, lookups = to_distance_space(vectors, queries)
        documents_path, queries_path = (folder / f"{name}.npy" for name in ("documents", "queries"))
        np.save(documents_path, points.astype(np.float32))
        np.save(queries_path, lookups.astype(np.float32))
        settings = {"bytes": code_bytes, "links": LINKS, "ef_construction": EF_CONSTRUCTION}
        grid = [{"ef": max(ANSWERS, complexity)}]
        variant = Variant("DiskANN", "diskann", settings, grid, None, on_disk=True)
        no_rows = np.empty((0, 0), dtype=np.int64)
        prepared = BenchmarkData(folder, documents_path, queries_path, documents_path, no_rows, len(points))
        request: dict[str, Any] = make_request(variant, prepared, {}, Limits(os.cpu_count() or 1, SECONDS, cold=0))
        built = _collect_events(run_harness(python, {**request, "phase": "build"}, SECONDS), "built")
        events = _collect_events(run_harness(python, {**request, "phase": "search"}, SECONDS), "measured", "memory")
        memory = {name: events["memory"][f"{name}_bytes"] / len(points) for name in ("anonymous", "rss_end")}
        times = {"ms_per_query": float(events["measured"]["p50_ms"]), "index_seconds": float(built["built"]["seconds"])}
        return DiskAnnResult(np.load(events["measured"]["found"]), times, {**memory, "total": memory["anonymous"]})


def _collect_events(lines: list[dict[str, Any]], *names: str) -> dict[str, dict[str, Any]]:
    """Return the harness's lines by event; PeerError if one is missing."""
    events = {str(line["event"]): line for line in lines}
    if missing := set(names) - set(events):
        raise PeerError(f"it ended without {', '.join(sorted(missing))}")
    return events
