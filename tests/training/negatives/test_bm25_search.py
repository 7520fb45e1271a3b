import numpy as np
import pytest
from bm25_formula import score_texts
from sample_graphs import pairs_of

from bidr.data.positives import remove_positives
from bidr.training.negatives import bm25_search
from bidr.training.negatives.bm25_search import Bm25
from bidr.training.negatives.samplers import RandomSampler

TEXTS = [
    "The night watch was painted by Rembrandt",
    "Vermeer painted a girl with a pearl earring",
    "Sorting numbers with quicksort",
    "The watchmaker repairs watches at night",
    "Pearls are found in oysters",
]


@pytest.fixture(scope="module")
def index():
    return Bm25(TEXTS)


def test_the_obvious_is_found(index):
    found = index.search(["who painted the night watch", "pearl earring", "quicksort"], 5)
    assert found.rows[:, 0].tolist() == [0, 1, 2]
    assert (found.scores[:, 1:] <= found.scores[:, :-1]).all()


def test_scores_are_those_of_the_formula(index, monkeypatch):
    monkeypatch.setattr(bm25_search, "TEXTS_PER_BLOCK", 2)
    for engine in (index, Bm25(iter(TEXTS))):
        for query in ("Painted pearls by night, night!", "the watches", "numbers"):
            expected = score_texts(TEXTS, query)
            rows, scores = engine.search([query], 5).rows[0], engine.search([query], 5).scores[0]
            assert set(rows[rows >= 0].tolist()) == set(np.flatnonzero(expected).tolist())
            np.testing.assert_allclose(scores[rows >= 0], expected[rows[rows >= 0]], rtol=1e-5)
            assert (scores[1:] <= scores[:-1]).all()


def test_equal_scores_rank_by_row():
    assert Bm25(["a cat sleeps", "dogs", "cats slept", "cat sleeps"]).search(["cat"], 4).rows[0, :3].tolist() == [
        0,
        2,
        3,
    ]


def test_terms_are_stemmed_and_lower_cased(index):
    assert index.search(["SORT number"], 1).rows.tolist() == [[2]]


def test_only_documents_with_a_shared_term_are_hits(index):
    found = index.search(["pearls", "zzz qqq", "", "the of and"], 4)
    assert sorted(found.rows[0].tolist()) == [-1, -1, 1, 4]
    assert (found.rows[1:] == -1).all()
    assert np.isneginf(found.scores[found.rows < 0]).all()


def test_k_larger_than_the_corpus(index):
    assert index.search(["pearl"], 50).rows.shape == (1, 5)


def test_blocks_of_queries_do_not_change_hits(index, monkeypatch):
    queries = ["night", "zzz", "pearl", "painted", "oysters sorting"]
    whole = index.search(queries, 3)
    monkeypatch.setattr(bm25_search, "QUERIES_PER_BLOCK", 2)
    parts = index.search(queries, 3)
    assert np.array_equal(parts.rows, whole.rows)
    assert np.array_equal(parts.scores, whole.scores)


def test_a_query_without_hits_gets_a_random_negative(index):
    pairs = pairs_of([[0], [2], [1]])
    found = index.search(["zzz qqq", "quicksort", "vermeer pearl"], 3).rows
    pool = remove_positives(found, pairs)
    assert (pool[:2] == -1).all()
    seen = {0: set(), 1: set(), 2: set()}
    for epoch in range(40):
        plan = RandomSampler(pairs, len(TEXTS), 2, 0, pool).plan(epoch)
        for query, negative in zip(plan.queries.tolist(), plan.negatives.tolist(), strict=True):
            seen[query].add(negative)
    assert seen == {0: {1, 2, 3, 4}, 1: {0, 1, 3, 4}, 2: {4}}
