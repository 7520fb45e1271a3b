"""Searching with less memory than vectors: recall, reads, latency and throughput in a memory cgroup.

python bench/synthetic_million.py documents.npy million.npy
bidr build --vectors million.npy --out INDEX
python bench/limited_memory.py INDEX queries.npy --share 0.1 --candidates 100 200 500 1000
python bench/limited_memory.py INDEX queries.npy --megabytes 45 --clients 1 2 8 16
python bench/limited_memory.py INDEX queries.npy --share 0        # no limit: warm

The process opens the index and loads its codes, then enters a new memory cgroup (v1 or v2) whose limit is a share of
the vectors file: only pages and memory charged from then on count, so the limit is what page cache and new memory may
take. It answers `--warm-up` queries, then `--measured` others for each number of clients. Reads are those of the cgroup
(v1: blkio, v2: io.stat); 0 without one. CPU: of the process, all threads. R@10: of the exact top 10 over the stored
vectors, kept beside the queries. Needs root, or a cgroup that this user may write.
"""

import contextlib
import json
import os
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tyro
from tyro.conf import Positional
from unit import unit

import bidr
from bidr.search.types import QueryVectors

ANSWERS = 10
AT_ONCE = 16_384
V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


class Counters(NamedTuple):
    """Counts of this process since it started, or of its cgroup."""

    reads: int
    bytes: int
    cpu: float
    major_faults: int

    def minus(self, other: "Counters") -> "Counters":
        return Counters(*(now - before for now, before in zip(self, other, strict=True)))


class Cgroup:
    """A cgroup for memory and the number of reads, removed at exit."""

    def __init__(self, limit: int) -> None:
        name = f"bidr-bench-{os.getpid()}"
        self.folders, self._home = [], dict[Path, Path]()
        if (V1 / "memory.limit_in_bytes").exists():
            roots, self._stat = [V1, V1.parent / "blkio"], V1.parent / "blkio" / name / "blkio.throttle.io_serviced"
            setting = "memory.limit_in_bytes"
        else:
            roots, self._stat, setting = [V2], V2 / name / "io.stat", "memory.max"
        try:
            for root in roots:
                (root / name).mkdir()
                self.folders.append(root / name)
            (self.folders[0] / setting).write_text(str(limit))
        except OSError as error:
            self.leave()
            raise SystemExit(f"no memory cgroup can be made here ({error}); run as root, or with --share 0") from error
        for root, folder in zip(roots, self.folders, strict=True):
            self._home[folder] = root / read_own_cgroup(root).lstrip("/")
            (folder / "cgroup.procs").write_text(str(os.getpid()))

    def count_reads(self) -> int:
        """Return the reads that the block device served for the cgroup."""
        lines = self._stat.read_text().splitlines()
        if self._stat.name == "io.stat":
            return sum(int(field[5:]) for line in lines for field in line.split() if field.startswith("rios="))
        return sum(int(line.split()[-1]) for line in lines if " Read " in line)

    def leave(self) -> None:
        for folder in self.folders:
            if folder in self._home:
                (self._home[folder] / "cgroup.procs").write_text(str(os.getpid()))
            with contextlib.suppress(OSError):
                folder.rmdir()


def read_own_cgroup(root: Path) -> str:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if root.name in controllers.split(",") or (root == V2 and not controllers):
            return path
    return "/"


