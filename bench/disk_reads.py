"""What 1,000 random rows cost, cold and warm, by every way of reading them; and what the disk itself needs (fio).

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
# By default fio hands over one read at a time, which costs it up to twice the time: too soft a limit to compare with.
BATCHED = ("--iodepth_batch_submit=32", "--iodepth_batch_complete_min=16", "--iodepth_batch_complete_max=128")
Score = Callable[[np.ndarray, np.ndarray], np.ndarray]
Opened = tuple[Score, Callable[[], None]]


class Times(NamedTuple):
    """Milliseconds of a draw; `busy`: of the processor, cold."""

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
    """Each round draws rows some times and reads them every way, in an order that moves on from round to round.

    Before each way mincore says that the file is not in memory. The memmap without advice takes seconds: one draw.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix="disk-reads-") as made:
        path = Path(made) / "vectors.npy"
        count = int(gigabytes * 1e9 / (2 * dim if stored == "fp16" else dim + 4))
        write(path, count, dim, stored)
        compile_first(Path(made) / "small", dim, stored)
        random, found = np.random.default_rng(1), dict[str, list[Times]]()
        ways: dict[str, Callable[[list[np.ndarray]], Times]] = {
            LIMIT: lambda drawn: fio(path, drawn, *BATCHED),
            "fio, the same, its defaults": lambda drawn: fio(path, drawn),
            "past the page cache, the first time": lambda drawn: measure(path, drawn, lambda: opened(path, "auto")),
            "the same, read before and evicted since": lambda drawn: again(path, drawn),
            "into it, io_uring": lambda drawn: measure(path, drawn, lambda: opened(path, "io_uring")),
            "into it, advice": lambda drawn: measure(path, drawn, lambda: opened(path, "advice")),
            "memmap, MADV_RANDOM": lambda drawn: measure(path, drawn, lambda: by_memmap(path, random=True)),
        }
        for turn in range(rounds):
            drawn = [random.integers(0, count, rows) for _ in range(draws)]
            names = list(ways)
            for name in names[turn % len(ways) :] + names[: turn % len(ways)]:
                found.setdefault(name, []).append(ways[name](drawn))
        print(f"{count:,} rows of {dim} {stored}, {path.stat().st_size / 1e9:.1f} GB")
        print(f"{rows:,} rows at random lie in about {len(pages_of(path, drawn[0])):,} pages; {rounds} rounds\n")
        found["memmap, no advice"] = [measure(path, drawn[:1], lambda: by_memmap(path, random=False))] * rounds
        show([*ways, "memmap, no advice"], found)


def show(names: list[str], found: dict[str, list[Times]]) -> None:
    """Medians over the rounds; the ratio is that of each round to its own fio."""
    limits = [times.cold for times in found[LIMIT]]
    print("| way | cold ms, median (least to most) | times fio, median of rounds | of it CPU | warm ms |")
    print("|---|---|---|---|---|")
    for name in names:
        cold = [times.cold for times in found[name]]
        ratio = statistics.median(one / limit for one, limit in zip(cold, limits, strict=True))
        line = f"| {name} | {statistics.median(cold):.1f} ({min(cold):.1f} to {max(cold):.1f}) | {ratio:.2f} |"
        busy = middle([times.busy for times in found[name]], 1)
        print(line, busy, "|", middle([times.warm for times in found[name]], 3), "|")


def middle(given: list[float | None], digits: int) -> str:
    there = [one for one in given if one is not None]
    return f"{statistics.median(there):.{digits}f}" if there else ""


