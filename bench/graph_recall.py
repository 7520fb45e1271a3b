"""Recall of the graph engine against a scan of the same codes, on your own vectors, and its RAM.

python bench/graph_recall.py documents.npy queries.npy --books 16 --documents 40000
python bench/graph_recall.py documents.npy queries.npy --books 8 --additive    # the codes of `bidr train --vectors`
python bench/graph_recall.py INDEX queries.npy    # an existing graph: bidr build --engine hnsw
"""

import time
from pathlib import Path
from typing import Literal

import numpy as np
import tyro
from tyro.conf import Positional
from unit import unit

from bidr.index.builder.in_memory_engines import make_graph, make_scan
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
    """Normalize rows, code them (OPQ or additive) and measure ef_search 100, 200, 400 and 1,000.

    vectors: or the folder of an index.
    half: half of the queries; settings were chosen by the dev half.
    """
    vectors_of_queries = unit(np.load(queries))
    selected = np.array_split(np.random.default_rng(0).permutation(len(vectors_of_queries)), 2)[half == "test"]
    questions = vectors_of_queries[selected[:asked]]
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


def _measure(graph: GraphEngine, questions: np.ndarray, expected: np.ndarray) -> None:
    """Print recall and cost per ef_search; expected: positions that the scan finds."""
    graph.walk(graph.store.compute_tables(questions[:1])[0], 100)  # compiles
    for ef_search in (100, 200, 400, 1_000):
        shares, compared, spent = [], [], 0.0
        for table, best in zip(graph.store.compute_tables(questions), expected, strict=True):
            started = time.process_time()
            keys, comparisons, _ = graph.walk(table, ef_search)
            spent += time.process_time() - started
            shares.append(np.isin(best, sort_keys(keys, 100)[1]).mean())
            compared.append(comparisons)
        print(
            f"efSearch {ef_search}: {np.mean(shares):.4f} of the scan's top 100, {np.mean(compared):,.0f} compared, "
            f"{1000 * spent / len(questions):.2f} ms of CPU a query",
            flush=True,
        )


if __name__ == "__main__":
    tyro.cli(main)
