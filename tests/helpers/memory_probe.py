"""Builds and searches an index in a process of its own and prints what memory that took; run by test_memory.py.

python memory_probe.py build FOLDER COUNT ENGINE    peak of the whole process, bytes
python memory_probe.py search FOLDER                anonymous bytes after searching; bytes a document as computed
"""

import ctypes
import gc
import sys
from pathlib import Path

import numpy as np

from bidr.index.builder.build import build_index
from bidr.index.reader import IndexReader
from bidr.search.searcher import Searcher
from bidr.search.types import QueryVectors

DIM, BOOKS, BLOCK = 384, 16, 10_000


def memory(field: str, source: str) -> int:
    for line in Path(f"/proc/self/{source}").read_text().splitlines():
        if line.startswith(field):
            return 1024 * int(line.split()[1])
    raise SystemExit(f"no {field} in {source}")


def settled() -> int:
    """Return anonymous bytes in use: what was freed goes back to the system first."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return memory("Anonymous", "smaps_rollup")


def build(folder: Path, count: int, engine: str) -> None:
    """Vectors come from a memmap that is written block by block, so that only the build itself is measured."""
    from sample_index import clustered, fitted

    codebooks = fitted(clustered(5_000, DIM), BOOKS, rounds=3)
    vectors = np.lib.format.open_memmap(folder.with_suffix(".npy"), "w+", np.float16, (count, DIM))
    codes = np.empty((count, BOOKS), dtype=np.uint8)
    for start in range(0, count, BLOCK):
        block = clustered(BLOCK, DIM, seed=start)
        vectors[start : start + BLOCK] = block
        codes[start : start + BLOCK] = codebooks.encode(block)
    vectors.flush()
    del vectors
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak that making the vectors left
    stored = np.load(folder.with_suffix(".npy"), mmap_mode="r")
    build_index(folder, codebooks=codebooks, codes=codes, vectors=stored, engine=engine, ef_construction=40)
    print(memory("VmHWM", "status"))


def search(folder: Path) -> None:
    with IndexReader.open(folder, ef=50) as reader:  # so narrow that the graph is walked at either size
        searcher = Searcher(reader, candidates=50)
        queries = np.random.default_rng(0).standard_normal((1, DIM)).astype(np.float32)
        for _ in range(3):
            searcher.search_vectors(QueryVectors(queries, queries))
        print(settled(), reader.ram_bytes_per_doc)


if __name__ == "__main__":
    if sys.argv[1] == "build":
        build(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    else:
        search(Path(sys.argv[2]))
