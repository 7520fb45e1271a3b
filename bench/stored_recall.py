"""How much of the exact top k is kept when vectors are ranked as stored, fp16 or int8, on your own vectors.

python bench/stored_recall.py documents.npy queries.npy
python bench/stored_recall.py documents.npy queries.npy --dims 256 128 64     # and cut off after so many dimensions
"""

from pathlib import Path

import numpy as np
import tyro
from tyro.conf import Positional
from unit import unit

from bidr.index.vectors.row_layout import STORAGE_KINDS, encode_rows

BLOCK = 20_000
MOST = 100


class Best:
    """The best rows for each query so far."""

    def __init__(self, queries: np.ndarray) -> None:
        self.queries = queries
        self.scores = np.full((len(queries), MOST), -np.inf, dtype=np.float32)
        self.rows = np.full((len(queries), MOST), -1)

    def look(self, start: int, vectors: np.ndarray) -> np.ndarray:
        """Take more rows in; their scores."""
        scores = self.queries @ vectors.T
        rows = np.broadcast_to(np.arange(start, start + len(vectors)), scores.shape)
        every, names = np.hstack([self.scores, scores]), np.hstack([self.rows, rows])
        found = np.argpartition(-every, MOST, axis=1)[:, :MOST]
        self.scores, self.rows = (np.take_along_axis(each, found, axis=1) for each in (every, names))
        return scores

    def top(self, k: int) -> np.ndarray:
        return np.take_along_axis(self.rows, np.argsort(-self.scores, axis=1, kind="stable")[:, :k], axis=1)


def main(
    vectors: Positional[Path],
    queries: Positional[Path],
    asked: int = 1_000,
    dims: tuple[int, ...] = (),
    rotate: bool = True,
) -> None:
    """Rows are made unit vectors. All documents are ranked, so nothing but the storage differs.

    dims:   also cut vectors and queries off after so many dimensions, and bring them to length 1 again.
    rotate: turn what is left of documents and queries by one random rotation. It changes no inner product, but vectors
            that were rounded to a grid before they came here would otherwise lie on it and lose nothing.
    """
    documents = np.load(vectors, mmap_mode="r")
    wanted, whole = np.load(queries, mmap_mode="r")[:asked], documents.shape[1]
    sizes = dict.fromkeys((whole, *dims))
    turns = {size: rotation(size) if rotate else np.eye(size, dtype=np.float32) for size in sizes}
    exact = Best(unit(wanted) @ turns[whole])
    found = {(kind, size): Best(unit(wanted[:, :size]) @ turns[size]) for size in sizes for kind in STORAGE_KINDS}
    errors = dict.fromkeys(STORAGE_KINDS, 0.0)
    for start in range(0, len(documents), BLOCK):
        block = np.asarray(documents[start : start + BLOCK])
        for size in sizes:
            rows = unit(block[:, :size]) @ turns[size]
            scores = exact.look(start, rows) if size == whole else None
            for kind in STORAGE_KINDS:
                stored = found[kind, size].look(start, restored(kind, rows))
                if scores is not None:
                    errors[kind] = max(errors[kind], float(np.abs(stored - scores).max()))
    print(
        "| dimensions | stored | bytes a document | of the exact top 1 | top 10 | top 100 | largest error of a score |"
    )
    print("|---|---|---|---|---|---|---|")
    for (kind, size), best in found.items():
        kept = " | ".join(f"{overlap(exact.top(k), best.top(k)):.4f}" for k in (1, 10, 100))
        taken = encode_rows(kind, np.zeros((1, size), dtype=np.float32)).nbytes
        print(f"| {size} | {kind} | {taken} | {kept} | {f'{errors[kind]:.5f}' if size == whole else ''} |")


def rotation(size: int) -> np.ndarray:
    square = np.random.default_rng(0).standard_normal((size, size))
    return np.linalg.qr(square)[0].astype(np.float32)


def restored(kind: str, rows: np.ndarray) -> np.ndarray:
    stored = encode_rows(kind, rows)
    if kind == "fp16":
        return stored.astype(np.float32)
    return stored["vector"].astype(np.float32) * stored["scale"][:, None]


def overlap(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.mean([len(np.intersect1d(x, y)) / a.shape[1] for x, y in zip(a, b, strict=True)]))


if __name__ == "__main__":
    tyro.cli(main)
