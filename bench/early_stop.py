"""Early termination of candidate reads: stopping rules against a fixed number of candidates.

python bench/early_stop.py INDEX queries.npy

For every rule: rows read (mean and 95th percentile) and R@100, for the second half of the queries.
"""

from pathlib import Path

import numpy as np
import tyro
from query_cost import find_exact_rows
from tyro.conf import Positional
from unit import unit

from bidr.index.reader import IndexReader

ANSWERS, FIRST = 100, 300


def main(index: Positional[Path], queries: Positional[Path], asked: int = 600, depth: int = 3_000) -> None:
    """Print a line for every rule."""
    questions = unit(np.load(queries)[:asked])
    questions = questions[len(questions) // 2 :]
    with IndexReader.open(index) as reader:
        codes, places = reader.candidates.search(questions, depth)
        exact = np.stack([reader.vectors.score(*pair) for pair in zip(places, questions, strict=True)])
        best_rows, rows = find_exact_rows(reader, questions), reader.rows_of(places)
    hits = np.stack([np.isin(row, best) for row, best in zip(rows, best_rows, strict=True)])
    for count in (600, 800, 1_000, 1_200, 1_500):
        _show(f"the first {count:,}", np.broadcast_to(np.arange(depth) < count, hits.shape), hits)
    for width in (0.05, 0.06, 0.07):
        _show(f"codes within {width} of the 100th", codes >= codes[:, ANSWERS - 1, None] - width, hits)
    thresholds = np.sort(exact[:, :FIRST], axis=1)[:, -ANSWERS, None]
    for width in (0.1, 0.11, 0.12):
        read = (codes >= thresholds - width) | (np.arange(depth) < FIRST)
        _show(f"{FIRST}, then codes within {width} of the 100th exact score", read, hits)


def _show(rule: str, read: np.ndarray, hits: np.ndarray) -> None:
    counts, recall = read.sum(axis=1), (read & hits).sum(axis=1).mean() / ANSWERS
    print(
        f"{rule:<55} {counts.mean():6.0f} rows, 95th {np.percentile(counts, 95):6.0f}, R@100 {recall:.4f}", flush=True
    )


if __name__ == "__main__":
    tyro.cli(main)