def write(path: Path, count: int, dim: int, stored: StorageKind) -> None:
    random = np.random.default_rng(0)
    some = random.standard_normal((MADE_ROWS, dim), dtype=np.float32)
    with VectorWriter(lambda name: open(path.parent / name, "wb"), count, dim, stored) as out:
        for start in range(0, count, MADE_ROWS):
            out.write(some[: min(MADE_ROWS, count - start)])
    for name in path.parent.iterdir():
        handle = os.open(name, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


def compile_first(folder: Path, dim: int, stored: StorageKind) -> None:
    folder.mkdir()
    write(folder / "vectors.npy", 100, dim, stored)
    for reads in ("auto", "io_uring", "advice"):
        evict(folder / "vectors.npy")
        with VectorFile.open(folder / "vectors.npy", reads=reads) as small:
            small.score(np.arange(100), np.ones(dim, dtype=np.float32))
    shutil.rmtree(folder)


def evict(path: Path) -> float:
    """Take a file out of memory; the share of its pages that is still there, by mincore."""
    handle = os.open(path, os.O_RDONLY)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    mapped = mmap.mmap(handle, 0, prot=mmap.PROT_READ)
    held = np.frombuffer(mapped, dtype=np.uint8)
    there = np.zeros(-(-len(mapped) // PAGE), dtype=np.uint8)
    call = ctypes.CDLL(None, use_errno=True).mincore
    asked = (ctypes.c_void_p(held.ctypes.data), ctypes.c_size_t(len(mapped)), ctypes.c_void_p(there.ctypes.data))
    if call(*asked) != 0:
        raise SystemExit(f"mincore: {os.strerror(ctypes.get_errno())}")
    del held
    mapped.close()
    os.close(handle)
    return float((there & 1).mean())


def opened(path: Path, reads: ReadMode) -> Opened:
    file = VectorFile.open(path, reads=reads)
    time.sleep(0.05)  # opening asks for the checksums, a thousandth of the file, without waiting for them
    return file.score, file.close


def by_memmap(path: Path, *, random: bool) -> Opened:
    loaded = np.load(path, mmap_mode="r")
    mapped: mmap.mmap = loaded._mmap
    if random:
        mapped.madvise(mmap.MADV_RANDOM)

    def score(rows: np.ndarray, query: np.ndarray) -> np.ndarray:
        if loaded.dtype.names is None:
            return loaded[rows].astype(np.float32) @ query
        taken = loaded[rows]
        return (taken["vector"].astype(np.float32) @ query) * taken["scale"]

    return score, lambda: None


def timed(score: Score, rows: np.ndarray, query: np.ndarray) -> tuple[float, float]:
    """Milliseconds, and those of the processor."""
    started, busy = time.perf_counter(), time.thread_time()
    score(rows, query)
    return 1000 * (time.perf_counter() - started), 1000 * (time.thread_time() - busy)


def measure(path: Path, draws: list[np.ndarray], open_: Callable[[], Opened]) -> Times:
    """Median milliseconds of a draw: the first time, and from the third on."""
    cold, warm, other = [], [], np.zeros(1 << 26, dtype=np.uint8)
    query = np.random.default_rng(2).standard_normal(dim_of(path), dtype=np.float32)
    for draw in draws:
        must_be_cold(path)
        score, close = open_()
        cold.append(timed(score, draw, query))
        score(draw, query)
        warm += [timed(score, draw, query)[0] for _ in range(10) if other.sum() == 0]  # out of the processor's caches
        close()
        del score, close
    took, busy = np.median(cold, axis=0).tolist()
    return Times(took, statistics.median(warm), busy)


def again(path: Path, draws: list[np.ndarray]) -> Times:
    """Rows that were in the page cache, then evicted: nothing says so beforehand."""
    cold = []
    query = np.ones(dim_of(path), dtype=np.float32)
    for draw in draws:
        with VectorFile.open(path) as file:
            for _ in range(3):
                file.score(draw, query)
            file._map.madvise(mmap.MADV_DONTNEED)
            must_be_cold(path)
            cold.append(timed(file.score, draw, query))
    took, busy = np.median(cold, axis=0).tolist()
    return Times(took, None, busy)


def must_be_cold(path: Path) -> None:
    there = evict(path)
    if there > 0.0001:
        raise SystemExit(f"{there:.2%} of {path} stays in memory: nothing cold can be measured")


def dim_of(path: Path) -> int:
    with VectorFile.open(path) as file:
        return file.dim


def pages_of(path: Path, rows: np.ndarray) -> np.ndarray:
    with VectorFile.open(path) as file:
        size = get_row_dtype(file.kind, file.dim).itemsize * (file.dim if file.kind == "fp16" else 1)
        start = path.stat().st_size - file.count * size
    first = start + rows * size
    places = first[:, None] + np.minimum(np.arange(0, size + PAGE, PAGE), size - 1)
    return np.unique(places // PAGE)


def fio(path: Path, draws: list[np.ndarray], *more: str) -> Times:
    """Milliseconds a draw that fio needs for the same pages, all draws in one stream at depth 128."""
    if shutil.which("fio") is None:
        raise SystemExit("fio is not installed: apt install fio")
    log = path.with_suffix(".iolog")
    reads = [f"{path.absolute()} read {page * PAGE} {PAGE}" for draw in draws for page in pages_of(path, draw)]
    name = path.absolute()
    log.write_text("\n".join(["fio version 2 iolog", f"{name} add", f"{name} open", *reads, f"{name} close", ""]))
    options = ["--name=limit", "--ioengine=io_uring", "--direct=1", "--iodepth=128", f"--read_iolog={log}"]
    done = subprocess.run(["fio", *options, *more, "--output-format=json"], capture_output=True, text=True, check=True)
    one = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]["read"]
    if one["total_ios"] != len(reads):
        raise SystemExit(f"fio read {one['total_ios']:,} pages, expected {len(reads):,}")
    log.unlink()
    return Times(1000 / one["iops"] * len(reads) / len(draws))


if __name__ == "__main__":
    tyro.cli(main)
