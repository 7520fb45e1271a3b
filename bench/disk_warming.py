"""Query cost while a cold file becomes warm: first reads with O_DIRECT, against all reads through the page cache.

python bench/disk_warming.py --folder /a/folder/on/the/disk            # 0.15 GB, removed afterwards
python bench/disk_warming.py --gigabytes 5 --queries 3000
"""

import tempfile
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import tyro
from disk_reads import check_cold, compile_kernels, write

from bidr.index.vectors import VectorFile
from bidr.index.vectors.vector_file import ReadMode

DIM, NEAR = 384, 2_000
PARTS = (0, 10, 100, 1_000, 10_000, 100_000)


def main(
    folder: Path = Path(), gigabytes: float = 0.15, queries: int = 2_000, rows: int = 200, rounds: int = 3
) -> None:
    """Read rows of a neighborhood per query, as documents are ordered by cluster; neighborhoods follow a Zipf law."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="disk-warming-") as temporary:
        path, count = Path(temporary) / "vectors.npy", int(gigabytes * 1e9 / (2 * DIM))
        write(path, count, DIM, "fp16")
        compile_kernels(Path(temporary) / "small", DIM, "fp16")
        samples = draw_queries(count, queries, rows)
        ways: tuple[ReadMode, ...] = ("auto", "io_uring")
        results = {way: [measure(path, way, samples) for _ in range(rounds)] for way in ways}
    print(f"{count:,} rows, {queries:,} queries of {rows} rows; mean of {rounds} rounds: ms a query, CPU ms a query")
    print("| queries | past the page cache first | into it at once |\n|---|---|---|")
    for start, end in pairwise(PARTS):
        if start < queries:
            means = [np.mean([times[start:end].mean(axis=0) for times in results[way]], axis=0) for way in ways]
            print(f"| {start + 1:,} to {min(end, queries):,} |", " | ".join(f"{a:.2f}, {b:.2f}" for a, b in means), "|")
    totals = [np.mean([times.sum(axis=0) for times in results[way]], axis=0) / 1000 for way in ways]
    print("| all, seconds |", " | ".join(f"{a:.2f}, {b:.2f}" for a, b in totals), "|")


def draw_queries(count: int, queries: int, rows: int) -> list[np.ndarray]:
    random = np.random.default_rng(3)
    places = max(count // NEAR, 1)
    weights = 1 / np.arange(1, places + 1)
    middles = random.permutation(places)[random.choice(places, queries, p=weights / weights.sum())] * NEAR
    near = np.abs(middles[:, None] + random.normal(0, NEAR, (queries, rows)).astype(np.int64))
    return list(np.minimum(near, count - 1))


def measure(path: Path, reads: ReadMode, drawn: list[np.ndarray]) -> np.ndarray:
    """Return elapsed and CPU milliseconds, (queries, 2)."""
    check_cold(path)
    query, times = np.ones(DIM, dtype=np.float32), np.empty((len(drawn), 2))
    with VectorFile.open(path, reads=reads) as file:
        time.sleep(0.05)
        for number, rows in enumerate(drawn):
            start = time.perf_counter(), time.thread_time()
            file.score(rows, query)
            times[number] = time.perf_counter() - start[0], time.thread_time() - start[1]
    return 1000 * times


if __name__ == "__main__":
    tyro.cli(main)
