"""Recall, RAM and cost of each engine on your own vectors, one query at a time.

python bench/engines.py documents.npy queries.npy --books 96 --codewords 16 --counts 20000 50000 100000 192990
python bench/engines.py million.npy queries.npy --books 16 --codewords 256 --counts 1000000 --engines scan lists
python bench/engines.py million.npy queries.npy --counts 400000 --engines scan lists --depth 500 700 1000 1500

Codes are OPQ codes, fitted on a sample. "of scan": the share of the scan's N candidates that the engine finds.
"R@100": the share of the exact top 100 among the N candidates. ms: mean CPU time of one query's candidates on one
thread. Lists are partitioned by codes; an index may partition by vectors (bench/blocks.py).
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import tyro
from tyro.conf import Positional
from unit import unit

from bidr.index.builder.in_memory_engines import make_graph, make_lists, make_scan
from bidr.index.candidate_source import Candidates
from bidr.quantization.exact_search import search_vectors
from bidr.quantization.pq_training import fit_pq

PROBES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
WIDTHS = (200, 500, 1_000, 2_000)


def main(
    vectors: Positional[Path],
    queries: Positional[Path],
    books: int = 96,
    codewords: int = 16,
    counts: tuple[int, ...] = (20_000, 50_000, 100_000, 192_990),
    depth: tuple[int, ...] = (1_000,),
    engines: tuple[str, ...] = ("scan", "lists", "hnsw", "faiss"),
    asked: int = 300,
) -> None:
    """Print a line for every engine and setting."""
    faiss.omp_set_num_threads(1)
    documents, questions = np.load(vectors, mmap_mode="r"), unit(np.load(queries)[:asked])
    random = np.random.default_rng(0)
    codebooks = fit_pq(unit(documents[np.sort(random.choice(len(documents), 40_000))]), books, codewords)
    for count in counts:
        rows = np.sort(random.permutation(len(documents))[:count])
        corpus = unit(documents[rows])
        codes = codebooks.encode(corpus)
        exact = search_vectors(questions, corpus, 100).rows
        del corpus
        scan = make_scan(codebooks, codes)
        scanned = {candidates: scan.search(questions, candidates)[1] for candidates in depth}
        for name in engines:
            for label, k, found, candidates, size in _measure(name, codebooks, codes, questions, depth):
                recall, of_scan = _measure_recall(exact, found), _measure_recall(scanned[k], found)
                figures = f"{size:6.1f} bytes  {candidates:6.3f} ms  of scan {of_scan:.4f}  R@100 {recall:.4f}"
                print(f"{count:>9,} {label:<12} N {k:<6,} {figures}", flush=True)


def _measure(
    name: str, codebooks: Any, codes: np.ndarray, questions: np.ndarray, depth: tuple[int, ...]
) -> Iterator[tuple[str, int, np.ndarray, float, float]]:
    if name == "faiss":
        yield from _measure_faiss(codebooks, codes, questions, depth)
        return
    settings: tuple[tuple[str, int | None], ...] = (("", None),)
    order = np.arange(len(codes))
    engine: Candidates
    if name == "scan":
        engine = make_scan(codebooks, codes)
    elif name == "lists":
        engine, order = make_lists(codebooks, codes)
        settings = tuple((f" {share:.0%}", max(1, round(share * engine.list_count))) for share in PROBES)
    else:
        engine, order = make_graph(codebooks, codes)
        settings = tuple((f" ef {width}", width) for width in WIDTHS)
    size = sum(engine.ram_bytes.values()) / len(codes)
    for label, ef in settings:
        for k in depth:
            rows, milliseconds = _search_one_by_one(
                lambda query, ef=ef, k=k: engine.search(query, k, ef=ef)[1], questions
            )
            yield f"{name}{label}", k, order[rows], milliseconds, size


def _measure_faiss(
    codebooks: Any, codes: np.ndarray, questions: np.ndarray, depth: int
) -> Iterator[tuple[str, np.ndarray, float, float]]:
    """Scan the same codes with Faiss: IndexPQFastScan for 4-bit codes, IndexPQ for 8-bit; queries are rotated."""
    rotated = codebooks.rotate(questions)
    dim = rotated.shape[1]
    kind = faiss.IndexPQFastScan if codebooks.bits == 4 else faiss.IndexPQ
    index = kind(dim, codebooks.books, codebooks.bits, faiss.METRIC_INNER_PRODUCT)
    faiss.copy_array_to_vector(np.ascontiguousarray(codebooks.centroids).ravel(), index.pq.centroids)
    index.is_trained = True
    for start in range(0, len(codes), 16_384):
        index.add(codebooks.decode(codes[start : start + 16_384]))
    for k in depth:
        rows, milliseconds = _search_one_by_one(lambda query, k=k: index.search(query, k)[1], rotated)
        yield "faiss scan", k, rows, milliseconds, codebooks.bytes_per_doc


def _search_one_by_one(search: Any, questions: np.ndarray) -> tuple[np.ndarray, float]:
    search(questions[:1])
    started = time.process_time()
    rows = [search(questions[number : number + 1])[0] for number in range(len(questions))]
    return np.stack(rows), 1000 * (time.process_time() - started) / len(questions)


def _measure_recall(expected: np.ndarray, rows: np.ndarray) -> float:
    return float(np.mean([np.isin(a, b).mean() for a, b in zip(expected, rows, strict=True)]))


if __name__ == "__main__":
    tyro.cli(main)
