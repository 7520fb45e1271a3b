"""Makes more vectors of a corpus, as hard to search as its own, and says how hard they are.

python bench/synthetic_million.py documents.npy million.npy --count 1000000
python bench/synthetic_million.py documents.npy parts/ --count 40000000 --part-rows 1000000
python bench/synthetic_million.py documents.npy --check-hardness --queries queries.npy

A new vector is a document moved by the difference of two documents near it: normalise(v_i + a * (v_j - v_k)), with i
drawn at random and j, k from the same of some thousand clusters. The documents themselves come first. A larger
`a` spreads the new ones further: with --check-hardness, as many new vectors as there are documents are compared with
them, by the similarity to the nearest other, the scores of the queries' answers, and the recall of the same codes.

Each vector depends on its row number alone, so any number of them is written in constant memory. A folder gets one file
for each part; a part whose file or `.done` mark exists is not made again, so parts may be removed once they are used.
"""

from pathlib import Path
from typing import Any

import faiss
import numpy as np
import tyro
import xxhash
from tyro.conf import Positional
from unit import unit

from bidr.data.vector_source import normalize_l2
from bidr.quantization.exact_search import search_codes, search_vectors
from bidr.quantization.pq_training import fit_pq

NEAR = 64
AT_ONCE = 50_000
KMEANS_ROUNDS = 5


class SyntheticVectors:
    """Vectors as an array-like object that computes the rows it is asked for.

    documents: unit vectors.
    clusters:  number of the cluster of each document; None: they are found.
    include_documents: the documents are the first rows.
    """

    ndim = 2
    dtype = np.dtype(np.float16)

    def __init__(
        self,
        documents: np.ndarray,
        count: int,
        amount: float = 0.5,
        seed: int = 0,
        *,
        clusters: np.ndarray | None = None,
        include_documents: bool = True,
    ) -> None:
        self.documents, self.shape, self.amount, self.seed = documents, (count, documents.shape[1]), amount, seed
        self.clusters = find_clusters(documents) if clusters is None else clusters
        self._first_made = min(count, len(documents)) if include_documents else 0
        self._order, self._sizes = np.argsort(self.clusters, kind="stable"), np.bincount(self.clusters)
        self._starts = np.cumsum(self._sizes) - self._sizes
        # The builder's fingerprint of an input that is no file.
        content = xxhash.xxh3_128_hexdigest(np.ascontiguousarray(documents))
        self.stamp = f"synthetic {self.shape} {amount} {seed} {include_documents} {content}"

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        numbers = np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else np.asarray(rows)
        vectors = np.empty((len(numbers), self.shape[1]), dtype=np.float16)
        for start in range(0, len(numbers), AT_ONCE):
            vectors[start : start + AT_ONCE] = self._make(numbers[start : start + AT_ONCE])
        return vectors

    def _make(self, rows: np.ndarray) -> np.ndarray:
        bases = np.where(rows < self._first_made, rows, self._draw(rows, 0, len(self.documents)))
        cluster = self.clusters[bases]
        near, other = (
            self._order[self._starts[cluster] + self._draw(rows, use, self._sizes[cluster])] for use in (1, 2)
        )
        moved = self.documents[bases] + np.float32(self.amount) * (self.documents[near] - self.documents[other])
        return np.where((rows < self._first_made)[:, None], self.documents[bases], normalize_l2(moved))

    def _draw(self, rows: np.ndarray, use: int, below: Any) -> np.ndarray:
        """Draw a number for each row, from a hash of row and use (SplitMix64)."""
        with np.errstate(over="ignore"):
            bits = (rows.astype(np.uint64) * np.uint64(4) + np.uint64(use + 1)) * np.uint64(0x9E3779B97F4A7C15)
            bits += np.uint64(self.seed) * np.uint64(0xD1B54A32D192ED03)
            bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return ((bits ^ (bits >> np.uint64(31))) % np.asarray(below, dtype=np.uint64)).astype(np.int64)


def find_clusters(documents: np.ndarray) -> np.ndarray:
    """Cluster documents, some 64 in each."""
    count = max(1, len(documents) // NEAR)
    means = faiss.Kmeans(documents.shape[1], count, niter=KMEANS_ROUNDS, seed=1, max_points_per_centroid=NEAR)
    means.train(documents)
    return means.index.search(documents, 1)[1][:, 0]


def write_file(vectors: SyntheticVectors, path: Path, start: int = 0, stop: int | None = None) -> None:
    """Write a range of rows as .npy, under another name until it is complete."""
    stop = len(vectors) if stop is None else stop
    temporary = path.with_name(f".{path.name}.new")
    rows = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.float16, shape=(stop - start, vectors.shape[1]))
    for first in range(start, stop, AT_ONCE):
        block = vectors[first : min(first + AT_ONCE, stop)]
        rows[first - start : first - start + len(block)] = block
    rows.flush()
    temporary.replace(path)


def write_parts(vectors: SyntheticVectors, folder: Path, part_rows: int) -> None:
    """Write the missing parts of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for start in range(0, len(vectors), part_rows):
        path = folder / f"part-{start // part_rows:05}.npy"
        if not path.exists() and not path.with_suffix(".done").exists():
            write_file(vectors, path, start, min(start + part_rows, len(vectors)))


def check(documents: np.ndarray, queries: np.ndarray, amounts: tuple[float, ...]) -> None:
    """Documents beside as many made ones."""
    codebooks, clusters = fit_pq(documents, 48, 16), find_clusters(documents)
    for amount in (None, *amounts):
        own = documents
        if amount is not None:
            own = unit(
                SyntheticVectors(documents, len(documents), amount, clusters=clusters, include_documents=False)[:]
            )
        sample = np.random.default_rng(2).integers(0, len(own), 500)
        nearest = search_vectors(own[sample], own, 11).scores
        exact = search_vectors(queries, own, 100)
        found = search_codes(queries, codebooks, codebooks.encode(own), 1_000).rows
        shares = [
            np.mean([len(np.intersect1d(a, b[:depth])) / 100 for a, b in zip(exact.rows, found, strict=True)])
            for depth in (200, 1_000)
        ]
        print(
            f"{'documents' if amount is None else f'made, {amount}'}: nearest other {nearest[:, 1].mean():.3f}, "
            f"10th {nearest[:, 10].mean():.3f}; queries' 1st {exact.scores[:, 0].mean():.3f}, "
            f"100th {exact.scores[:, -1].mean():.3f}; R@100 of 24 bytes at 200 {shares[0]:.3f}, 1000 {shares[1]:.3f}",
            flush=True,
        )


def main(
    documents: Positional[Path],
    out: Positional[Path | None] = None,
    count: int = 1_000_000,
    amount: float = 0.5,
    queries: Path | None = None,
    part_rows: int = 0,
    check_hardness: bool = False,
) -> None:
    """Write made vectors as fp16 (with --part-rows: to a folder of parts), or compare them with the documents."""
    corpus = unit(np.load(documents))
    if out is not None and part_rows:
        write_parts(SyntheticVectors(corpus, count, amount), out, part_rows)
    elif out is not None:
        write_file(SyntheticVectors(corpus, count, amount), out)
    if check_hardness and queries is not None:
        check(corpus, unit(np.load(queries))[:300], (0.5, 0.7, 0.85, 1.0))


if __name__ == "__main__":
    tyro.cli(main)
