"""Build or measure one peer: python harness.py REQUEST.json, in the peer's Python. Prints one JSON line per figure.

This file and the adapters, except `ours`, need only numpy and the peer.
Candidates are ranked by bidr.index.vectors where it can be imported, otherwise by numpy.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import mmap
import os
import re
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
WARM_UP = 20
ANSWERS = 100
RESIDENT = 0.01
POLL_SECONDS = 0.01
Search = Callable[[np.ndarray, int, dict[str, Any]], np.ndarray]
Rank = Callable[[np.ndarray, np.ndarray, int], np.ndarray]


def main() -> int:
    """Handle a request. Output of libraries goes to standard error, so that standard output has JSON only."""
    say = _redirect_output()
    # The adapters have the names of the libraries they import.
    sys.path[:] = [path for path in sys.path if not path or Path(path).resolve() != HERE]
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        phases = {"build": build, "search": search, "throughput": measure_throughput}
        if "cgroup" in request:
            from bidr.bench.peers import limited_search

            limited_search.enter_cgroup(request)
            phases |= {"index": limited_search.measure_index, "need": limited_search.measure_need}
            phases |= {"sweep": limited_search.sweep, "report": limited_search.report}
        peer = _load_adapter(Path(request["adapter"]))
        phases[request["phase"]](peer, request, say)
    except Exception as error:
        traceback.print_exc()
        say(event="error", error=f"{type(error).__name__}: {error}")
        return 1
    return 0


def build(peer: Any, request: dict[str, Any], say: Callable[..., None]) -> None:
    """Build the index, and a small one that `search` warms up with, so that compilation is not measured."""
    vectors, folder = np.load(request["vectors"], mmap_mode="r"), Path(request["folder"])
    settings = request["settings"]
    (folder / "small").mkdir(parents=True)
    peer.build(vectors[: request["small"]], folder / "small", settings)
    (folder / "whole").mkdir()
    reset_peak()
    wall, cpu = time.perf_counter(), time.process_time()
    peer.build(vectors, folder / "whole", settings)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    say(event="built", seconds=wall, cpu_seconds=cpu, peak_bytes=read_peak(), disk_bytes=_get_size(folder / "whole"))


def search(peer: Any, request: dict[str, Any], say: Callable[..., None]) -> None:
    """Measure every setting warm, then cold if requested, and the memory added by opening and searching."""
    queries, folder, settings = np.load(request["queries"]), Path(request["folder"]), request["settings"]
    by, rank = make_ranker(request["rank"], Path(request["rows"]))
    small = peer.open_index(folder / "small", settings)
    for query in queries[:3]:
        _search_once(small, rank, query, request["grid"][0])
    baseline = read_memory()
    find = peer.open_index(folder / "whole", settings)
    loaded = None
    # A first, unmeasured pass: it maps pages, and bidr verifies every block it reads.
    for query in queries:
        _search_once(find, rank, query, request["grid"][-1])
    for number, setting in enumerate(request["grid"]):
        for query in queries[:WARM_UP]:
            _search_once(find, rank, query, setting)
        figures, ids = measure_setting(find, rank, queries, setting)
        loaded = loaded or read_memory()
        path = request["found"].format(number)
        np.save(path, ids)
        say(event="measured", found=path, setting=setting, ranked_by=by, **figures)
    after = read_memory()
    counts = {f"{name}_bytes": (loaded or after)[name] - baseline[name] for name in baseline}
    say(event="memory", **counts, rss_end_bytes=after["rss"] - baseline["rss"])
    if request["cold"]:
        del find, rank  # mapped pages cannot be evicted
        try:
            say(event="cold", **measure_cold(peer, request, queries))
        except Exception as error:  # the warm points remain valid
            traceback.print_exc()
            say(event="not_cold", error=f"{type(error).__name__}: {error}")


def measure_throughput(peer: Any, request: dict[str, Any], say: Callable[..., None]) -> None:
    """Ask one query after the other for some seconds, beginning when all processes of the request are ready."""
    queries, setting = np.load(request["queries"])[request["first"] :], request["grid"][0]
    _, rank = make_ranker(request["rank"], Path(request["rows"]))
    find = peer.open_index(Path(request["folder"]) / "whole", request["settings"])
    for query in queries:
        _search_once(find, rank, query, setting)
    barrier = Path(request["barrier"])
    (barrier / str(request["number"])).touch()
    while len(list(barrier.iterdir())) < request["workers"]:
        time.sleep(POLL_SECONDS)
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < request["seconds"]:
        _search_once(find, rank, queries[count % len(queries)], setting)
        count += 1
    say(event="throughput", qps=count / (time.perf_counter() - started))


def measure_setting(
    find: Search, rank: Rank | None, queries: np.ndarray, setting: dict[str, Any]
) -> tuple[dict[str, Any], np.ndarray]:
    """Return CPU time and latency of single queries in milliseconds, and the results."""
    ids = np.full((len(queries), ANSWERS), -1, dtype=np.int64)
    times = np.empty((len(queries), 3))
    for number, query in enumerate(queries):
        results, *times[number] = _search_once(find, rank, query, setting)
        ids[number, : len(results)] = results
    candidates, ranking, wall = 1000 * times.T
    latency = {"p50_ms": float(np.percentile(wall, 50)), "p99_ms": float(np.percentile(wall, 99))}
    parts = {"candidates_cpu_ms": float(candidates.mean()), "ranking_cpu_ms": float(ranking.mean())}
    return {"cpu_ms": sum(parts.values()), **(parts if rank else {}), **latency}, ids


def _search_once(
    find: Search, rank: Rank | None, query: np.ndarray, setting: dict[str, Any]
) -> tuple[np.ndarray, float, float, float]:
    """Return results, CPU seconds of searching and of ranking, and wall seconds."""
    start, cpu = time.perf_counter(), time.process_time()
    ids = find(query, setting["candidates"] if rank else ANSWERS, setting)
    between = time.process_time()
    if rank:
        ids = rank(ids[ids >= 0], query, ANSWERS)
    ended = time.process_time()
    return ids[:ANSWERS], between - cpu, ended - between, time.perf_counter() - start


def measure_cold(peer: Any, request: dict[str, Any], queries: np.ndarray) -> dict[str, Any]:
    """Return milliseconds of queries with evicted vectors; each opens the index anew, as mapped pages stay."""
    times, resident = [], 0.0
    folder, rows = Path(request["folder"]) / "whole", Path(request["rows"])
    paths = [rows] if request["rank"] else [path for path in folder.rglob("*") if path.is_file()]
    largest = max(paths, key=lambda path: path.stat().st_size)  # holds the vectors
    for query in queries[-request["cold"] :]:
        for path in paths:
            evict(path)
        _, rank = make_ranker(request["rank"], rows)
        find = peer.open_index(folder, request["settings"])
        resident = max(resident, measure_resident_share(largest))
        if resident > RESIDENT:
            raise RuntimeError(f"{resident:.1%} of the vectors stay in memory: no cold query can be measured")
        times.append(1000 * _search_once(find, rank, query, request["grid"][request["cold_at"]])[3])
        del find, rank
    share = {"resident": resident, "queries": len(times)}
    return {"p50_ms": float(np.percentile(times, 50)), "p99_ms": float(np.percentile(times, 99)), **share}


def evict(path: Path) -> None:
    """Evict a file from the page cache; pages that a process has mapped stay."""
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)


def measure_resident_share(path: Path) -> float:
    """Return the share of a file's pages in memory, by mincore."""
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    content = np.frombuffer(mapped, dtype=np.uint8)
    flags = np.zeros(-(-len(mapped) // mmap.PAGESIZE), dtype=np.uint8)
    call = ctypes.CDLL(None, use_errno=True).mincore
    if (
        call(ctypes.c_void_p(content.ctypes.data), ctypes.c_size_t(len(mapped)), ctypes.c_void_p(flags.ctypes.data))
        != 0
    ):
        raise OSError(ctypes.get_errno(), "mincore")
    return float((flags & 1).mean())


def reset_peak() -> None:
    """Reset the peak of resident memory. The peak of getrusage is inherited from the parent process."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def read_peak() -> int:
    """Return the peak of resident memory, mapped files included, since `reset_peak`."""
    match = re.search(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"), re.MULTILINE)
    return 1024 * int(match[1]) if match else 0


def read_memory() -> dict[str, int]:
    """Return resident and anonymous bytes of this process, after freed memory was returned to the system."""
    ctypes.CDLL(None).malloc_trim(0)
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
    sizes = {line.split(":")[0]: 1024 * int(line.split()[1]) for line in lines}
    return {"rss": sizes["Rss"], "anonymous": sizes["Anonymous"]}


def make_ranker(kind: str | None, rows: Path) -> tuple[str, Rank | None]:
    """Return the name and the function of ranking candidates by vectors on disk."""
    if kind is None:
        return "itself", None
    if kind in ("auto", "bidr"):
        try:
            import numba  # noqa: F401

            from bidr.index.vectors import VectorFile
        except ImportError:
            if kind == "bidr":
                raise
        else:
            file = VectorFile.open(rows)
            return "bidr's reads", lambda ids, query, k: _select_best(ids, file.score(ids, query), k)
    loaded: Any = np.load(rows, mmap_mode="r")
    if kind != "memmap":
        loaded._mmap.madvise(mmap.MADV_RANDOM)
    name = "numpy, no advice" if kind == "memmap" else "numpy, MADV_RANDOM"
    return name, lambda ids, query, k: _select_best(ids, loaded[ids].astype(np.float32) @ query, k)


def _select_best(ids: np.ndarray, scores: np.ndarray, k: int) -> np.ndarray:
    return np.asarray(ids[np.argsort(-scores, kind="stable")[:k]])


def _load_adapter(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("adapter", path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _redirect_output() -> Callable[..., None]:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(**line: Any) -> None:
        out.write(json.dumps(line) + "\n")
        out.flush()

    return say


def _get_size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    sys.exit(main())
