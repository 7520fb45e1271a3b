"""The whole comparison: vectors prepared once, exact answers once, then one variant after the other."""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bidr.bench.launch import PeerError, ask
from bidr.bench.variants import Variant
from bidr.codes.vectors import VectorRows
from bidr.index.vectors import WRITE_ROWS, VectorWriter

ANSWERS = 100
SMALL_ROWS = 5_000
Row = dict[str, Any]


class Prepared(NamedTuple):
    """The files that every peer reads, and the exact answers."""

    folder: Path
    vectors: Path
    queries: Path
    rows: Path
    exact: npt.NDArray[np.int64]
    documents: int


class Fitted(NamedTuple):
    """Codebooks on disk, and what fitting them took."""

    path: Path
    seconds: float
    cpu_seconds: float


class Limits(NamedTuple):
    """What the run may take."""

    threads: int = 1
    seconds: float = 3_600.0
    cold: int = 20


def prepare(folder: Path, documents: VectorRows, queries: VectorRows, asked: int) -> Prepared:
    """float32 for building, one fp16 file for ranking, and the exact top 100 by inner product."""
    from bidr.codes.exact import top_k

    count, dim = documents.shape
    documents_path, queries_path, rows_path = (folder / f"{name}.npy" for name in ("documents", "queries", "vectors"))
    whole = np.lib.format.open_memmap(documents_path, mode="w+", dtype=np.float32, shape=(count, dim))
    with VectorWriter(lambda name: (folder / name).open("wb"), count, dim, "fp16") as out:
        for start in range(0, count, WRITE_ROWS):
            block = documents[start : start + WRITE_ROWS]
            whole[start : start + len(block)] = block
            out.write(block)
    whole.flush()
    questions = queries[np.sort(np.random.default_rng(0).permutation(len(queries))[:asked])]
    np.save(queries_path, questions)
    return Prepared(folder, documents_path, queries_path, rows_path, top_k(questions, whole, ANSWERS).rows, count)


def fit_once(prepared: Prepared, books: int) -> Fitted:
    """4-bit OPQ codebooks: ours are made with them, and what takes a rotation is given theirs."""
    from bidr.codes.fit import fit

    path = prepared.folder / f"fitted-{books}.npz"
    wall, cpu = time.perf_counter(), time.process_time()
    codebooks = fit(np.load(prepared.vectors, mmap_mode="r"), books, 16)
    np.savez(path, rotation=codebooks.rotation, centroids=codebooks.centroids)
    return Fitted(path, time.perf_counter() - wall, time.process_time() - cpu)


def recall(found: npt.NDArray[np.int64], exact: npt.NDArray[np.int64], k: int) -> float:
    """The share of the exact top k that is among the first k found."""
    wanted = exact[:, :k]
    pairs = zip(wanted, found[:, :k], strict=True)
    return float(np.mean([np.isin(right[right >= 0], given).mean() for right, given in pairs]))


def compare(
    variants: list[Variant],
    prepared: Prepared,
    python_of: Callable[[str], str],
    failed: dict[str, str],
    limits: Limits,
    keep: Callable[[list[Row]], None] = lambda rows: None,
) -> list[Row]:
    """A row for every variant, with its points or with the reason why it has none; `keep` is told after each."""
    rows: list[Row] = []
    books = {variant.settings["fitted"] for variant in variants if "fitted" in variant.settings}
    fitted = {number: fit_once(prepared, number) for number in sorted(books)}
    for number, variant in enumerate(variants, start=1):
        row: Row = {"name": variant.name, "peer": variant.peer, "settings": variant.settings, "points": []}
        try:
            if variant.peer in failed:
                raise PeerError(failed[variant.peer])
            row |= _one(variant, prepared, fitted, python_of(variant.peer), limits)
        except PeerError as error:
            row["error"] = str(error)
        said = row.get("error") or f"built in {row['build']['seconds']:.0f} s, {len(row['points'])} settings"
        print(f"{number}/{len(variants)} {variant.name}: {said}", file=sys.stderr, flush=True)
        rows.append(row)
        keep(rows)
    return rows


def _one(variant: Variant, prepared: Prepared, fitted: dict[int, Fitted], python: str, limits: Limits) -> Row:
    """Built in one process and searched in another, so that what building leaves is not counted as RAM."""
    folder = Path(tempfile.mkdtemp(dir=prepared.folder, prefix="peer-"))
    books = fitted.get(variant.settings.get("fitted", 0))
    settings = {**variant.settings, "threads": limits.threads, "fitted": str(books.path) if books else None}
    request = {
        "adapter": str(Path(__file__).parent / "peers" / f"{variant.adapter}.py"),
        "folder": str(folder),
        "vectors": str(prepared.vectors),
        "queries": str(prepared.queries),
        "rows": str(prepared.rows),
        "found": str(folder / "found-{}.npy"),
        "settings": settings,
        "grid": variant.grid,
        "rank": variant.rank,
        "small": min(SMALL_ROWS, prepared.documents),
        "cold": limits.cold if variant.cold else 0,
        "cold_at": variant.cold_at,
    }
    try:
        built = ask(python, {**request, "phase": "build"}, limits.seconds)
        said = ask(python, {**request, "phase": "search"}, limits.seconds)
        row = _row(built + said, prepared, request["found"])
        if books:
            row["build"]["seconds"] += books.seconds
            row["build"]["cpu_seconds"] += books.cpu_seconds
        return row
    finally:
        shutil.rmtree(folder)


def _row(lines: list[dict[str, Any]], prepared: Prepared, found: Any) -> Row:
    row: Row = {"points": []}
    for line in lines:
        event = line.pop("event")
        if event == "measured":
            ids = np.load(found.format(line["number"]))
            recalls = {f"recall@{k}": recall(ids, prepared.exact, k) for k in (10, 100)}
            row["points"].append({**line, **recalls, "qps_per_core": 1000 / line["cpu_ms"]})
        elif event == "memory":
            row["ram_per_document"] = {name: size / prepared.documents for name, size in line.items()}
        else:
            row["build" if event == "built" else event] = line
    if not row["points"] or "build" not in row:
        raise PeerError("it ended without figures")
    row["disk_per_document"] = row["build"]["disk_bytes"] / prepared.documents
    return row
