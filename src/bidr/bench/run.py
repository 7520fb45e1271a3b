"""Run a comparison: prepare vectors and exact results once, then build and search every variant."""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bidr.bench.launch import PeerError, run_harness
from bidr.bench.variants import Variant
from bidr.data.vector_source import VectorSource
from bidr.index.vectors import WRITE_ROWS, VectorWriter

RESULTS = 100
SMALL_ROWS = 5_000
Row = dict[str, Any]


class BenchmarkData(NamedTuple):
    """The files that every peer reads, and the exact results."""

    folder: Path
    vectors: Path
    queries: Path
    rows: Path
    exact: npt.NDArray[np.int64]
    documents: int
    labelled: list[list[int]] | None = None
    """Relevant rows of each query, if the recall of these is measured too."""


class TrainedCodebooks(NamedTuple):
    """Codebooks on disk, and the time of training them."""

    path: Path
    seconds: float
    cpu_seconds: float


class Limits(NamedTuple):
    """Limits of a run."""

    threads: int = 1
    seconds: float = 3_600.0
    cold: int = 20
    rounds: int = 3


def prepare(folder: Path, documents: VectorSource, queries: VectorSource, query_count: int) -> BenchmarkData:
    """Write vectors as float32 for building and as fp16 for ranking, and compute the exact top 100."""
    from bidr.quantization.exact_search import search_vectors

    rows = write_vectors(folder, documents)
    documents_path, queries_path, rows_path = (folder / f"{name}.npy" for name in ("documents", "queries", "vectors"))
    questions = queries[np.sort(np.random.default_rng(0).permutation(len(queries))[:query_count])]
    np.save(queries_path, questions)
    exact = search_vectors(questions, rows, RESULTS).rows
    return BenchmarkData(folder, documents_path, queries_path, rows_path, exact, len(rows))


def write_vectors(folder: Path, documents: VectorSource) -> npt.NDArray[np.float32]:
    """Write documents.npy (float32) and vectors.npy (fp16); return the former, mapped."""
    count, dim = documents.shape
    rows = np.lib.format.open_memmap(folder / "documents.npy", mode="w+", dtype=np.float32, shape=(count, dim))
    with VectorWriter(lambda name: (folder / name).open("wb"), count, dim, "fp16") as out:
        for start in range(0, count, WRITE_ROWS):
            block = documents[start : start + WRITE_ROWS]
            rows[start : start + len(block)] = block
            out.write(block)
    rows.flush()
    return rows


def train_codebooks(prepared: BenchmarkData, books: int) -> TrainedCodebooks:
    """Train 4-bit OPQ codebooks: bidr uses them, and other peers their rotation."""
    from bidr.quantization.pq_training import fit_pq

    path = prepared.folder / f"fitted-{books}.npz"
    wall, cpu = time.perf_counter(), time.process_time()
    codebooks = fit_pq(np.load(prepared.vectors, mmap_mode="r"), books, 16)
    np.savez(path, rotation=codebooks.rotation, centroids=codebooks.centroids)
    return TrainedCodebooks(path, time.perf_counter() - wall, time.process_time() - cpu)


def compute_recall(results: npt.NDArray[np.int64], exact: npt.NDArray[np.int64], k: int) -> float:
    """Return the share of the exact top k among the first k results."""
    exact_top = exact[:, :k]
    pairs = zip(exact_top, results[:, :k], strict=True)
    return float(np.mean([np.isin(right[right >= 0], row_results).mean() for right, row_results in pairs]))


def compute_labelled_recall(results: npt.NDArray[np.int64], labelled: list[list[int]], k: int) -> float:
    """Return the share of the rows labelled relevant among the first k results."""
    return float(
        np.mean([np.isin(right, row_results[:k]).mean() for right, row_results in zip(labelled, results, strict=True)])
    )


def compare(
    variants: list[Variant],
    prepared: BenchmarkData,
    get_python: Callable[[str], str],
    failed: dict[str, str],
    limits: Limits,
    keep: Callable[[list[Row]], None] = lambda rows: None,
) -> list[Row]:
    """Return a row per variant, with its points or the reason for a failure; call `keep` after each step.

    All variants are built first, then searched in turn for several rounds, so that other load on the machine affects
    all of them alike. The round with the least CPU time counts for each setting.
    """
    books = {variant.settings["fitted"] for variant in variants if "fitted" in variant.settings}
    fitted = {number: train_codebooks(prepared, number) for number in sorted(books)}
    entries = [
        _Entry(variant, make_request(variant, prepared, fitted, limits), make_row(variant)) for variant in variants
    ]
    rows = [entry.row for entry in entries]

    def build(variant: Variant, request: dict[str, Any], row: Row) -> None:
        if variant.peer in failed:
            raise PeerError(failed[variant.peer])
        build_variant(variant, request, row, get_python(variant.peer), limits, prepared, fitted)

    def search(variant: Variant, request: dict[str, Any], row: Row) -> None:
        overrides = {"cold": 0} if row["points"] else {}
        _record_search(
            row,
            run_harness(get_python(variant.peer), {**request, **overrides, "phase": "search"}, limits.seconds),
            prepared,
        )

    steps = [("built", build)]
    steps += [(f"searched, round {number + 1} of {limits.rounds}", search) for number in range(limits.rounds)]
    for label, do in steps:
        for entry in entries:
            if not entry.row.keys() & {"error", "stopped"}:
                _try_step(entry, do, label)
                keep(rows)
    return rows