def main(
    index: Positional[Path],
    queries: Positional[Path],
    share: float = 0.1,
    megabytes: float | None = None,
    candidates: tuple[int, ...] = (100, 200, 500, 1_000),
    clients: tuple[int, ...] = (1,),
    warm_up: int = 10_000,
    measured: int = 1_000,
    cache: str | None = None,
    as_json: bool = False,
) -> None:
    """Print a line for every number of candidates and of clients.

    `--share` of the vectors file is what the cgroup may hold, 0: no limit; `--megabytes` instead says how much.
    `--cache`: the size of bidr's own cache.
    """
    vectors = unit(np.load(queries))
    order = np.random.default_rng(0).permutation(len(vectors))
    groups = [np.sort(order[at * measured : (at + 1) * measured]) for at in range(len(clients))]
    others = vectors[order[len(clients) * measured :][:warm_up]]
    options: dict[str, Any] = {} if cache is None else {"cache": cache}
    with bidr.open_index(index, **options) as searcher:
        exact = load_exact_rows(searcher, vectors, queries.with_suffix(f".{index.name}.top.npy"))
        path = next(index.glob("*/vectors.npy"))
        size = path.stat().st_size
        limit = int(megabytes * 1e6) if megabytes is not None else int(share * size)
        search(searcher, others[:50], 1_000, 4)  # compile
        evict(path)
    with bidr.open_index(index, **options) as searcher:
        searcher.reader.candidates.search(others[:1], 10)
        for name in path.parent.iterdir():
            evict(name)
        group = Cgroup(limit) if limit else None
        try:
            print(f"{index}: {size / 1e6:.0f} MB of vectors, limit {limit / 1e6:.0f} MB, warm-up {warm_up}", flush=True)
            for depth in candidates:
                search(searcher, others, depth, 2)
                for count, numbers in zip(clients, groups, strict=True):
                    print_row(measure(searcher, group, vectors[numbers], exact[numbers], depth, count), as_json)
            usage = {
                name: round(value / searcher.reader.count, 2) for name, value in searcher.reader.ram_usage.parts.items()
            }
            print("RAM bytes per document:", usage, flush=True)
        finally:
            if group is not None:
                group.leave()


def measure(searcher: Any, group: Cgroup | None, fresh: np.ndarray, exact: np.ndarray, depth: int, clients: int) -> Any:
    before, started = read_counters(group), time.perf_counter()
    rows, times = search(searcher, fresh, depth, clients)
    seconds, spent = time.perf_counter() - started, read_counters(group).minus(before)
    recall = np.mean([np.isin(wanted, row).mean() for wanted, row in zip(exact, rows, strict=True)])
    p50, p95, p99 = np.percentile(times, (50, 95, 99)).tolist()
    count = len(fresh)
    return {
        "N": depth,
        "clients": clients,
        "R@10": round(float(recall), 4),
        "reads": round(spent.reads / count, 1),
        "KB": round(spent.bytes / count / 1e3, 1),
        "p50": round(p50, 2),
        "p95": round(p95, 2),
        "p99": round(p99, 2),
        "CPU ms": round(1e3 * spent.cpu / count, 2),
        "QPS": round(count / seconds),
        "faults": round(spent.major_faults / count, 2),
    }


def print_row(row: dict[str, Any], as_json: bool) -> None:
    print(json.dumps(row) if as_json else "  ".join(f"{name} {value}" for name, value in row.items()), flush=True)


def search(searcher: Any, vectors: np.ndarray, depth: int, clients: int) -> tuple[np.ndarray, list[float]]:
    """Answer each query alone, by so many threads; return rows and milliseconds."""
    rows, times = np.zeros((len(vectors), ANSWERS), dtype=np.int64), [0.0] * len(vectors)
    numbers: Iterator[int] = iter(range(len(vectors)))

    def run() -> None:
        for number in numbers:
            started = time.perf_counter()
            query = vectors[number : number + 1]
            rows[number] = searcher.search_vectors(QueryVectors(query, query), ANSWERS, depth).rows[0]
            times[number] = 1e3 * (time.perf_counter() - started)

    threads = [threading.Thread(target=run) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return rows, times


def read_counters(group: Cgroup | None) -> Counters:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    io = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    reads = group.count_reads() if group is not None else 0
    return Counters(reads, int(io["read_bytes"]), usage.ru_utime + usage.ru_stime, usage.ru_majflt)


def load_exact_rows(searcher: Any, fresh: np.ndarray, path: Path) -> np.ndarray:
    """Return the exact top 10 over the stored vectors; computed once."""
    if path.exists():
        return np.asarray(np.load(path))
    view = searcher.reader.latest()
    scores, best = np.full((len(fresh), ANSWERS), -np.inf, dtype=np.float32), np.full((len(fresh), ANSWERS), -1)
    for start in range(0, view.count, AT_ONCE):
        batch = np.arange(start, min(start + AT_ONCE, view.count))
        all_scores = np.hstack([scores, fresh @ view.vectors.read(batch).T])
        all_places = np.hstack([best, np.broadcast_to(batch, (len(fresh), len(batch)))])
        top = np.argpartition(-all_scores, ANSWERS, axis=1)[:, :ANSWERS]
        scores, best = np.take_along_axis(all_scores, top, axis=1), np.take_along_axis(all_places, top, axis=1)
    rows = view.rows_of(best)
    np.save(path, rows)
    return rows


def evict(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)


if __name__ == "__main__":
    tyro.cli(main)
