"""A fifth of an index replaced by documents of another kind: recall against a fresh build, and whether drift is told.

    python bench/drift.py DOCUMENTS.npy OTHERS.npy --out OUT --engine lists

Both are vectors of the same model; they are made unit vectors. Codes (OPQ, 16 bytes) are fitted to --count of
DOCUMENTS, drawn by chance; a fifth of these is then replaced twice over, by other DOCUMENTS and by OTHERS. Recall is
measured then, once more when all is compacted into one segment, and of a fresh build. So few documents hnsw would scan:
here it walks its graph all the same.
"""

import argparse
import shutil
import time
from pathlib import Path

import numpy as np
from unit import unit

from bidr.data.types import Document
from bidr.index.builder.build import build_index
from bidr.index.engines.graph import engine as graph
from bidr.index.live.document_encoder import EncodedBatch
from bidr.index.live.live_reader import LiveIndex
from bidr.index.live.view import LiveView
from bidr.index.live.writer import LiveWriter
from bidr.quantization.code_quality import compute_reconstruction_errors
from bidr.quantization.pq_training import fit_pq
from bidr.search.searcher import Searcher
from bidr.search.types import QueryVectors

QUESTIONS, K, CANDIDATES, AT_ONCE = 500, 10, 200, 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("documents", type=Path)
    parser.add_argument("others", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=10_000, help="documents that the index is built from")
    parser.add_argument("--engine", choices=("scan", "lists", "hnsw"), default="scan")
    given = parser.parse_args()
    count, graph.SCANNED_PER_EF = given.count, 0
    every, others = (drawn(path, 2 * count) for path in (given.documents, given.others))
    fifth = min(count // 5, len(others), len(every) - count)
    vectors = np.array(every[:count], dtype=np.float32)
    books = fit_pq(vectors, 16, 256, seed=0)
    names = [f"d{row}" for row in range(count)]

    def coder(documents: list[Document], rows: np.ndarray) -> EncodedBatch:
        codes = books.encode(rows)
        return EncodedBatch(codes, rows, compute_reconstruction_errors(books, rows, codes))

    def build(folder: Path, rows: np.ndarray) -> None:
        build_index(folder, codebooks=books, codes=books.encode(rows), vectors=rows, ids=names, engine=given.engine)

    kinds = {"same kind": every[count : count + fifth], "other kind": others[:fifth]}
    for kind, strangers in kinds.items():
        shutil.rmtree(given.out, ignore_errors=True)
        build(given.out / "live", vectors)
        now, told = vectors.copy(), []
        now[:fifth] = strangers
        began = time.perf_counter()
        with LiveWriter(given.out / "live", coder, warn=told.append) as live:
            for start in range(0, fifth, AT_ONCE):
                few = [Document(name, "", "") for name in names[start : min(start + AT_ONCE, fifth)]]
                live.add(few, now[start : start + len(few)])
            seconds, drift = time.perf_counter() - began, live.drift
            found = recall(live.view, now, fifth)
            live.compact()
            compacted = recall(live.view, now, fifth)
        build(given.out / "fresh", now)
        fresh = recall(LiveIndex.open(given.out / "fresh").latest(), now, fifth)
        print(f"{given.engine}, {kind}: {fifth:,} of {count:,} replaced in {seconds:.1f} s; recall@{K}:")
        for name, *three in zip(ASKED, found, compacted, fresh, strict=True):
            print(f"  {name:<31} live {three[0]:.4f}  compacted {three[1]:.4f}  fresh build {three[2]:.4f}")
        print(f"  {drift}\n  {'warned' if told else 'no warning'}", flush=True)


def drawn(path: Path, most: int) -> np.ndarray:
    """Rows by chance: in a file documents of a kind often stand together, and the next ones are of another."""
    rows = np.load(path, mmap_mode="r")
    return unit(rows[np.random.default_rng(0).permutation(len(rows))[:most]])


ASKED = ("asked for documents that stayed", "asked for those that came")


def recall(view: LiveView, vectors: np.ndarray, came: int) -> list[float]:
    """How many of the exact top K come up, for questions near documents of either part."""
    random, found = np.random.default_rng(0), []
    for low, high in ((came, len(vectors)), (0, came)):
        near = vectors[random.choice(np.arange(low, high), QUESTIONS, replace=False)]
        queries = near + 0.5 * random.standard_normal(near.shape).astype(np.float32) / near.shape[1] ** 0.5
        ranking = Searcher(view).search_vectors(QueryVectors(queries, queries), K, candidates=CANDIDATES)
        exact = np.argpartition(-(queries @ vectors.T), K, axis=1)[:, :K]
        pairs = zip(ranking.rows, exact, strict=True)
        hits = sum(len(set(view.documents.ids(rows)) & {f"d{row}" for row in wanted}) for rows, wanted in pairs)
        found.append(hits / (K * QUESTIONS))
    return found


if __name__ == "__main__":
    main()
