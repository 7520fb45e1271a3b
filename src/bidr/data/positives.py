"""Which documents answer which query, as flat arrays."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bidr.utils.array_types import Rows


class Pairs(NamedTuple):
    """The positive documents of query i are ``rows[starts[i]:starts[i + 1]]``."""

    starts: Rows
    rows: Rows

    def __len__(self) -> int:
        return len(self.starts) - 1

    def of(self, query: int) -> Rows:
        return self.rows[self.starts[query] : self.starts[query + 1]]

    def draw(self, queries: Rows, random: np.random.Generator) -> Rows:
        """One positive for every query, uniformly."""
        counts = self.starts[queries + 1] - self.starts[queries]
        return self.rows[self.starts[queries] + (random.random(len(queries)) * counts).astype(np.int64)]

    def edges(self, queries: Rows) -> tuple[Rows, Rows]:
        """Every (place in queries, positive row) of these queries."""
        counts = self.starts[queries + 1] - self.starts[queries]
        places = np.repeat(np.arange(len(queries)), counts)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return places, self.rows[self.starts[queries][places] + within]


def pairs_from(query_ids: Sequence[str], qrels: Mapping[str, Mapping[str, int]], rows: Mapping[str, int]) -> Pairs:
    """Judgements above zero as rows of the corpus, in the order of the queries."""
    lists = [[rows[doc] for doc, score in qrels[query].items() if score > 0] for query in query_ids]
    starts = np.zeros(len(lists) + 1, dtype=np.int64)
    np.cumsum([len(each) for each in lists], out=starts[1:])
    return Pairs(starts, np.array([row for each in lists for row in each], dtype=np.int64))


def without_positives(found: npt.NDArray[np.integer], pairs: Pairs) -> Rows:
    """Search results (queries, k) without the queries' own positives: kept ones to the left, -1 behind them."""
    cleaned = np.array(found, dtype=np.int64)
    width = int(max(cleaned.max(initial=0), pairs.rows.max(initial=0))) + 2
    places, rows = pairs.edges(np.arange(len(cleaned)))
    own = np.append(np.sort(places * width + rows), np.iinfo(np.int64).max)
    keys = np.arange(len(cleaned))[:, None] * width + cleaned
    bad = (cleaned < 0) | (own[np.searchsorted(own, keys)] == keys)
    cleaned[bad] = -1
    order = np.argsort(bad, axis=1, kind="stable")
    return np.take_along_axis(cleaned, order, axis=1)
