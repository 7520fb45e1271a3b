import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_graphs import Found, pairs_of, searches

from bidr.data.positives import build_positives, remove_positives
from bidr.training.negatives.proximity_graph import build_graph


def cleaned(found: Found) -> list[list[int]]:
    return [
        [row for row in rows if row >= 0 and row not in own]
        for rows, own in zip(found.rows.tolist(), found.positives, strict=True)
    ]


@given(searches())
def test_remaining_hits_keep_their_order(found):
    kept = remove_positives(found.rows, found.pairs)
    assert kept.shape == found.rows.shape
    for row, expected in zip(kept.tolist(), cleaned(found), strict=True):
        assert row == expected + [-1] * (len(row) - len(expected))


@given(searches())
def test_minus_one_hits_move_to_the_right(found):
    """What another engine found may have its -1 anywhere."""
    holes = found.rows[:, ::-1].copy()
    kept = remove_positives(holes, found.pairs)
    assert [[row for row in rows if row >= 0] for rows in kept.tolist()] == [each[::-1] for each in cleaned(found)]


def test_queries_without_positives_keep_all_hits():
    found = np.array([[2, 0, -1], [1, 2, 0]])
    assert remove_positives(found, pairs_of([[], []])).tolist() == found.tolist()
    assert remove_positives(found, pairs_of([[], [2]])).tolist() == [[2, 0, -1], [1, 0, -1]]


@given(searches(), st.data())
def test_edges_pair_each_query_with_its_positives(found, data):
    queries = np.array(data.draw(st.lists(st.integers(0, len(found.positives) - 1))), dtype=np.int64)
    places, rows = found.pairs.list_edges(queries)
    expected = [(place, row) for place, query in enumerate(queries) for row in found.positives[query]]
    assert list(zip(places.tolist(), rows.tolist(), strict=True)) == expected


@given(searches(), st.integers(0, 1_000))
@settings(max_examples=30)
def test_each_query_draws_one_of_its_positives(found, seed):
    queries = np.random.default_rng(seed).integers(len(found.positives), size=50)
    drawn = found.pairs.draw(queries, np.random.default_rng(seed))
    assert all(row in found.positives[query] for query, row in zip(queries, drawn.tolist(), strict=True))


def test_draws_are_uniform():
    pairs = pairs_of([[7], [4, 5, 6]])
    drawn = pairs.draw(np.ones(9_000, dtype=np.int64), np.random.default_rng(0))
    assert np.abs(np.bincount(drawn, minlength=8)[4:7] - 3_000).max() < 250


def test_judgments_of_zero_are_not_positives():
    qrels = {"a": {"x": 1, "y": 0, "z": 2}, "b": {"y": 1}}
    pairs = build_positives(["b", "a"], qrels, {"x": 10, "y": 11, "z": 12})
    assert [pairs.get_rows(0).tolist(), pairs.get_rows(1).tolist(), len(pairs)] == [[11], [10, 12], 2]


@given(searches(), st.integers(0, 4), st.integers(0, 4))
def test_the_graph_is_that_of_sets(found, split, more):
    """Forward edges of the ranks up to `split`, backward ones of those behind it, as the paper's code has them."""
    graph = build_graph(found.rows, found.pairs, found.documents, forward=(0, split), backward=(split, split + more))
    behind: dict[int, set[int]] = {}
    for query, rows in enumerate(cleaned(found)):
        ahead = rows[:split]
        assert graph.degrees[query] == len(ahead)
        assert graph.forward[query, : len(ahead)].tolist() == ahead
        assert (graph.forward[query, len(ahead) :] == -1).all()
        for row in rows[split : split + more]:
            behind.setdefault(row, set()).add(query)
    assert len(graph.backward_starts) == found.documents + 1
    for row in range(found.documents):
        queries = graph.backward[graph.backward_starts[row] : graph.backward_starts[row + 1]].tolist()
        assert len(queries) == len(set(queries))
        assert set(queries) == behind.get(row, set())
