"""How much of a scan's top 100 the graph over the same codes finds, on your own vectors, and what it takes in RAM.

python bench/graph_recall.py documents.npy queries.npy --books 16 --documents 40000
python bench/graph_recall.py documents.npy queries.npy --books 8 --additive    # the codes of `bidr train --vectors`
python bench/graph_recall.py INDEX queries.npy    # a graph that is there: bidr build --engine hnsw
"""

import time
from pathlib import Path
from typing import Literal

import numpy as np
import tyro
from tyro.conf import Positional
from unit import unit

from bidr.index.builder.in_memory import make_graph, make_scan
from bidr.index.engines.graph.engine import GraphEngine
from bidr.index.engines.topk import sort_keys
from bidr.index.reader import IndexReader
from bidr.quantization.additive_quantizer import fit_additive
from bidr.quantization.pq_training import fit_pq


def main(
    vectors: Positional[Path],
    queries: Positional[Path],
    books: int = 16,
    documents: int = 40_000,
    additive: bool = False,
    asked: int = 1_000,
    half: Literal["dev", "test"] = "test",
) -> None:
    """Rows of both files are made unit vectors; OPQ codes, or additive ones; efSearch 100, 200, 400, 1000.

    vectors: or the folder of an index.

    half: questions are drawn at random; settings were chosen by those of the one half, figures are of the other.
    """
    everyone = unit(np.load(queries))
    drawn = np.array_split(np.random.default_rng(0).permutation(len(everyone)), 2)[half == "test"]
    questions = everyone[drawn[:asked]]
    if vectors.is_dir():
        with IndexReader.open(vectors) as reader:
            graph = reader.candidates
            if not isinstance(graph, GraphEngine):
                raise SystemExit(f"{vectors} has no graph: bidr build --engine hnsw")
            print(f"{sum(graph.ram_bytes.values()) / graph.count:.1f} bytes a document")
            _measure(graph, questions, make_scan(reader.codebooks, graph.unpack_codes()).search(questions, 100)[1])
        return
    corpus = unit(np.load(vectors)[:documents])
    if additive:
        fitted = fit_additive(corpus, books)
        codebooks, codes, questions = fitted.to_codebooks(), fitted.encode(corpus), fitted.adapt(questions)
    else:
        codebooks = fit_pq(corpus, books)
        codes = codebooks.encode(corpus)
    started = time.process_time()
    graph, order = make_graph(codebooks, codes)
    size = sum(graph.ram_bytes.values()) / len(codes)
    print(f"{size:.1f} bytes a document, built in {time.process_time() - started:.0f} s of CPU", flush=True)
    _measure(graph, questions, make_scan(codebooks, codes[order]).search(questions, 100)[1])


def _measure(graph: GraphEngine, questions: np.ndarray, wanted: np.ndarray) -> None:
    """wanted: places that the scan finds."""
    graph.walk(graph.store.compute_tables(questions[:1])[0], 100)  # compiles
    for width in (100, 200, 400, 1_000):
        shares, compared, spent = [], [], 0.0
        for table, best in zip(graph.store.compute_tables(questions), wanted, strict=True):
            started = time.process_time()
            met, each, _ = graph.walk(table, width)
            spent += time.process_time() - started
            shares.append(np.isin(best, sort_keys(met, 100)[1]).mean())
            compared.append(each)
        print(
            f"efSearch {width}: {np.mean(shares):.4f} of the scan's top 100, {np.mean(compared):,.0f} compared, "
            f"{1000 * spent / len(questions):.2f} ms of CPU a query",
            flush=True,
        )


if __name__ == "__main__":
    tyro.cli(main)
