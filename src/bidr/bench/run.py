"""The whole comparison: vectors prepared once, exact answers once, then one variant after the other."""

import shutil
import sys
import tempfile
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
    count: int


class Limits(NamedTuple):
    """What the run may take."""

    threads: int = 1
    seconds: float = 3_600.0
    cold: int = 20


def prepare(folder: Path, documents: VectorRows, queries: VectorRows, asked: int) -> Prepared:
    """float32 for building, one fp16 file for ranking, and the exact top 100 by inner product."""
    from bidr.codes.exact import top_k

    count, dim = documents.shape
    paths = [folder / name for name in ("documents.npy", "queries.npy", "vectors.npy")]
    whole = np.lib.format.open_memmap(paths[0], mode="w+", dtype=np.float32, shape=(count, dim))  # type: ignore[no-untyped-call]
    with VectorWriter(lambda name: (folder / name).open("wb"), count, dim, "fp16") as out:
        for start in range(0, count, WRITE_ROWS):
            block = documents[start : start + WRITE_ROWS]
            whole[start : start + len(block)] = block
            out.write(block)
    whole.flush()
    questions = queries[np.sort(np.random.default_rng(0).permutation(len(queries))[:asked])]
    np.save(paths[1], questions)
    return Prepared(folder, *paths, top_k(questions, whole, ANSWERS).rows, count)


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
    limits: Limits = Limits(),
) -> list[Row]:
    """A row for every variant, with its points or with the reason why it has none."""
    rows = []
    for number, variant in enumerate(variants, start=1):
        row: Row = {"name": variant.name, "peer": variant.peer, "settings": variant.settings, "points": []}
        try:
            if variant.peer in failed:
                raise PeerError(failed[variant.peer])
            row |= _one(variant, prepared, python_of(variant.peer), limits)
        except PeerError as error:
            row["error"] = str(error)
        said = row.get("error") or f"built in {row['build']['seconds']:.0f} s, {len(row['points'])} settings"
        print(f"{number}/{len(variants)} {variant.name}: {said}", file=sys.stderr, flush=True)
        rows.append(row)
    return rows


def _one(variant: Variant, prepared: Prepared, python: str, limits: Limits) -> Row:
    """Built in one process and searched in another, so that what building leaves is not counted as RAM."""
    folder = Path(tempfile.mkdtemp(dir=prepared.folder, prefix="peer-"))
    request = {
        "adapter": str(Path(__file__).parent / "peers" / f"{variant.adapter}.py"),
        "folder": str(folder),
        "vectors": str(prepared.vectors),
        "queries": str(prepared.queries),
        "rows": str(prepared.rows),
        "found": str(folder / "found-{}.npy"),
        "settings": {**variant.settings, "threads": limits.threads},
        "grid": variant.grid,
        "rank": variant.rank,
        "small": min(SMALL_ROWS, prepared.count),
        "cold": limits.cold if variant.cold else 0,
        "cold_at": variant.cold_at,
    }
    try:
        built = ask(python, {**request, "phase": "build"}, limits.seconds)
        said = ask(python, {**request, "phase": "search"}, limits.seconds)
        return _row(built + said, prepared, request["found"])
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
            row["ram_per_document"] = {name: size / prepared.count for name, size in line.items()}
        else:
            row["build" if event == "built" else event] = line
    if not row["points"] or "build" not in row:
        raise PeerError("it ended without figures")
    row["disk_per_document"] = row["build"]["disk_bytes"] / prepared.count
    return row