def build_variant(
    variant: Variant,
    request: dict[str, Any],
    row: Row,
    python: str,
    limits: Limits,
    prepared: BenchmarkData,
    fitted: dict[int, TrainedCodebooks],
) -> None:
    """Build a variant and record what that took."""
    lines = run_harness(python, {**request, "phase": "build"}, limits.seconds)
    _record_build(row, lines, fitted.get(variant.settings.get("fitted", 0)))
    # Vectors ranked for a peer are on the disk too, once for all peers.
    vectors = prepared.rows.stat().st_size if variant.rank else 0
    row["disk_per_document"] = (row["build"]["disk_bytes"] + vectors) / prepared.documents


class _Entry(NamedTuple):
    """A variant, its request to the harness, and its row of results."""

    variant: Variant
    request: dict[str, Any]
    row: Row


def make_row(variant: Variant) -> Row:
    return {"name": variant.name, "peer": variant.peer, "settings": variant.settings, "points": []}


def _try_step(entry: _Entry, do: Callable[[Variant, dict[str, Any], Row], None], label: str) -> None:
    """Run a step and print it; on failure record the reason in the row, and keep earlier rounds."""
    try:
        do(*entry)
    except PeerError as error:
        entry.row["stopped" if entry.row["points"] else "error"] = label = str(error)
    print(f"{entry.variant.name}: {label}", file=sys.stderr, flush=True)


def make_request(
    variant: Variant, prepared: BenchmarkData, fitted: dict[int, TrainedCodebooks], limits: Limits
) -> dict[str, Any]:
    """Return the request to the harness; building and searching are separate processes, to measure the RAM of each."""
    folder = Path(tempfile.mkdtemp(dir=prepared.folder, prefix="peer-"))
    books = fitted.get(variant.settings.get("fitted", 0))
    return {
        "adapter": str(Path(__file__).parent / "peers" / f"{variant.adapter}.py"),
        "folder": str(folder),
        "vectors": str(prepared.vectors),
        "queries": str(prepared.queries),
        "rows": str(prepared.rows),
        "found": str(folder / "found-{}.npy"),
        "settings": {**variant.settings, "threads": limits.threads, "fitted": str(books.path) if books else None},
        "grid": variant.grid,
        "rank": variant.rank,
        "small": min(SMALL_ROWS, prepared.documents),
        "cold": limits.cold if variant.cold else 0,
        "cold_at": variant.cold_at,
    }


def _record_build(row: Row, lines: list[dict[str, Any]], fitted: TrainedCodebooks | None) -> None:
    built = next((line for line in lines if line.pop("event") == "built"), None)
    if built is None:
        raise PeerError("it ended without figures")
    if fitted:
        built["seconds"] += fitted.seconds
        built["cpu_seconds"] += fitted.cpu_seconds
    row["build"] = built


def _record_search(row: Row, lines: list[dict[str, Any]], prepared: BenchmarkData) -> None:
    """Add the figures of a round to the row."""
    points = []
    for line in lines:
        event = line.pop("event")
        if event == "measured":
            ids = np.load(line.pop("found"))
            recalls = {f"recall@{k}": compute_recall(ids, prepared.exact, k) for k in (10, 100)}
            if prepared.labelled is not None:
                recalls |= {f"labelled@{k}": compute_labelled_recall(ids, prepared.labelled, k) for k in (10, 100)}
            points.append({**line, **recalls, "qps_per_core": 1000 / line["cpu_ms"]})
        elif event == "memory":
            row["ram_per_document"] = {name: size / prepared.documents for name, size in line.items()}
        else:
            row[event] = line
    if not points or "ram_per_document" not in row:
        raise PeerError("it ended without figures")
    previous = row["points"] or points
    row["points"] = [min(pair, key=lambda point: float(point["cpu_ms"])) for pair in zip(previous, points, strict=True)]
