"""Measures throughput of several processes with all vectors in memory: bidr and Qdrant's engine.

python bench/worker_throughput.py documents.npy queries.npy --install venvs --workers 1 4

Each process has the index open. Each library gets the setting with the least CPU time that reaches --recall (recall@10)
on half of the queries; the other half is asked by all processes at once, one query after the other, for --seconds.
"""

import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from tyro.conf import Positional

from bidr.bench.install import get_python, install
from bidr.bench.launch import PeerError, run_harness
from bidr.bench.limited_variants import list_limited_variants
from bidr.bench.run import (
    BenchmarkData,
    Limits,
    build_variant,
    compute_recall,
    make_request,
    make_row,
    prepare,
    train_codebooks,
)
from bidr.bench.variants import PACKAGES, Variant
from bidr.data.vector_source import open_vectors
from bidr.utils.files import write_json


@dataclass(frozen=True)
class Run:
    """What to measure.

    install: folder of the libraries' virtual environments (see bidr bench).
    asked: queries, half of them to choose a setting.
    """

    documents: Positional[Path]
    queries: Positional[Path]
    install: Path
    peers: tuple[str, ...] = ("ours", "qdrant")
    code_bytes: tuple[int, ...] = (64,)
    workers: tuple[int, ...] = (1, 2, 4)
    recall: float = 0.95
    asked: int = 1_000
    seconds: float = 10.0
    threads: int = 2
    work: Path | None = None
    json: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None


def main(run: Run) -> None:
    documents, queries = (open_vectors(path, str(path), "cosine") for path in (run.documents, run.queries))
    peers = tuple(peer for peer in run.peers if peer in PACKAGES)
    failed, rows = install(run.install, peers), []
    with tempfile.TemporaryDirectory(dir=run.work, prefix="workers-") as folder:
        prepared = prepare(Path(folder), documents, queries, run.asked)
        for variant in list_limited_variants(run.peers, len(documents), documents.dim, run.code_bytes):
            python = str(get_python(run.install, variant.peer)) if variant.peer in PACKAGES else sys.executable
            try:
                if variant.peer in failed:
                    raise PeerError(failed[variant.peer])
                rows.append(measure(run, variant, prepared, python))
            except PeerError as error:
                rows.append({"name": variant.name, "error": str(error)})
            print(rows[-1], flush=True)
    print(
        "\n| index | setting | R@10 | CPU ms | " + " | ".join(f"{count} processes, QPS" for count in run.workers) + " |"
    )
    print("|---" * (4 + len(run.workers)) + "|")
    for row in rows:
        if "error" not in row:
            setting = ", ".join(f"{name} {value:g}" for name, value in row["setting"].items())
            cells = [row["name"], setting, f"{row['recall@10']:.3f}", f"{row['cpu_ms']:.2f}"]
            print(f"| {' | '.join([*cells, *(f'{qps:,.0f}' for qps in row['qps'].values())])} |")
    if run.json:
        write_json(run.json, {"documents": len(documents), "rows": rows})


def measure(run: Run, variant: Variant, prepared: BenchmarkData, python: str) -> dict[str, Any]:
    """Build an index, choose its setting, and measure it with every number of processes."""
    limits, half = Limits(run.threads), len(prepared.exact) // 2
    fitted = {books: train_codebooks(prepared, books) for books in [variant.settings.get("fitted")] if books}
    request, row = make_request(variant, prepared, fitted, limits) | {"cold": 0}, make_row(variant)
    build_variant(variant, request, row, python, limits, prepared, fitted)
    points = []
    for line in run_harness(python, {**request, "phase": "search"}, limits.seconds):
        if line["event"] == "measured":
            rows = np.load(line["found"])[:half]
            points.append({**line, "recall@10": compute_recall(rows, prepared.exact[:half], 10)})
    enough = [point for point in points if point["recall@10"] >= run.recall]
    if not enough:
        raise PeerError(f"recall@10 of {run.recall:g} is not reached")
    best = min(enough, key=lambda point: float(point["cpu_ms"]))
    request |= {"grid": [best["setting"]], "first": half}
    qps = {count: measure_workers(run, request, python, count) for count in run.workers}
    return {"name": variant.name, **{name: best[name] for name in ("setting", "recall@10", "cpu_ms")}, "qps": qps}


def measure_workers(run: Run, request: dict[str, Any], python: str, count: int) -> float:
    """Return the queries a second of several processes together."""
    with tempfile.TemporaryDirectory() as barrier, ThreadPoolExecutor(count) as pool:
        shared = {**request, "phase": "throughput", "seconds": run.seconds, "workers": count, "barrier": barrier}
        lines = pool.map(lambda number: run_harness(python, {**shared, "number": number}, 3_600.0), range(count))
        return sum(line["qps"] for worker in lines for line in worker if line["event"] == "throughput")


if __name__ == "__main__":
    main(tyro.cli(Run))
