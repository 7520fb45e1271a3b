"""Reads and recall by the rule that chooses which candidates' vectors are read.

python bench/candidate_reads.py INDEX queries.npy

Nothing is timed: reads are counted from the positions of the candidates, without a cache. Rules: a fixed number N;
then all with a code score of at most a width below the 10th exact score so far; gaps of unneeded blocks that one read
may span; and, of each rule, the recall if all rows in the blocks that were read competed.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import tyro
from limited_memory import ANSWERS, load_exact_rows
from tyro.conf import Positional
from unit import unit

from bidr.index.live.live_reader import LiveIndex
from bidr.search.searcher import Searcher

BLOCK = 4_096
DEPTH = 1_500
MAX_SPAN = 8


class Trace(NamedTuple):
    """Candidates of each query by code score, with exact scores; and the positions of the exact top 10."""

    positions: np.ndarray
    code_scores: np.ndarray
    scores: np.ndarray
    exact: np.ndarray
    row_bytes: int


def main(index: Positional[Path], queries: Positional[Path], asked: int = 500) -> None:
    """Print a line for every rule."""
    vectors = unit(np.load(queries))
    with LiveIndex.open(index) as reader:
        exact_rows = load_exact_rows(Searcher(reader), vectors, queries.with_suffix(f".{index.name}.top.npy"))
        chosen = np.random.default_rng(1).permutation(len(vectors))[:asked]
        view = reader.latest()
        code_scores, positions = view.candidates.search(vectors[chosen], DEPTH)
        scores = np.stack([view.vectors.score(row, vectors[at]) for row, at in zip(positions, chosen, strict=True)])
        position_of = np.argsort(view.rows_of(np.arange(view.count)))
        file = view.segments[0].reader.vectors
        trace = Trace(positions, code_scores, scores, position_of[exact_rows[chosen]], file._row_bytes)
    ranks = np.broadcast_to(np.arange(DEPTH), positions.shape)
    for count in (50, 100, 150, 200, 300, 500, 1_000):
        show(f"the first {count:,}", ranks < count, trace)
    for gap in (1, 2, 4):
        show(f"the first 200, gaps of {gap}", ranks < 200, trace, gap)
    for first in (40, 60):
        tenth = np.sort(scores[:, :first], axis=1)[:, -ANSWERS, None]
        for width in (0.10, 0.12, 0.13, 0.14, 0.15):
            show(
                f"{first}, then within {width:.2f} of the 10th", (ranks < first) | (code_scores >= tenth - width), trace
            )


def show(rule: str, chosen: np.ndarray, trace: Trace, gap: int = 0) -> None:
    hits = np.stack([np.isin(*pair) for pair in zip(trace.positions, trace.exact, strict=True)])
    recall = (hits & chosen).sum() / trace.exact.size
    queries = zip(trace.positions, chosen, trace.exact, strict=True)
    figures = [count_reads(row[mask], best, trace.row_bytes, gap) for row, mask, best in queries]
    reads, kilobytes, in_blocks = np.mean(figures, axis=0)
    rows = chosen.sum(axis=1)
    print(
        f"{rule:<38} rows {rows.mean():5.0f} (95th {np.percentile(rows, 95):5.0f})  reads {reads:5.1f}",
        f"KB {kilobytes:5.0f}  R@10 {recall:.4f}  with all rows of the blocks {in_blocks:.4f}",
        flush=True,
    )


def count_reads(positions: np.ndarray, exact: np.ndarray, row_bytes: int, gap: int) -> tuple[int, float, float]:
    """Return reads, kilobytes, and the share of the exact top 10 in the blocks that are read."""
    positions = np.sort(positions)
    spans: list[list[int]] = []
    for first, last in zip(positions * row_bytes // BLOCK, ((positions + 1) * row_bytes - 1) // BLOCK, strict=True):
        if spans and first <= spans[-1][1] + 1 + gap and last - spans[-1][0] < MAX_SPAN:
            spans[-1][1] = max(spans[-1][1], last)
        else:
            spans.append([first, last])
    blocks = np.concatenate([np.arange(first, last + 1) for first, last in spans])
    ends = exact * row_bytes // BLOCK, ((exact + 1) * row_bytes - 1) // BLOCK
    return len(spans), len(blocks) * BLOCK / 1e3, float((np.isin(ends[0], blocks) & np.isin(ends[1], blocks)).mean())


if __name__ == "__main__":
    tyro.cli(main)
