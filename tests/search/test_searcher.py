from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_index import both, clustered, documents, index_of

from bidr.errors import ConfigError, DataError
from bidr.index.engines.graph import engine as graph
from bidr.index.engines.topk import rank_scores
from bidr.search.searcher import Searcher
from bidr.search.types import QueryVectors, SearchResult

DIM = 16


def exact(vectors: np.ndarray, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Search over the stored fp16 rows in double precision; equal scores by row."""
    scores = queries.astype(np.float64) @ vectors.astype(np.float16).astype(np.float64).T
    rows = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return rows, np.take_along_axis(scores, rows, axis=1)


@pytest.fixture(autouse=True, scope="module")
def always_walk():
    """On so few documents a graph would scan instead, and its faults would not show."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph, "SCANNED_PER_EF", 0)
        yield


class Words:
    """A query encoder that knows the vectors of its texts."""

    def __init__(self, vectors: np.ndarray) -> None:
        self.vectors = vectors

    def __call__(self, texts) -> QueryVectors:
        return both(self.vectors[[int(text.split()[-1]) for text in texts]])


@given(
    st.integers(1, 400),
    st.integers(1, 50),
    st.sampled_from(["scan", "lists", "hnsw"]),
    st.integers(0, 10**6),
    st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_all_documents_as_candidates_equals_exact_search(tmp_path_factory, count, k, engine, seed, twins):
    vectors = clustered(count, DIM, seed)
    if twins:
        vectors[count // 2 :] = vectors[: count - count // 2]
    queries = clustered(3, DIM, seed + 1)
    with index_of(tmp_path_factory.mktemp("law") / "i", vectors, engine=engine) as reader:
        ranking = Searcher(reader).search_vectors(both(queries), k, candidates=10**9)
    rows, scores = exact(vectors, queries, k)
    assert ranking.rows.shape == rows.shape == (3, min(k, count))
    np.testing.assert_allclose(ranking.scores, scores, atol=2e-6)
    apart = np.ones(rows.shape, dtype=bool)
    gaps = np.abs(np.diff(scores, axis=1))
    near = (gaps < 4e-6) & (gaps > 0)
    apart[:, 1:] &= ~near
    apart[:, :-1] &= ~near
    apart[:, -1] = False
    np.testing.assert_array_equal(ranking.rows[apart], rows[apart])


def test_equal_vectors_are_ordered_by_row(tmp_path):
    vectors = np.repeat(clustered(5, DIM), 40, axis=0)
    for engine in ("scan", "hnsw"):
        with index_of(tmp_path / engine, vectors, engine=engine) as reader:
            ranking = Searcher(reader).search_vectors(both(vectors[80:81]), k=40, candidates=200)
        assert ranking.rows[0].tolist() == list(range(80, 120))


@pytest.fixture
def searcher(tmp_path):
    vectors = clustered(300, DIM)
    with index_of(tmp_path / "i", vectors, documents=documents(300)) as reader:
        yield Searcher(reader, Words(vectors), candidates=50)


def test_hits_have_candidate_ranks_and_scores(searcher):
    found = searcher.search("document 7", k=5)
    assert isinstance(found, SearchResult)
    assert found[0].id == "doc-7"
    assert found[0].document == documents(8)[7]
    assert [answer.rank for answer in found] == [1, 2, 3, 4, 5]
    assert all(first.score >= second.score for first, second in pairwise(found))
    ranking = searcher.search_vectors(searcher.encoder(["document 7"]), 5)
    assert ranking.candidate_positions.shape == (1, 50)
    for answer, row in zip(found, ranking.rows[0], strict=True):
        assert ranking.candidate_positions[0, answer.candidate_rank - 1] == row
    assert found.timings.encode > 0
    assert found.timings.total == pytest.approx(sum(found.timings))


def test_a_batch_equals_single_queries(searcher):
    texts = [f"q {number}" for number in range(9)]
    for together, alone in zip(
        searcher.search(texts, k=3), (searcher.search(text, k=3) for text in texts), strict=True
    ):
        assert [(answer.id, answer.score) for answer in together] == [(answer.id, answer.score) for answer in alone]
    assert searcher.search([]) == []


def test_k_and_candidates_are_clipped_to_the_corpus(searcher):
    assert len(searcher.search("q 1", k=10**9, candidates=10**12)) == 300
    assert len(searcher.search("q 1", k=70, candidates=1)) == 70


def test_fusion_adds_the_score_of_the_codes(searcher):
    queries = searcher.encoder(["q 4"])
    plain = searcher.search_vectors(queries, 50)
    fused = Searcher(searcher.reader, candidates=50, fuse=0.3).search_vectors(queries, 50)
    by_row = dict(zip(plain.rows[0], plain.scores[0] + 0.3 * plain.candidate_scores[0], strict=True))
    np.testing.assert_allclose(fused.scores[0], [by_row[row] for row in fused.rows[0]], rtol=1e-5)
    assert searcher.fuse == 0


@pytest.mark.parametrize("k", [0, -1, True, 2.5, "3", None])
def test_invalid_k_is_refused(searcher, k):
    with pytest.raises(ConfigError, match="expected a whole number"):
        searcher.search("q 1", k=k)
    if k is not None:
        with pytest.raises(ConfigError, match="expected a whole number"):
            searcher.search("q 1", candidates=k)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e308])
def test_non_finite_queries_are_refused(searcher, value):
    bad = np.zeros((2, DIM))
    bad[1, 2] = value
    good = np.zeros((2, DIM))
    for queries in (QueryVectors(bad, good), QueryVectors(good, bad)):
        with pytest.raises(DataError, match="query 1 holds NaN or infinity"):
            searcher.search_vectors(queries)


def test_queries_of_the_wrong_shape_are_refused(searcher):
    for shape in ((2, DIM + 1), (DIM,), (1, 2, DIM)):
        with pytest.raises(DataError, match=r"expected \(queries, 16\)"):
            searcher.search_vectors(both(np.zeros(shape, dtype=np.float32)))
    with pytest.raises(DataError, match="expected the same number"):
        searcher.search_vectors(QueryVectors(np.zeros((2, DIM)), np.zeros((3, DIM))))
    with pytest.raises(ConfigError, match="needs a query encoder"):
        Searcher(searcher.reader).search("text")


def test_more_candidates_never_lower_the_scores(searcher):
    queries = both(clustered(20, DIM, seed=3))
    depths = [searcher.search_vectors(queries, 10, depth).scores for depth in (10, 50, 300)]
    assert (depths[0] <= depths[1]).all()
    assert (depths[1] <= depths[2]).all()


@given(scores=st.lists(st.integers(-3, 3), min_size=1, max_size=30), k=st.integers(1, 30), missing=st.integers(0, 5))
def test_top_k_equals_a_full_sort_with_ties_by_position(scores, k, missing):
    values = np.array([*scores, *[-np.inf] * missing], dtype=np.float32)
    places = np.random.default_rng(0).permutation(len(values))
    k = min(k, len(values))
    order, found = np.empty(k, dtype=np.int64), np.empty(k, dtype=np.float32)
    ties = rank_scores(values, places, order, found)
    assert order.tolist() == np.lexsort((places, -values))[:k].tolist()
    assert found.tolist() == values[order].tolist()
    assert ties or len(set(found.tolist())) == k
