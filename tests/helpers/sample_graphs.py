"""Pairs and graphs for tests, and what hypothesis draws them from."""

from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from bidr.data.positives import Positives
from bidr.training.negatives.proximity_graph import ProximityGraph, build_graph


def pairs_of(lists: list[list[int]]) -> Positives:
    starts = np.cumsum([0, *(len(each) for each in lists)]).astype(np.int64)
    return Positives(starts, np.array([row for each in lists for row in each], dtype=np.int64))


class Found(NamedTuple):
    """A small search: what each query should find, what it found, and how many documents there are."""

    positives: list[list[int]]
    rows: np.ndarray
    documents: int

    @property
    def pairs(self) -> Positives:
        return pairs_of(self.positives)

    @property
    def graph(self) -> ProximityGraph:
        return build_graph(self.rows, self.pairs, self.documents)


@st.composite
def searches(draw: st.DrawFn) -> Found:
    """Few documents, so that hubs, empty rows, and rows that hold nothing but positives all occur."""
    documents = draw(st.integers(3, 12))
    row = st.integers(0, documents - 1)
    queries = draw(st.integers(1, 14))
    positives = draw(st.lists(st.lists(row, min_size=1, max_size=3, unique=True), min_size=queries, max_size=queries))
    depth = draw(st.integers(1, 6))
    found = draw(st.lists(st.lists(row, max_size=depth, unique=True), min_size=queries, max_size=queries))
    rows = np.array([each + [-1] * (depth - len(each)) for each in found], dtype=np.int64)
    return Found(positives, rows, documents)


def large_corpus(queries: int, documents: int, clusters: int, depth: int = 200, noise: float = 0.2) -> Found:
    """The proportions of a large corpus: a query's candidates are mostly of its own neighbourhood.

    Every cluster has documents / clusters documents; a query's positive is one of its cluster.
    """
    random = np.random.default_rng(0)
    size = documents // clusters
    home = random.integers(clusters, size=queries)
    near = np.argsort(random.random((queries, size)), axis=1)[:, :depth] + home[:, None] * size
    stray = random.random((queries, depth)) < noise
    rows = np.where(stray, random.integers(documents, size=(queries, depth)), near)
    positives = home * size + random.integers(size, size=queries)
    return Found([[int(row)] for row in positives], rows, documents)
