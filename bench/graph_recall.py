"""How much of a scan's top 100 the graph over the same codes finds, on your own vectors.

python bench/graph_recall.py documents.npy queries.npy --books 16 --documents 40000
python bench/graph_recall.py documents.npy queries.npy --books 8 --additive    # the codes of `bidr train --vectors`
"""

from pathlib import Path

import numpy as np
import tyro
from tyro.conf import Positional

from bidr.codes.additive import fit_additive
from bidr.codes.fit import fit
from bidr.index import candidates
from bidr.index.faissfile import export_faiss


def main(
    vectors: Positional[Path],
    queries: Positional[Path],
    books: int = 16,
    documents: int = 40_000,
    additive: bool = False,
) -> None:
    """Rows of both files are made unit vectors; OPQ codes, or additive ones; efSearch 100, 200, 400, 1000."""
    corpus, asked = _unit(np.load(vectors)[:documents]), _unit(np.load(queries))
    if additive:
        fitted = fit_additive(corpus, books)
        codebooks, codes, asked = fitted.codebooks(), fitted.encode(corpus), fitted.adapt(asked)
    else:
        codebooks = fit(corpus, books)
        codes = codebooks.encode(corpus)
    candidates.SCANNED_PER_VISIT = 0  # a graph that falls back to scanning would show nothing
    wanted = candidates.Scan(export_faiss(codebooks, codes)).search(asked, 100)[1]
    graph = export_faiss(codebooks, codes, engine="hnsw")
    for width in (100, 200, 400, 1_000):
        found = candidates.Graph(graph, ef=width).search(asked, 100)[1]
        share = np.mean([len(np.intersect1d(a, b)) / 100 for a, b in zip(wanted, found, strict=True)])
        print(f"efSearch {width}: {share:.4f} of the scan's top 100", flush=True)


def _unit(rows: np.ndarray) -> np.ndarray:
    floats = rows.astype(np.float32)
    return floats / np.linalg.norm(floats, axis=1, keepdims=True)


if __name__ == "__main__":
    tyro.cli(main)
