"""How much of a scan's top 100 the graph over the same codes finds, on your own vectors, and what it takes in RAM.

python bench/graph_recall.py documents.npy queries.npy --books 16 --documents 40000
python bench/graph_recall.py documents.npy queries.npy --books 8 --additive    # the codes of `bidr train --vectors`
"""

import time
from pathlib import Path

import numpy as np
import tyro
from tyro.conf import Positional

from bidr.codes.additive import fit_additive
from bidr.codes.fit import fit
from bidr.index.engines import graph as graph_engine
from bidr.index.engines.make import make_graph, make_scan


def main(
    vectors: Positional[Path],
    queries: Positional[Path],
    books: int = 16,
    documents: int = 40_000,
    additive: bool = False,
    half_links: int = graph_engine.HALF_LINKS,
) -> None:
    """Rows of both files are made unit vectors; OPQ codes, or additive ones; efSearch 100, 200, 400, 1000."""
    corpus, asked = _unit(np.load(vectors)[:documents]), _unit(np.load(queries))[:500]
    if additive:
        fitted = fit_additive(corpus, books)
        codebooks, codes, asked = fitted.codebooks(), fitted.encode(corpus), fitted.adapt(asked)
    else:
        codebooks = fit(corpus, books)
        codes = codebooks.encode(corpus)
    graph_engine.SCANNED_PER_VISIT = 0  # a graph that falls back to scanning would show nothing
    graph_engine.HALF_LINKS = half_links
    wanted = make_scan(codebooks, codes).search(asked, 100)[1]
    started = time.process_time()
    graph = make_graph(codebooks, codes)
    size = sum(graph.ram_bytes.values()) / len(codes)
    print(f"{size:.1f} bytes a document, built in {time.process_time() - started:.0f} s of CPU", flush=True)
    graph.threads = 1
    for width in (100, 200, 400, 1_000):
        started = time.process_time()
        found = graph.search(asked, 100, ef=width)[1]
        each = 1000 * (time.process_time() - started) / len(asked)
        share = np.mean([len(np.intersect1d(a, b)) / 100 for a, b in zip(wanted, found, strict=True)])
        print(f"efSearch {width}: {share:.4f} of the scan's top 100, {each:.2f} ms of CPU a query", flush=True)


def _unit(rows: np.ndarray) -> np.ndarray:
    floats = rows.astype(np.float32)
    return floats / np.linalg.norm(floats, axis=1, keepdims=True)


if __name__ == "__main__":
    tyro.cli(main)
