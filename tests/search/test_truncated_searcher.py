import numpy as np
import pytest
from sample_index import both, clustered, index_of

from bidr.errors import ConfigError
from bidr.search.searcher import Searcher
from bidr.search.truncated_searcher import TruncatedSearcher, make_truncated_searchers


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    vectors = clustered(400, 16)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    reader = index_of(tmp_path_factory.mktemp("index") / "index", vectors)
    yield Searcher(reader, candidates=400), vectors.astype(np.float16).astype(np.float32), vectors[::40] + 0.05
    reader.close()


def best(scores: np.ndarray) -> np.ndarray:
    return -np.sort(-scores, axis=1)[:, :10]


def test_a_prefix_ranks_by_the_cosine_of_the_first_dimensions(searched):
    searcher, vectors, queries = searched
    cut, asked = vectors[:, :5], queries[:, :5]
    expected = (asked / np.linalg.norm(asked, axis=1, keepdims=True)) @ (
        cut / np.linalg.norm(cut, axis=1, keepdims=True)
    ).T
    found = TruncatedSearcher(searcher, dims=5).search_vectors(both(queries), 10)
    assert np.allclose(found.scores, best(expected), atol=1e-5)


def test_int8_has_255_values_per_dimension_and_a_small_error(searched):
    searcher, vectors, queries = searched
    scales = np.abs(vectors).max(axis=0) / 127
    expected = queries @ (np.rint(vectors / scales) * scales).T
    found = TruncatedSearcher(searcher, int8=True).search_vectors(both(queries), 10)
    assert np.allclose(found.scores, best(expected), atol=1e-5)
    assert not np.allclose(found.scores, best(queries @ vectors.T), atol=1e-6)
    assert np.allclose(found.scores, best(queries @ vectors.T), atol=2e-2)


def test_truncations_are_named_and_never_larger(searched):
    assert list(make_truncated_searchers(searched[0], (8, 16, 64))) == ["int8", "first 8", "first 8, int8"]
    with pytest.raises(ConfigError, match="dims: given 17, expected 1 to 16"):
        TruncatedSearcher(searched[0], dims=17)
