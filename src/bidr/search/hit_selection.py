"""What happens to ranked candidates before they are hits: fusion by rank, minimum score, groups, diversity, offset.

Everything works on the candidates that were ranked by vectors; vectors are read again only for diversity.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from bidr.errors import ConfigError
from bidr.index.live.view import LiveView
from bidr.search.types import RankedBatch
from bidr.utils.array_types import Floats, Rows
from bidr.utils.deadline import check_deadline
from bidr.utils.reproducible_matmul import matmul_transposed

Fusion = Literal["sum", "rrf"]
Combination = Literal["max", "mean"]
RRF_RANK = 60
"""Constant of reciprocal rank fusion (Cormack, Clarke and Buettcher, 2009)."""


class ShapingOptions(NamedTuple):
    """Options of a search that act on its ranked candidates (see `SearchOptions`)."""

    offset: int = 0
    min_score: float | None = None
    group_by: str | None = None
    group_size: int = 1
    mmr: float | None = None
    fusion: Fusion = "sum"
    combine: Combination | None = None

    @property
    def needs_all_candidates(self) -> bool:
        """Whether more candidates than hits are needed."""
        return self.group_by is not None or self.mmr is not None or self.fusion == "rrf"

    def check(self) -> None:
        """Raise ConfigError for values out of range."""
        for name, minimum in (("offset", 0), ("group_size", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < minimum:
                raise ConfigError(f"{name}: given {value!r}, expected a whole number of {minimum} or more")
        if self.min_score is not None and not _is_number(self.min_score):
            raise ConfigError(
                f"min_score: given {self.min_score!r}, expected a finite number; leave it out for no limit"
            )
        if self.mmr is not None and not (_is_number(self.mmr) and 0 <= self.mmr <= 1):
            raise ConfigError(
                f"mmr: given {self.mmr!r}, expected a number from 0 (diversity alone) to 1 (relevance alone)"
            )
        if self.group_by is not None and (not isinstance(self.group_by, str) or not self.group_by):
            raise ConfigError(f"group_by: given {self.group_by!r}, expected the name of an attribute")
        for name, value, choices in (("fusion", self.fusion, Fusion), ("combine", self.combine or "max", Combination)):
            if value not in get_args(choices):
                raise ConfigError(f"{name}: given {value!r}, expected {' or '.join(get_args(choices))}")


NO_SHAPING = ShapingOptions()


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float | np.number) and math.isfinite(value)


def shape_batch(batch: RankedBatch, k: int, shaping: ShapingOptions, view: LiveView) -> RankedBatch:
    """Return the best `k` of each query after fusion, minimum score, groups, diversity and offset."""
    chosen = [_shape_query(batch, query, k, shaping, view) for query in range(len(batch.rows))]
    width = max((len(order) for order, _ in chosen), default=0)
    rows, scores = np.full((len(chosen), width), -1, np.int64), np.full((len(chosen), width), -np.inf, np.float32)
    ranks, code_scores, word_ranks = np.zeros_like(rows), np.zeros_like(scores), np.zeros_like(rows)
    for query, (order, query_scores) in enumerate(chosen):
        cells = (query, slice(len(order)))
        rows[cells], scores[cells] = batch.rows[query, order], query_scores[order]
        ranks[cells], code_scores[cells] = batch.candidate_ranks[query, order], batch.candidate_scores[query, order]
        if batch.word_ranks is not None:
            word_ranks[cells] = batch.word_ranks[query, order]
    return batch._replace(
        rows=rows,
        scores=scores,
        candidate_ranks=ranks,
        candidate_scores=code_scores,
        word_ranks=None if batch.word_ranks is None else word_ranks,
    )


def _shape_query(
    batch: RankedBatch, query: int, k: int, shaping: ShapingOptions, view: LiveView
) -> tuple[list[int], Floats]:
    """Return which columns of a query are its hits, in order, and the scores of all columns."""
    rows, scores = batch.rows[query], batch.scores[query]
    order = np.flatnonzero(rows >= 0)
    if shaping.fusion == "rrf":
        scores = fuse_ranks(order, scores, None if batch.word_ranks is None else batch.word_ranks[query])
        order = order[np.lexsort((rows[order], -scores[order]))]
    if shaping.min_score is not None:
        order = order[scores[order] >= shaping.min_score]
    end = shaping.offset + k
    chosen = order.tolist()
    if shaping.group_by is not None:
        limited = limit_groups(chosen, rows, shaping.group_by, shaping.group_size, view)
        chosen = list(limited if shaping.mmr is not None else islice(limited, end))
    if shaping.mmr is not None:
        assert batch.positions is not None
        chosen = diversify(chosen, batch.positions[query], scores, shaping.mmr, end, view)
    return chosen[shaping.offset : end], scores


def fuse_ranks(order: Rows, scores: Floats, word_ranks: Rows | None) -> Floats:
    """Return the sum of reciprocal ranks by vectors, which is the order of the columns, and by BM25."""
    fused = np.full(len(scores), -np.inf, dtype=np.float32)
    fused[order] = 1 / (RRF_RANK + 1 + np.arange(len(order)))
    if word_ranks is not None:
        is_hit = word_ranks[order] > 0
        fused[order[is_hit]] += (1 / (RRF_RANK + word_ranks[order[is_hit]])).astype(np.float32)
    return fused


def limit_groups(columns: list[int], rows: Rows, name: str, size: int, view: LiveView) -> Iterator[int]:
    """Yield columns, at most `size` with one value of an attribute. Documents without it are not limited."""
    counts: Counter[str] = Counter()
    for column in columns:
        check_deadline()
        value = (view.documents.attributes(int(rows[column])) or {}).get(name)
        if value is not None:
            key = json.dumps(value)
            counts[key] += 1
            if counts[key] > size:
                continue
        yield column


def diversify(
    columns: list[int], positions: Rows, scores: Floats, weight: float, count: int, view: LiveView
) -> list[int]:
    """Select columns by maximal marginal relevance (Carbonell and Goldstein, 1998).

    Each next document has the largest weight * relevance - (1 - weight) * redundancy: relevance is the score divided by
    the largest one in size, redundancy the largest cosine with a selected document.
    """
    if not columns:
        return []
    vectors = view.vectors.read(positions[columns])
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    cosines = matmul_transposed(vectors, vectors)
    relevance = scores[columns] / max(float(np.abs(scores[columns]).max()), 1e-12)
    redundancy, is_left, chosen = np.full(len(columns), -1.0, np.float32), np.ones(len(columns), bool), list[int]()
    for number in range(min(count, len(columns))):
        check_deadline()
        marginal = weight * relevance - ((1 - weight) * redundancy if number else 0)
        best = int(np.argmax(np.where(is_left, marginal, -np.inf)))
        chosen.append(columns[best])
        is_left[best] = False
        redundancy = np.maximum(redundancy, cosines[best])
    return chosen
