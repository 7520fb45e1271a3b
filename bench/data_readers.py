#!/usr/bin/env python3
"""Measure time and memory of every reader over the same rows.

    python bench/data_readers.py WORK [--rows 100000] [--dim 128] [--files 10000] [--only KIND ...]

WORK is a folder for the made files. Each reader runs in a process of its own, which reads all documents once, as a
build does to check them (ids sorted externally), and then all vectors of the vector column into a mapped file.
Printed: CPU seconds of both, and the growth of the process's anonymous memory above what it had before `bidr.load`,
with the frame or table in it.
"""

import argparse
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

WORDS = 60
TABLES = ("parquet", "csv", "json lines")
KINDS = ("pandas", "polars", "pyarrow", "list of dicts", *TABLES, "csv by pyarrow", "markdown")


def make_rows(count: int, dim: int) -> dict[str, Any]:
    """Make the columns of a table: id, title, text, three attributes and a vector."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghij", k=draw.randint(2, 9))) for _ in range(5_000)]
    vectors = np.random.default_rng(0).normal(size=(count, dim)).astype(np.float32)
    return {
        "id": [f"doc{row}" for row in range(count)],
        "title": [" ".join(draw.choices(words, k=4)) for _ in range(count)],
        "text": [" ".join(draw.choices(words, k=WORDS)) for _ in range(count)],
        "year": [1990 + row % 30 for row in range(count)],
        "price": [row % 1_000 / 8 for row in range(count)],
        "lang": [("en", "de", "fr")[row % 3] for row in range(count)],
        "embedding": list(vectors),
    }


def make_files(work: Path, rows: int, dim: int, files: int) -> None:
    """Write the table in every format, and a folder of Markdown files."""
    import pandas as pd
    import pyarrow as pa
    from pyarrow import parquet

    columns = make_rows(rows, dim)
    parquet.write_table(pa.table(columns), work / "table.parquet")
    texts = [json.dumps([round(float(number), 5) for number in row]) for row in columns["embedding"]]
    pd.DataFrame(columns | {"embedding": texts}).to_csv(work / "table.csv", index=False)
    names = list(columns)
    with (work / "table.jsonl").open("w", encoding="utf-8") as out:
        for *cells, vector in zip(*columns.values(), strict=True):
            record = dict(zip(names, [*cells, [round(float(number), 5) for number in vector]], strict=True))
            out.write(json.dumps(record) + "\n")
    for number in range(files):
        folder = work / "markdown" / f"{number % 100}"
        folder.mkdir(parents=True, exist_ok=True)
        parts = [f"# {columns['title'][number % rows]}", *columns["text"][number % rows : number % rows + 4]]
        parts[3:3] = ["## Second part", "- one\n- two\n\n```\n# code\n```"]
        (folder / f"{number}.md").write_text("\n\n".join(parts), encoding="utf-8")


def open_source(kind: str, work: Path) -> Any:
    """Return what `bidr.load` is given."""
    if kind == "pandas":
        import pandas as pd

        return pd.read_parquet(work / "table.parquet")
    if kind == "polars":
        import polars as pl

        return pl.read_parquet(work / "table.parquet")
    if kind in ("pyarrow", "list of dicts"):
        from pyarrow import parquet

        table = parquet.read_table(work / "table.parquet")
        return table if kind == "pyarrow" else table.drop_columns("embedding").to_pylist()
    return work / {"parquet": "table.parquet", "csv": "table.csv", "json lines": "table.jsonl"}.get(kind, "markdown")


def read_anonymous_bytes() -> int:
    """Return the anonymous memory of this process."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


class PeakMemory(threading.Thread):
    """Samples the anonymous memory until stopped."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.start_bytes = self.peak = read_anonymous_bytes()
        self.is_stopped = threading.Event()

    def run(self) -> None:
        while not self.is_stopped.wait(0.02):
            self.peak = max(self.peak, read_anonymous_bytes())

    def finish(self) -> int:
        """Stop, and return the growth in bytes."""
        self.is_stopped.set()
        self.join()
        return max(self.peak, read_anonymous_bytes()) - self.start_bytes


def measure(step: Callable[[], Any]) -> tuple[float, int]:
    """Return CPU seconds and growth of memory of a step."""
    memory, start = PeakMemory(), time.process_time()
    memory.start()
    step()
    return time.process_time() - start, memory.finish()


def measure_kind(kind: str, work: Path) -> dict[str, Any]:
    """Measure one reader in this process."""
    from bidr.data.dataset import check_corpus, load
    from bidr.data.vector_source import collect_vectors
    from bidr.utils.progress import hide_progress

    if kind == "csv by pyarrow":
        return {"read": measure(lambda: read_csv_by_pyarrow(work / "table.csv"))}
    source = open_source(kind, work)
    result: dict[str, Any] = {}
    with hide_progress():
        load([{"text": "x"}]).corpus.count()  # imports
        dataset: Any = None

        def read() -> None:
            nonlocal dataset
            dataset = load(source)
            check_corpus(dataset, work)

        result["read"] = measure(read)
        result["documents"] = dataset.corpus.count()
        if dataset.read_vectors is not None:
            result["vectors"] = measure(lambda: collect_vectors(dataset, work))
    return result


def read_csv_by_pyarrow(path: Path) -> None:
    """Read the same columns by pyarrow's streaming reader, as rows: what the standard library is compared with."""
    from pyarrow import csv

    options = csv.ConvertOptions(include_columns=["id", "title", "text", "year", "price", "lang"])
    with csv.open_csv(path, convert_options=options) as reader:
        for batch in reader:
            for _ in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                pass


def main() -> None:
    """Make the files, and measure each reader in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--only", nargs="*", default=KINDS)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure_kind(options.measure, options.work)))
        return
    options.work.mkdir(parents=True, exist_ok=True)
    if not (options.work / "markdown").exists():
        make_files(options.work, options.rows, options.dim, options.files)
    print(f"{'source':<16}{'documents':>10}{'read, CPU s':>13}{'MB':>7}{'vectors, CPU s':>16}{'MB':>7}")
    for kind in options.only:
        command = [sys.executable, __file__, str(options.work), "--measure", kind]
        result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        (seconds, grown), vectors = result["read"], result.get("vectors")
        line = f"{kind:<16}{result.get('documents', ''):>10}{seconds:>13.1f}{grown / 1e6:>7.0f}"
        print(line + (f"{vectors[0]:>16.1f}{vectors[1] / 1e6:>7.0f}" if vectors else ""), flush=True)


if __name__ == "__main__":
    main()
