"""The suggested candidates reach the recall that they promise, on the queries measured and near it on others."""

import numpy as np
import pytest
from sample_index import clustered

import bidr
from bidr.errors import ConfigError, DataError

DIM = 16


@pytest.fixture(scope="module")
def searcher(tmp_path_factory):
    index = tmp_path_factory.mktemp("suggestion") / "i"
    bidr.build_vectors(clustered(3_000, DIM, 1), None, index, plain=bidr.PlainCodes(4))
    with bidr.open_index(index) as opened:
        yield opened


def measure(searcher, queries: np.ndarray, candidates: int, k: int) -> float:
    exact, hits = (searcher.search_vectors(queries, k, depth).rows for depth in (3_000, candidates))
    return float(np.mean([np.isin(top, rows).mean() for top, rows in zip(exact, hits, strict=True)]))


@pytest.mark.parametrize("recall", [0.8, 0.95, 1.0])
def test_the_fewest_candidates_with_the_recall(searcher, recall):
    queries = clustered(300, DIM, 2)
    suggestion = searcher.suggest_candidates(recall, 10, queries)
    assert suggestion.recall == pytest.approx(measure(searcher, queries, suggestion.candidates, 10))
    assert suggestion.recall >= recall
    assert suggestion.queries == 300
    if suggestion.candidates > 20:
        assert measure(searcher, queries, int(0.85 * suggestion.candidates), 10) < recall
    assert abs(measure(searcher, clustered(300, DIM, 3), suggestion.candidates, 10) - suggestion.recall) < 0.02


def test_documents_may_take_the_place_of_queries(searcher):
    suggestion = searcher.suggest_candidates(0.9)
    assert suggestion.recall >= 0.9
    assert 10 < suggestion.candidates < 1_000


def test_invalid_targets_are_refused(searcher):
    for recall in (0, 1.1, "x", True):
        with pytest.raises(ConfigError, match="recall"):
            searcher.suggest_candidates(recall)
    with pytest.raises(ConfigError, match="k"):
        searcher.suggest_candidates(0.9, 0)
    with pytest.raises(DataError, match="smaller k"):
        searcher.suggest_candidates(0.9, 5_000)
