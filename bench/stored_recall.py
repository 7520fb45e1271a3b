"""How much of the exact top k is kept when vectors are ranked as stored, fp16 or int8, on your own vectors.

python bench/stored_recall.py documents.npy queries.npy
"""

from pathlib import Path

import numpy as np
import tyro
from tyro.conf import Positional
from unit import unit

from bidr.index.vectors.layout import KINDS, to_rows

BLOCK = 20_000


def main(vectors: Positional[Path], queries: Positional[Path], asked: int = 1_000, rotate: bool = True) -> None:
    """Rows are made unit vectors. All documents are ranked, so nothing but the storage differs.

    rotate: turn documents and queries by one random rotation first. It changes no inner product, but vectors that were
            rounded to a grid before they came here would otherwise lie on it and lose nothing.
    """
    documents, turned = np.load(vectors, mmap_mode="r"), None
    wanted = unit(np.load(queries, mmap_mode="r")[:asked])
    if rotate:
        square = np.random.default_rng(0).standard_normal((wanted.shape[1], wanted.shape[1]))
        turned = np.linalg.qr(square)[0].astype(np.float32)
        wanted = wanted @ turned
    scores = {name: np.empty((len(wanted), len(documents)), dtype=np.float32) for name in ("exact", *KINDS)}
    for start in range(0, len(documents), BLOCK):
        rows = unit(documents[start : start + BLOCK])
        rows = rows if turned is None else rows @ turned
        for name, found in scores.items():
            found[:, start : start + BLOCK] = wanted @ (rows if name == "exact" else restored(name, rows)).T
    best = {name: top(found, 100) for name, found in scores.items()}
    print("| stored | bytes a document | of the exact top 1 | top 10 | top 100 | largest error of a score |")
    print("|---|---|---|---|---|---|")
    for kind in KINDS:
        kept = [f"{overlap(best['exact'][:, :k], best[kind][:, :k]):.4f}" for k in (1, 10, 100)]
        size = to_rows(kind, rows[:1]).nbytes
        error = np.abs(scores[kind] - scores["exact"]).max()
        print(f"| {kind} | {size} | {' | '.join(kept)} | {error:.5f} |")


def restored(kind: str, rows: np.ndarray) -> np.ndarray:
    stored = to_rows(kind, rows)
    if kind == "fp16":
        return stored.astype(np.float32)
    return stored["vector"].astype(np.float32) * stored["scale"][:, None]


def top(scores: np.ndarray, k: int) -> np.ndarray:
    found = np.argpartition(-scores, k, axis=1)[:, :k]
    order = np.argsort(-np.take_along_axis(scores, found, axis=1), axis=1, kind="stable")
    return np.take_along_axis(found, order, axis=1)


def overlap(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.mean([len(np.intersect1d(x, y)) / a.shape[1] for x, y in zip(a, b, strict=True)]))


if __name__ == "__main__":
    tyro.cli(main)
