"""Attributes changed, counted and listed without a query, over a million documents.

python bench/attribute_changes.py --documents 1000000 --changed 10000 [--work FOLDER]

The vectors are random, and reading one raises an error. Times are wall and CPU seconds, on one thread.
"""

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from bidr.data.types import Document
from bidr.index.builder.build import build_index
from bidr.index.filters.filter_expression import parse_filter
from bidr.index.live.document_list import scroll_documents
from bidr.index.live.live_reader import LiveIndex
from bidr.index.live.writer import LiveWriter
from bidr.index.vectors import VectorFile
from bidr.pipeline.document_encoders import refuse_documents
from bidr.quantization.codebooks import Codebooks

DIM, BOOKS = 32, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--changed", type=int, default=10_000)
    parser.add_argument("--work", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.work) as folder:
        index = build(Path(folder) / "index", arguments.documents)
        measure(index, arguments.documents, arguments.changed)


def build(index: Path, count: int) -> Path:
    random = np.random.default_rng(0)
    rotation = np.linalg.qr(random.standard_normal((DIM, DIM)))[0].astype(np.float32)
    books = Codebooks(rotation, random.standard_normal((BOOKS, 16, DIM // BOOKS)).astype(np.float32))
    vectors = random.standard_normal((count, DIM), dtype=np.float32)
    build_index(
        index, codebooks=books, codes=books.encode(vectors), vectors=vectors, documents=describe(count), engine="scan"
    )
    return index


def describe(count: int) -> Iterator[Document]:
    for row in range(count):
        attributes = {"price": row % 997, "stock": row % 5, "lang": ("en", "de", "fr")[row % 3], "group": row // 1000}
        yield Document(f"doc-{row}", f"Title {row}", f"A short text of document {row}", attributes)


def measure(index: Path, count: int, changed: int) -> None:
    for name in ("read", "fetch", "score"):
        setattr(VectorFile, name, fail)
    reader = LiveIndex.open(index)
    with LiveWriter(index, refuse_documents) as writer:
        changes = {f"doc-{row}": {"price": row / 2} for row in range(0, count, count // changed)}
        time_step(f"{len(changes):,} changes by id", lambda: writer.set_attributes(changes))
        condition = {"group": {"lt": changed // 1000}}
        time_step(f"{changed:,} changes by filter", lambda: writer.set_attributes_where(condition, {"stock": None}))
        time_step("the reader follows", reader.refresh_now)
        view = reader.refresh_now()
        assert view.count_matching(parse_filter(condition | {"stock": None})) == changed
        for name, expression in (("changed", {"stock": None}), ("a third", {"lang": "en"})):
            parsed = parse_filter(expression)
            time_step(f"count, {name}", lambda parsed=parsed: view.count_matching(parsed))
            time_step(f"count again, {name}", lambda parsed=parsed: view.count_matching(parsed))
        time_step("schema", view.describe_attributes)
        before = read_anonymous_bytes()
        peak, listed = before, 0
        started, cpu = time.perf_counter(), time.process_time()
        for listed, _ in enumerate(scroll_documents(view, parse_filter({"lang": "en"})), start=1):
            if listed % 1_000 == 0:
                peak = max(peak, read_anonymous_bytes())
            if listed in (10_000, 100_000):
                print(f"  after {listed:,}: {(peak - before) / 1e6:.1f} MB more")
        print(f"scroll with a filter: {listed:,} documents, {time.perf_counter() - started:.1f} s,", end=" ")
        print(f"{time.process_time() - cpu:.1f} s of CPU, {(peak - before) / 1e6:.1f} MB more at the peak")
        time_step("deleted by filter", lambda: writer.delete_where({"group": 3}))
    print(f"peak of the process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:,.0f} MB")


def time_step(name: str, act: Callable[[], object]) -> None:
    started, cpu = time.perf_counter(), time.process_time()
    result = act()
    shown = f" ({result:,})" if isinstance(result, int) else ""
    print(f"{name}{shown}: {time.perf_counter() - started:.3f} s, {time.process_time() - cpu:.3f} s of CPU", flush=True)


def fail(*arguments: object) -> None:
    raise AssertionError("a vector was read")


def read_anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return 1024 * int(line.split()[1])
    raise SystemExit(f"no RssAnon in /proc/{os.getpid()}/status")


if __name__ == "__main__":
    main()
