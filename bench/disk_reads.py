"""Cost of reading 1,000 random rows, cold and warm, for every read path; and the limit of the disk (fio).

python bench/disk_reads.py --folder /a/folder/on/the/disk            # 5 GB, removed afterwards
python bench/disk_reads.py --gigabytes 2 --dim 768 --stored int8
"""

import ctypes
import json
import mmap
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tyro

from bidr.index.vectors import StorageKind, VectorFile, VectorWriter
from bidr.index.vectors.row_layout import get_row_dtype
from bidr.index.vectors.vector_file import ReadMode

MADE_ROWS = 20_000
PAGE = mmap.PAGESIZE
LIMIT = "fio, O_DIRECT, depth 128, the same pages, batched"
# By default fio submits one read at a time, which takes up to twice the time.
BATCHED = ("--iodepth_batch_submit=32", "--iodepth_batch_complete_min=16", "--iodepth_batch_complete_max=128")
Score = Callable[[np.ndarray, np.ndarray], np.ndarray]
Opened = tuple[Score, Callable[[], None]]


class Times(NamedTuple):
    """Milliseconds of a draw; `busy`: CPU time, cold."""

    cold: float
    warm: float | None = None
    busy: float | None = None


def main(
    folder: Path = Path(),
    gigabytes: float = 5.0,
    dim: int = 384,
    rows: int = 1_000,
    stored: StorageKind = "fp16",
    rounds: int = 8,
    draws: int = 4,
) -> None:
    """Draw rows in each round and read them in every way, in rotating order.

    Before each way mincore verifies that the file is not in memory. The memmap without advice takes seconds: one draw.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix="disk-reads-") as folder_name:
        path = Path(folder_name) / "vectors.npy"
        count = int(gigabytes * 1e9 / (2 * dim if stored == "fp16" else dim + 4))
        write(path, count, dim, stored)
        compile_kernels(Path(folder_name) / "small", dim, stored)
        random, results = np.random.default_rng(1), dict[str, list[Times]]()
        ways: dict[str, Callable[[list[np.ndarray]], Times]] = {
            LIMIT: lambda sample: run_fio(path, sample, *BATCHED),
            "fio, the same, its defaults": lambda sample: run_fio(path, sample),
            "past the page cache, the first time": lambda sample: measure(
                path, sample, lambda: open_vectors(path, "auto")
            ),
            "the same, read before and evicted since": lambda sample: measure_evicted(path, sample),
            "into it, io_uring": lambda sample: measure(path, sample, lambda: open_vectors(path, "io_uring")),
            "into it, advice": lambda sample: measure(path, sample, lambda: open_vectors(path, "advice")),
            "memmap, MADV_RANDOM": lambda sample: measure(path, sample, lambda: open_memmap(path, random=True)),
        }
        for turn in range(rounds):
            sample = [random.integers(0, count, rows) for _ in range(draws)]
            names = list(ways)
            for name in names[turn % len(ways) :] + names[: turn % len(ways)]:
                results.setdefault(name, []).append(ways[name](sample))
        print(f"{count:,} rows of {dim} {stored}, {path.stat().st_size / 1e9:.1f} GB")
        print(f"{rows:,} rows at random lie in about {len(find_pages(path, sample[0])):,} pages; {rounds} rounds\n")
        results["memmap, no advice"] = [measure(path, sample[:1], lambda: open_memmap(path, random=False))] * rounds
        print_table([*ways, "memmap, no advice"], results)


def print_table(names: list[str], results: dict[str, list[Times]]) -> None:
    """Print medians over the rounds; ratios are relative to fio in the same round."""
    limits = [times.cold for times in results[LIMIT]]
    print("| way | cold ms, median (least to most) | times fio, median of rounds | of it CPU | warm ms |")
    print("|---|---|---|---|---|")
    for name in names:
        cold = [times.cold for times in results[name]]
        ratio = statistics.median(value / limit for value, limit in zip(cold, limits, strict=True))
        line = f"| {name} | {statistics.median(cold):.1f} ({min(cold):.1f} to {max(cold):.1f}) | {ratio:.2f} |"
        busy = format_median([times.busy for times in results[name]], 1)
        print(line, busy, "|", format_median([times.warm for times in results[name]], 3), "|")


def format_median(values: list[float | None], digits: int) -> str:
    known = [one for one in values if one is not None]
    return f"{statistics.median(known):.{digits}f}" if known else ""


def write(path: Path, count: int, dim: int, stored: StorageKind) -> None:
    random = np.random.default_rng(0)
    rows = random.standard_normal((MADE_ROWS, dim), dtype=np.float32)
    with VectorWriter(lambda name: open(path.parent / name, "wb"), count, dim, stored) as out:
        for start in range(0, count, MADE_ROWS):
            out.write(rows[: min(MADE_ROWS, count - start)])
    for name in path.parent.iterdir():
        handle = os.open(name, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


def compile_kernels(folder: Path, dim: int, stored: StorageKind) -> None:
    folder.mkdir()
    write(folder / "vectors.npy", 100, dim, stored)
    for reads in ("auto", "io_uring", "advice"):
        evict(folder / "vectors.npy")
        with VectorFile.open(folder / "vectors.npy", reads=reads) as small:
            small.score(np.arange(100), np.ones(dim, dtype=np.float32))
    shutil.rmtree(folder)


def evict(path: Path) -> float:
    """Evict a file from memory and return the share of its pages that stay (mincore)."""
    handle = os.open(path, os.O_RDONLY)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    mapped = mmap.mmap(handle, 0, prot=mmap.PROT_READ)
    content = np.frombuffer(mapped, dtype=np.uint8)
    residency = np.zeros(-(-len(mapped) // PAGE), dtype=np.uint8)
    call = ctypes.CDLL(None, use_errno=True).mincore
    arguments = (
        ctypes.c_void_p(content.ctypes.data),
        ctypes.c_size_t(len(mapped)),
        ctypes.c_void_p(residency.ctypes.data),
    )
    if call(*arguments) != 0:
        raise SystemExit(f"mincore: {os.strerror(ctypes.get_errno())}")
    del content
    mapped.close()
    os.close(handle)
    return float((residency & 1).mean())


def open_vectors(path: Path, reads: ReadMode) -> Opened:
    file = VectorFile.open(path, reads=reads)
    time.sleep(0.05)  # opening starts to prefetch the checksums, a thousandth of the file
    return file.score, file.close


def open_memmap(path: Path, *, random: bool) -> Opened:
    loaded = np.load(path, mmap_mode="r")
    mapped: mmap.mmap = loaded._mmap
    if random:
        mapped.madvise(mmap.MADV_RANDOM)

    def score(rows: np.ndarray, query: np.ndarray) -> np.ndarray:
        if loaded.dtype.names is None:
            return loaded[rows].astype(np.float32) @ query
        stored = loaded[rows]
        return (stored["vector"].astype(np.float32) @ query) * stored["scale"]

    return score, lambda: None


def time_draw(score: Score, rows: np.ndarray, query: np.ndarray) -> tuple[float, float]:
    """Return elapsed and CPU milliseconds."""
    started, busy = time.perf_counter(), time.thread_time()
    score(rows, query)
    return 1000 * (time.perf_counter() - started), 1000 * (time.thread_time() - busy)


def measure(path: Path, draws: list[np.ndarray], open_: Callable[[], Opened]) -> Times:
    """Return median milliseconds of a draw: the first time, and from the third on."""
    cold, warm, other = [], [], np.zeros(1 << 26, dtype=np.uint8)
    query = np.random.default_rng(2).standard_normal(read_dim(path), dtype=np.float32)
    for draw in draws:
        check_cold(path)
        score, close = open_()
        cold.append(time_draw(score, draw, query))
        score(draw, query)
        warm += [time_draw(score, draw, query)[0] for _ in range(10) if other.sum() == 0]  # evict the CPU caches
        close()
        del score, close
    elapsed, busy = np.median(cold, axis=0).tolist()
    return Times(elapsed, statistics.median(warm), busy)


def measure_evicted(path: Path, draws: list[np.ndarray]) -> Times:
    """Measure rows that were in the page cache and have been evicted since."""
    cold = []
    query = np.ones(read_dim(path), dtype=np.float32)
    for draw in draws:
        with VectorFile.open(path) as file:
            for _ in range(3):
                file.score(draw, query)
            file._map.madvise(mmap.MADV_DONTNEED)
            check_cold(path)
            cold.append(time_draw(file.score, draw, query))
    elapsed, busy = np.median(cold, axis=0).tolist()
    return Times(elapsed, None, busy)


def check_cold(path: Path) -> None:
    resident = evict(path)
    if resident > 0.0001:
        raise SystemExit(f"{resident:.2%} of {path} stays in memory: nothing cold can be measured")


def read_dim(path: Path) -> int:
    with VectorFile.open(path) as file:
        return file.dim


def find_pages(path: Path, rows: np.ndarray) -> np.ndarray:
    with VectorFile.open(path) as file:
        size = get_row_dtype(file.kind, file.dim).itemsize * (file.dim if file.kind == "fp16" else 1)
        start = path.stat().st_size - file.count * size
    first = start + rows * size
    places = first[:, None] + np.minimum(np.arange(0, size + PAGE, PAGE), size - 1)
    return np.unique(places // PAGE)


def run_fio(path: Path, draws: list[np.ndarray], *more: str) -> Times:
    """Return milliseconds per draw that fio takes for the same pages, all draws in one stream at depth 128."""
    if shutil.which("fio") is None:
        raise SystemExit("fio is not installed: apt install fio")
    log = path.with_suffix(".iolog")
    reads = [f"{path.absolute()} read {page * PAGE} {PAGE}" for draw in draws for page in find_pages(path, draw)]
    name = path.absolute()
    log.write_text("\n".join(["fio version 2 iolog", f"{name} add", f"{name} open", *reads, f"{name} close", ""]))
    options = ["--name=limit", "--ioengine=io_uring", "--direct=1", "--iodepth=128", f"--read_iolog={log}"]
    process = subprocess.run(
        ["fio", *options, *more, "--output-format=json"], capture_output=True, text=True, check=True
    )
    report = json.loads(process.stdout[process.stdout.index("{") :])["jobs"][0]["read"]
    if report["total_ios"] != len(reads):
        raise SystemExit(f"fio read {report['total_ios']:,} pages, expected {len(reads):,}")
    log.unlink()
    return Times(1000 / report["iops"] * len(reads) / len(draws))


if __name__ == "__main__":
    tyro.cli(main)
