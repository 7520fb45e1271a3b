import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_codebooks import random_codebooks

from bidr.quantization import exact_search as exact
from bidr.quantization.exact_search import search_codes, search_vectors


@pytest.fixture(autouse=True, scope="module")
def small_blocks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "QUERY_ROWS", 3)
        patch.setattr(exact, "DOCUMENT_ROWS", 5)
        yield


def whole_numbers(random: np.random.Generator, rows: int, dim: int) -> np.ndarray:
    """Small whole numbers: sums are exact, so scores can be compared with ==."""
    return random.integers(-9, 10, size=(rows, dim)).astype(np.float32)


def check(found: exact.TopK, scores: np.ndarray, k: int) -> None:
    """The k largest scores in order, and each row has the score that is said of it."""
    k = min(k, scores.shape[1])
    assert np.array_equal(found.scores, -np.sort(-scores, axis=1)[:, :k])
    assert np.array_equal(np.take_along_axis(scores, found.rows, axis=1), found.scores)
    assert all(len(set(rows)) == k for rows in found.rows.tolist())


@given(st.integers(0, 2**32 - 1), st.integers(0, 8), st.integers(1, 23), st.integers(1, 25))
@settings(max_examples=60, deadline=None)
def test_exact_search_equals_a_full_sort(seed, queries, documents, k):
    random = np.random.default_rng(seed)
    asked, vectors = whole_numbers(random, queries, 4), whole_numbers(random, documents, 4)
    check(search_vectors(asked, vectors, k), asked @ vectors.T, k)
    check(search_vectors(asked, vectors.astype(np.float16), k), asked @ vectors.T, k)


@given(st.integers(0, 2**32 - 1), st.integers(0, 8), st.integers(1, 23), st.integers(1, 25), st.sampled_from([16, 256]))
@settings(max_examples=60, deadline=None)
def test_code_search_equals_a_full_sort_of_scores(seed, queries, documents, k, words):
    random = np.random.default_rng(seed)
    books = random_codebooks(6, 3, words)._replace(rotation=np.eye(6, dtype=np.float32)[::-1].copy())
    books = books._replace(centroids=np.round(books.centroids * 4))
    asked = whole_numbers(random, queries, 6)
    codes = random.integers(words, size=(documents, 3)).astype(np.uint8)
    check(search_codes(asked, books, codes, k), books.compute_scores(asked, codes), k)


def test_the_rotation_is_applied_to_queries():
    random = np.random.default_rng(0)
    books = random_codebooks(8, 2, 16)
    asked, codes = random.standard_normal((5, 8)).astype(np.float32), random.integers(16, size=(40, 2)).astype(np.uint8)
    scores = books.compute_scores(asked, codes)
    assert np.allclose(search_codes(asked, books, codes, 7).scores, -np.sort(-scores, axis=1)[:, :7], atol=1e-5)


class OnDisk:
    """Rows of which only a block at a time may be asked for."""

    def __init__(self, rows: np.ndarray) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, part: slice) -> np.ndarray:
        block = self.rows[part]
        assert len(block) <= exact.DOCUMENT_ROWS
        return block


def test_memory_does_not_grow_with_the_corpus():
    """It may be larger than memory."""
    random = np.random.default_rng(0)
    asked, vectors = whole_numbers(random, 4, 6), whole_numbers(random, 23, 6)
    check(search_vectors(asked, OnDisk(vectors.astype(np.float16)), 9), asked @ vectors.T, 9)
    books = random_codebooks(6, 3, 16)
    codes = random.integers(16, size=(23, 3)).astype(np.uint8)
    found = search_codes(asked, books, OnDisk(codes), 9)
    assert np.array_equal(found.rows, search_codes(asked, books, codes, 9).rows)
