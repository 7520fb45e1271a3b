"""Results of rows without training: ranks of the relevant documents, made up."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bidr.experiments.reproduce.row_files import RelevantRanks, RowResult

QUERIES = 200


def ranks_with_recall(recall: float, queries: int = QUERIES, seed: int = 0) -> str:
    """One relevant document a query, at rank 1 in a share of them and nowhere in the others."""
    found = np.random.default_rng(seed).permutation(queries) < round(recall * queries)
    return RelevantRanks(np.arange(queries + 1), found.astype(np.int64)).format()


def row_result(row: str, recall: float = 0.5, *, dev: float = 0.5, seed: int = 0, **fields: Any) -> RowResult:
    """A measured row; `recall` is that of its answers and candidates at every cut-off."""
    text = ranks_with_recall(recall)
    known: dict[str, Any] = {
        "data": "made",
        "encoder": "built-in",
        "split": "test",
        "documents": 5_000,
        "queries": QUERIES,
        "candidates": 500,
        "bytes_per_doc": 8,
        "settings": {"bytes_per_doc": 8, "candidates": 500, "split": "test"},
        "ranks": {"answers": text, "candidates": text},
        "dev": {"R@10": dev},
        "values": {"ms_per_query": 1.0, "train_seconds": 2.0},
        "ram": {"codes": 8.0, "total": 10.0},
        "environment": {"device": "cpu", "torch": "0"},
    }
    return RowResult(row=row, seed=seed, **{**known, **fields})


def curve(x: str, values: Mapping[float, float]) -> list[dict[str, float]]:
    """A curve with the same recall at every cut-off."""
    return [
        {x: at, "R@10": value, "R@100": value, "ms": at / 100, "candidates' R@100": value}
        for at, value in values.items()
    ]


def baselines(recalls: Mapping[str, float], dev: Mapping[str, float], seeds: Sequence[int] = (0,)) -> list[RowResult]:
    """Rows with a recall on test and one on dev."""
    return [row_result(row, recalls[row], dev=dev.get(row, 0.1), seed=seed) for row in recalls for seed in seeds]
