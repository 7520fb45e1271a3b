"""False-negative filter: mined documents that score close to a query's positives."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bidr.data.positives import Positives
from bidr.utils.array_types import Rows

QUERIES_PER_BLOCK = 256


class JudgeScores(NamedTuple):
    """Scores of mined documents and of positives.

    mined:     (queries, k); nan where there is no document or no score.
    positives: one per row of the pairs.
    """

    mined: npt.NDArray[np.float32]
    positives: npt.NDArray[np.float32]


def drop_false_negatives(mined: Rows, scores: JudgeScores, pairs: Positives, margin: float) -> Rows:
    """Keep mined documents that score at most the query's lowest positive minus the margin.

    Documents without a score are dropped; rows are padded with -1."""
    lowest = np.full(len(pairs), np.inf, dtype=np.float32)
    with np.errstate(invalid="ignore"):  # nan: a positive without a score drops all of the query's documents
        np.minimum.at(lowest, np.repeat(np.arange(len(pairs)), np.diff(pairs.starts)), scores.positives)
    dropped = (mined < 0) | ~(scores.mined <= lowest[:, None] - margin)
    order = np.argsort(dropped, axis=1, kind="stable")
    return np.take_along_axis(np.where(dropped, -1, mined), order, axis=1)


def score_by_vectors(
    mined: Rows, pairs: Positives, queries: npt.NDArray[np.floating], vectors: npt.NDArray[np.floating]
) -> JudgeScores:
    """Score mined documents and positives by inner product."""
    scores = np.full(mined.shape, np.nan, dtype=np.float32)
    for start in range(0, len(mined), QUERIES_PER_BLOCK):
        part = slice(start, start + QUERIES_PER_BLOCK)
        rows = np.asarray(mined[part])
        documents = np.asarray(vectors[np.maximum(rows, 0)], dtype=np.float32)
        products = np.einsum("qd,qkd->qk", np.asarray(queries[part], dtype=np.float32), documents)
        scores[part] = np.where(rows >= 0, products, np.nan)
    query_rows, rows = pairs.list_edges(np.arange(len(pairs)))
    positives = np.empty(len(rows), dtype=np.float32)
    step = QUERIES_PER_BLOCK * 64
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        positive_queries = np.asarray(queries[query_rows[part]], dtype=np.float32)
        positives[part] = (positive_queries * np.asarray(vectors[rows[part]], dtype=np.float32)).sum(axis=1)
    return JudgeScores(scores, positives)
