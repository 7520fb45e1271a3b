"""How fast one core builds each part of an index: the rates that `bidr plan` multiplies with (src/bidr/index/times.py).

OMP_NUM_THREADS=1 python bench/build_rates.py            # made vectors; a few minutes, CPU time of one thread
OMP_NUM_THREADS=1 python bench/build_rates.py --documents 60000 --dim 768      # do the rates hold at another size?
OMP_NUM_THREADS=1 python bench/build_rates.py --documents 30000 --whole        # whole builds beside what is planned
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from bidr.codes.codebooks import Codebooks
from bidr.codes.fit import fit
from bidr.index.build import build_index
from bidr.index.documents import write_documents
from bidr.index.engines.arrange import arranged
from bidr.index.engines.clusters import clusters
from bidr.index.engines.graph import build_links
from bidr.index.sizes import Shape
from bidr.index.times import build_seconds, clustering_flops, coding_flops, linking_flops
from bidr.index.vectors import VectorWriter, blocks
from bidr.text.records import Document


def main(
    documents: int = 100_000, dim: int = 384, code_bytes: int = 16, text: int = 1_000, whole: bool = False
) -> None:
    """Prints the rates. `text`: bytes of a document's text."""
    random = np.random.default_rng(0)
    centres = random.standard_normal((500, dim), dtype=np.float32)
    vectors = centres[random.integers(0, 500, documents)] + random.standard_normal((documents, dim), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    if whole:
        _whole(vectors, code_bytes, text)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write(folder, vectors[:8])  # compiles
        print(f"vectors: {documents * 2 * dim / _took(_write, folder, vectors)[0] / 1e6:.0f} MB/s")
        each = [Document(f"doc-{row}", "", "x" * text) for row in range(documents)]
        print(f"names and text: {documents / _took(_names, folder, each)[0]:,.0f} documents/s")
    for bits in (8, 4):
        _codes(vectors, bits, code_bytes)


def _codes(vectors: np.ndarray, bits: int, code_bytes: int) -> None:
    count, dim = vectors.shape
    spent, codebooks = _took(fit, vectors, code_bytes * 8 // bits, 1 << bits)
    print(f"{bits}-bit fit: {spent:.0f} s")
    spent, codes = _took(codebooks.encode, vectors)
    print(f"{bits}-bit coding: {coding_flops(count, dim, bits) / spent / 1e9:.1f} GFLOP/s")
    spent, found = _took(clusters, codebooks, codes)
    lists = len(found.centroids)
    print(f"{bits}-bit clustering: {clustering_flops(count, dim, lists) / spent / 1e9:.1f} GFLOP/s")
    placed = codes[np.concatenate(list(arranged(codebooks, codes, found)))]
    spent, _ = _took(build_links, codebooks, placed)
    print(f"{bits}-bit graph: {linking_flops(count, dim) / spent / 1e9:.1f} GFLOP/s")


def _whole(vectors: np.ndarray, code_bytes: int, text: int) -> None:
    """Coding and building, 8-bit codes, with each engine; the first build also compiles."""
    codebooks = fit(vectors, code_bytes)
    for engine in ("scan", "scan", "lists", "hnsw"):
        shape = Shape(len(vectors), vectors.shape[1], engine, 8, code_bytes)
        planned = build_seconds(shape, True, 1)
        with tempfile.TemporaryDirectory() as folder:
            spent, _ = _took(_build, folder, vectors, codebooks, engine, text)
        print(f"{engine}: {spent:.1f} s of CPU time, planned {sum(planned.values()) - planned['codebooks']:.1f}")


def _build(folder: str, vectors: np.ndarray, codebooks: Codebooks, engine: str, text: int) -> None:
    each = (Document(f"doc-{row}", "", "x" * text) for row in range(len(vectors)))
    codes = codebooks.encode(vectors)
    build_index(folder, codebooks=codebooks, codes=codes, vectors=vectors, documents=each, engine=engine)


def _write(folder: Path, vectors: np.ndarray) -> None:
    with VectorWriter(lambda name: (folder / name).open("wb"), *vectors.shape) as out:
        for block in blocks(vectors):
            out.write(block)


def _names(folder: Path, documents: list[Document]) -> None:
    write_documents(lambda name: (folder / name).open("wb"), folder, documents, len(documents), lambda rows: None)


def _took(work: Callable[..., Any], *given: Any) -> tuple[float, Any]:
    started = time.process_time()
    made = work(*given)
    return time.process_time() - started, made


if __name__ == "__main__":
    tyro.cli(main)
