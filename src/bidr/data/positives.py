"""Positive documents of queries as CSR arrays."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bidr.utils.array_types import Rows


class Positives(NamedTuple):
    """CSR arrays: the positive documents of query i are ``rows[starts[i]:starts[i + 1]]``."""

    starts: Rows
    rows: Rows

    def __len__(self) -> int:
        return len(self.starts) - 1

    def get_rows(self, query: int) -> Rows:
        """Return the positives of one query."""
        return self.rows[self.starts[query] : self.starts[query + 1]]

    def draw(self, queries: Rows, random: np.random.Generator) -> Rows:
        """Draw one positive per query, uniformly."""
        counts = self.starts[queries + 1] - self.starts[queries]
        return self.rows[self.starts[queries] + (random.random(len(queries)) * counts).astype(np.int64)]

    def list_edges(self, queries: Rows) -> tuple[Rows, Rows]:
        """Return all pairs (index into `queries`, positive row)."""
        counts = self.starts[queries + 1] - self.starts[queries]
        indexes = np.repeat(np.arange(len(queries)), counts)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return indexes, self.rows[self.starts[queries][indexes] + within]


def build_positives(
    query_ids: Sequence[str], qrels: Mapping[str, Mapping[str, int]], rows: Mapping[str, int]
) -> Positives:
    """Convert judgments above 0 to corpus rows, in query order. `rows` maps document ids to rows."""
    lists = [[rows[doc] for doc, score in qrels[query].items() if score > 0] for query in query_ids]
    starts = np.zeros(len(lists) + 1, dtype=np.int64)
    np.cumsum([len(positives) for positives in lists], out=starts[1:])
    return Positives(starts, np.array([row for positives in lists for row in positives], dtype=np.int64))


def remove_positives(hits: npt.NDArray[np.integer], pairs: Positives) -> Rows:
    """Remove each query's positives from its hits (queries, k); the rest moves left, -1 fills the right."""
    cleaned = np.array(hits, dtype=np.int64)
    width = int(max(cleaned.max(initial=0), pairs.rows.max(initial=0))) + 2
    queries, rows = pairs.list_edges(np.arange(len(cleaned)))
    positive_keys = np.append(np.sort(queries * width + rows), np.iinfo(np.int64).max)
    keys = np.arange(len(cleaned))[:, None] * width + cleaned
    removed = (cleaned < 0) | (positive_keys[np.searchsorted(positive_keys, keys)] == keys)
    cleaned[removed] = -1
    order = np.argsort(removed, axis=1, kind="stable")
    return np.take_along_axis(cleaned, order, axis=1)
