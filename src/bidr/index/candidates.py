"""Candidate engines: which documents a query should look at, from the codes in RAM alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from bidr.codes.codebooks import Codebooks, Floats
from bidr.errors import ConfigError, IndexFolderError
from bidr.index.faissfile import code_storage, faiss_module, import_codebooks, read_faiss
from bidr.index.folder import REBUILD

Rows = npt.NDArray[np.int64]

# The numbers below were measured on 193,000 MiniLM articles with 16-byte codes, 300 queries, one query at a time.
# A scan takes 0.4, 1.2 and 2.2 ms at 20,000, 50,000 and 193,000 documents, a graph that finds 99 % of the same 200
# candidates 1.2 to 1.4 ms. Up to here the graph saves about 1 ms and costs 145 bytes a document beside 16 of code.
AUTO_SCAN_DOCUMENTS = 200_000
# Visited documents for one candidate: a graph found 91, 96 and 99 % of 200 candidates at 1, 2 and 5. Its time grows
# faster than the number visited, so beyond WIDE it is only 2 (98 % of 1,000 candidates).
EF_PER_CANDIDATE, EF_PER_CANDIDATE_WIDE, NARROW, WIDE = 5, 2, 200, 1_000
# Visiting one document in a graph takes as long as scanning this many: 110 to 180 for 200 to 2,000 visited.
SCANNED_PER_VISIT = 130
FAISS_TYPES = {"scan": "IndexPQ", "hnsw": "IndexHNSWPQ"}
ENGINES = ("auto", "scan", "hnsw")


class Candidates(Protocol):
    """Finds documents by inner product of the query with their codes."""

    @property
    def name(self) -> str: ...

    @property
    def count(self) -> int: ...

    @property
    def ram_bytes(self) -> dict[str, int]:
        """Bytes held in RAM for the documents, by what they are."""

    def search(self, queries: Floats, k: int, ef: int | None = None) -> tuple[Floats, Rows]:
        """Scores and rows of k documents a query, best first: (queries, k) each. `k` is at most `count`.

        ef: how widely a graph is searched; a scan does not use it.
        """


class Scan:
    """Compares the query with the code of every document: misses nothing."""

    name = "scan"

    def __init__(self, index: Any) -> None:
        self.index = index
        self._storage = code_storage(_inner(index))

    @property
    def count(self) -> int:
        return int(self.index.ntotal)

    @property
    def ram_bytes(self) -> dict[str, int]:
        return {"codes": int(self._storage.codes.size())}

    def search(self, queries: Floats, k: int, ef: int | None = None) -> tuple[Floats, Rows]:
        with _threads_for(queries):
            return _ordered(*self.index.search(_as_queries(queries), k))


class Graph:
    """Walks a graph (HNSW) over the codes: faster than a scan of many documents, and may miss a few.

    Where a scan is the faster of the two, because many candidates of few documents are wanted, it scans.
    """

    name = "hnsw"

    def __init__(self, index: Any, ef: int | None = None) -> None:
        self.index, self.ef = index, ef
        self._graph = _inner(index)
        self._storage = code_storage(self._graph)

    @property
    def count(self) -> int:
        return int(self.index.ntotal)

    @property
    def ram_bytes(self) -> dict[str, int]:
        links = self._graph.hnsw
        return {
            "codes": int(self._storage.codes.size()),
            "links": 4 * int(links.neighbors.size()) + 8 * int(links.offsets.size()) + 4 * int(links.levels.size()),
        }

    def search(self, queries: Floats, k: int, ef: int | None = None) -> tuple[Floats, Rows]:
        faiss = faiss_module()
        queries = _as_queries(queries)
        width = max(ef or self.ef or default_width(k), k)
        if self.count < SCANNED_PER_VISIT * width:
            return self._scan(queries, k)
        visits = faiss.SearchParametersHNSW(efSearch=width)
        with _threads_for(queries):
            scores, rows = self.index.search(queries, k, params=faiss.SearchParametersPreTransform(index_params=visits))
        # Rows of -1: the part of the graph that the walk could reach was smaller than k.
        if len(short := np.flatnonzero(rows[:, -1] < 0)):
            scores[short], rows[short] = self._scan(queries[short], k)
        return _ordered(scores, rows)

    def _scan(self, queries: Floats, k: int) -> tuple[Floats, Rows]:
        with _threads_for(queries):
            return _ordered(*self._storage.search(self.index.chain.at(0).apply(queries), k))


def default_width(k: int) -> int:
    """How many documents a graph visits (efSearch) to find k of them."""
    return max(NARROW, min(EF_PER_CANDIDATE * k, max(WIDE, EF_PER_CANDIDATE_WIDE * k)))


def choose_engine(engine: str, count: int) -> str:
    """The engine that "auto" stands for, or the one that was named."""
    if engine not in ENGINES:
        raise ConfigError(f"engine: given {engine!r}, expected one of {', '.join(ENGINES)}")
    if engine == "auto":
        return "scan" if count <= AUTO_SCAN_DOCUMENTS else "hnsw"
    return engine


def load_candidates(path: Path, engine: str, ef: int | None = None) -> Scan | Graph:
    """An engine from a Faiss file of which the checksum was found right."""
    index = read_faiss(path)
    found = type(_inner(index)).__name__
    if found != FAISS_TYPES.get(engine):
        raise IndexFolderError(f"{path}: a Faiss {found}, but the manifest names the engine {engine!r}; {REBUILD}")
    return Scan(index) if engine == "scan" else Graph(index, ef)


def codebooks_of(engine: Scan | Graph) -> Codebooks:
    """Rotation and codewords as the Faiss file holds them."""
    return import_codebooks(engine.index)[0]


def _inner(index: Any) -> Any:
    return faiss_module().downcast_index(index.index)


@contextmanager
def _threads_for(queries: Floats) -> Iterator[None]:
    """Search a single query on the calling thread alone.

    Faiss divides queries, not a query, among threads; those without work are waited for all the same, and spin
    afterwards: on a busy machine that made 8 ms of 2. The setting belongs to the calling thread and affects no other.
    """
    faiss = faiss_module()
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(min(threads, max(1, len(queries))))
    try:
        yield
    finally:
        faiss.omp_set_num_threads(threads)


def _ordered(scores: Floats, rows: Rows) -> tuple[Floats, Rows]:
    """Equal scores by row: documents with the same code come out of Faiss in an order of its own."""
    order = np.lexsort((rows, -scores), axis=1)
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1)


def _as_queries(queries: Floats) -> Floats:
    return np.ascontiguousarray(queries, dtype=np.float32)
