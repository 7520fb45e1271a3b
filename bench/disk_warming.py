"""What queries cost from a cold file on, while it becomes warm: first reads past the page cache, and all into it.

python bench/disk_warming.py --folder /a/folder/on/the/disk            # 0.15 GB, removed afterwards
python bench/disk_warming.py --gigabytes 5 --queries 3000
"""

import tempfile
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import tyro
from disk_reads import compile_first, must_be_cold, write

from bidr.index.vectors import VectorFile
from bidr.index.vectors.vector_file import ReadMode

DIM, NEAR = 384, 2_000
PARTS = (0, 10, 100, 1_000, 10_000, 100_000)


def main(
    folder: Path = Path(), gigabytes: float = 0.15, queries: int = 2_000, rows: int = 200, rounds: int = 3
) -> None:
    """Queries read rows of a neighbourhood, as documents stand by cluster; some of these more often than others."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="disk-warming-") as made:
        path, count = Path(made) / "vectors.npy", int(gigabytes * 1e9 / (2 * DIM))
        write(path, count, DIM, "fp16")
        compile_first(Path(made) / "small", DIM, "fp16")
        drawn = draws(count, queries, rows)
        ways: tuple[ReadMode, ...] = ("auto", "io_uring")
        found = {way: [asked(path, way, drawn) for _ in range(rounds)] for way in ways}
    print(f"{count:,} rows, {queries:,} queries of {rows} rows; mean of {rounds} rounds: ms a query, CPU ms a query")
    print("| queries | past the page cache first | into it at once |\n|---|---|---|")
    for start, end in pairwise(PARTS):
        if start < queries:
            means = [np.mean([times[start:end].mean(axis=0) for times in found[way]], axis=0) for way in ways]
            print(f"| {start + 1:,} to {min(end, queries):,} |", " | ".join(f"{a:.2f}, {b:.2f}" for a, b in means), "|")
    totals = [np.mean([times.sum(axis=0) for times in found[way]], axis=0) / 1000 for way in ways]
    print("| all, seconds |", " | ".join(f"{a:.2f}, {b:.2f}" for a, b in totals), "|")


def draws(count: int, queries: int, rows: int) -> list[np.ndarray]:
    random = np.random.default_rng(3)
    places = max(count // NEAR, 1)
    often = 1 / np.arange(1, places + 1)
    middles = random.permutation(places)[random.choice(places, queries, p=often / often.sum())] * NEAR
    near = np.abs(middles[:, None] + random.normal(0, NEAR, (queries, rows)).astype(np.int64))
    return list(np.minimum(near, count - 1))


def asked(path: Path, reads: ReadMode, drawn: list[np.ndarray]) -> np.ndarray:
    """(queries, 2): milliseconds and processor's milliseconds."""
    must_be_cold(path)
    query, times = np.ones(DIM, dtype=np.float32), np.empty((len(drawn), 2))
    with VectorFile.open(path, reads=reads) as file:
        time.sleep(0.05)
        for number, rows in enumerate(drawn):
            before = time.perf_counter(), time.thread_time()
            file.score(rows, query)
            times[number] = time.perf_counter() - before[0], time.thread_time() - before[1]
    return 1000 * times


if __name__ == "__main__":
    tyro.cli(main)
