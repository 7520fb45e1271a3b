"""Mined documents that may be answers which nobody labelled: they score too near to the query's own positives."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bidr.data.positives import Positives
from bidr.utils.array_types import Rows

QUERIES_AT_ONCE = 256


class JudgeScores(NamedTuple):
    """A judge's scores.

    found:     (queries, k), of mined documents; nan where there is none or the judge did not say.
    positives: one for each of the pairs' rows.
    """

    found: npt.NDArray[np.float32]
    positives: npt.NDArray[np.float32]


def drop_false_negatives(found: Rows, judged: JudgeScores, pairs: Positives, margin: float) -> Rows:
    """The found documents that score at most the query's lowest positive minus the margin: kept ones to the left, -1
    behind them. What the judge did not score goes."""
    lowest = np.full(len(pairs), np.inf, dtype=np.float32)
    with np.errstate(invalid="ignore"):  # a positive that the judge did not score leaves nothing sure
        np.minimum.at(lowest, np.repeat(np.arange(len(pairs)), np.diff(pairs.starts)), judged.positives)
    bad = (found < 0) | ~(judged.found <= lowest[:, None] - margin)
    order = np.argsort(bad, axis=1, kind="stable")
    return np.take_along_axis(np.where(bad, -1, found), order, axis=1)


def score_by_vectors(
    found: Rows, pairs: Positives, queries: npt.NDArray[np.floating], vectors: npt.NDArray[np.floating]
) -> JudgeScores:
    """Inner products as the judge."""
    scores = np.full(found.shape, np.nan, dtype=np.float32)
    for start in range(0, len(found), QUERIES_AT_ONCE):
        part = slice(start, start + QUERIES_AT_ONCE)
        rows = np.asarray(found[part])
        near = np.asarray(vectors[np.maximum(rows, 0)], dtype=np.float32)
        products = np.einsum("qd,qkd->qk", np.asarray(queries[part], dtype=np.float32), near)
        scores[part] = np.where(rows >= 0, products, np.nan)
    places, rows = pairs.list_edges(np.arange(len(pairs)))
    positives = np.empty(len(rows), dtype=np.float32)
    step = QUERIES_AT_ONCE * 64
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        ours = np.asarray(queries[places[part]], dtype=np.float32)
        positives[part] = (ours * np.asarray(vectors[rows[part]], dtype=np.float32)).sum(axis=1)
    return JudgeScores(scores, positives)
