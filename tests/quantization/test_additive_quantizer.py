"""Additive codes are what they say: sums of codewords, scored by an index as by hand, better than product codes."""

import numpy as np
import pytest
import torch

from bidr.errors import DataError
from bidr.index.builder.in_memory_engines import make_scan
from bidr.quantization.additive_quantizer import (
    AdditiveQuantizer,
    compute_query_metric,
    count_fit_steps,
    count_groups,
    fit_additive,
    to_additive,
)
from bidr.quantization.pq_training import fit_pq
from bidr.quantization.residual_quantizer import fit_residual_quantizer, search_nearest_sums, sum_codewords


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    random = np.random.default_rng(0)
    mixed = random.normal(size=(1_500, 24)) @ random.normal(size=(24, 24))
    return (mixed + 3).astype(np.float32)


def decoded(additive: AdditiveQuantizer, codes: np.ndarray) -> np.ndarray:
    each = len(additive.codewords) // additive.groups
    parts = [
        sum(additive.codewords[book][codes[:, book]] for book in range(first, first + each))
        for first in range(0, len(additive.codewords), each)
    ]
    return np.concatenate(parts, axis=1)


@pytest.mark.parametrize(("books", "words", "groups"), [(4, 256, 1), (4, 256, 2), (8, 16, 1), (8, 16, 2), (5, 16, 1)])
def test_an_index_scores_documents_by_the_sum_of_their_codewords(
    vectors: np.ndarray, books: int, words: int, groups: int
) -> None:
    additive = fit_additive(vectors, books, words, groups=groups)
    codes, queries = additive.encode(vectors), vectors[:20]
    scores, rows = make_scan(additive.to_codebooks(), codes).search(additive.adapt(queries), 50)
    by_hand = additive.adapt(queries) @ decoded(additive, codes).T
    np.testing.assert_allclose(scores, np.take_along_axis(by_hand, rows, axis=1), rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(scores, -np.sort(-by_hand, axis=1)[:, :50], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("books", "words"), [(4, 256), (8, 16)])
def test_reconstruction_is_better_than_product_codes_of_equal_size(vectors: np.ndarray, books: int, words: int) -> None:
    additive, product = fit_additive(vectors, books, words), fit_pq(vectors, books, words)
    own = np.square(additive.project(vectors) - decoded(additive, additive.encode(vectors))).sum(1).mean()
    other = np.square(product.rotate(vectors) - product.decode(product.encode(vectors))).sum(1).mean()
    assert own < 0.9 * other


@pytest.mark.parametrize(("books", "words", "factor"), [(8, 16, 0.93), (4, 256, 0.97)])
def test_books_are_refitted_jointly(
    monkeypatch: pytest.MonkeyPatch, vectors: np.ndarray, books: int, words: int, factor: float
) -> None:
    def error() -> float:
        additive = fit_additive(vectors, books, words)
        return float(np.square(additive.project(vectors) - decoded(additive, additive.encode(vectors))).sum(1).mean())

    together = error()
    monkeypatch.setattr("bidr.quantization.additive_quantizer.REFITS", {words: 0})
    assert together < factor * error()


@pytest.mark.parametrize("groups", [1, 2])
def test_a_query_metric_preserves_scores_and_lowers_their_error(vectors: np.ndarray, groups: int) -> None:
    random = np.random.default_rng(1)
    queries = (random.normal(size=(400, 5)) @ random.normal(size=(5, 24))).astype(np.float32)

    def measure_error(additive: AdditiveQuantizer) -> float:
        exact = queries @ (vectors - additive.centre).T
        np.testing.assert_allclose(additive.adapt(queries) @ additive.project(vectors).T, exact, rtol=0.02, atol=0.1)
        return float(np.square(additive.adapt(queries) @ decoded(additive, additive.encode(vectors)).T - exact).mean())

    plain, weighted = (
        measure_error(fit_additive(vectors, 4, groups=groups, metric=metric))
        for metric in (None, compute_query_metric(queries, 0.5))
    )
    assert weighted < 0.7 * plain


def test_a_query_metric_of_zero_queries_is_euclidean() -> None:
    metric = compute_query_metric(np.zeros((10, 4), dtype=np.float32), 0.5)
    np.testing.assert_allclose(metric.scale, np.eye(4), atol=1e-6)
    np.testing.assert_allclose(metric.inverse, np.eye(4), atol=1e-6)


def test_progress_counts_every_step_of_fitting(vectors: np.ndarray) -> None:
    steps: list[int] = []
    fit_additive(vectors, 4, advance=lambda count=1, note="": steps.append(count))
    assert sum(steps) == count_fit_steps(4, 256)


def test_codebooks_of_a_query_metric_restore_the_inverse_projection(vectors: np.ndarray) -> None:
    metric = compute_query_metric(vectors[:400] * np.linspace(0.1, 1, 24, dtype=np.float32), 0.5)
    additive = fit_additive(vectors, 4, metric=metric)
    restored = to_additive(additive.to_adapted_codebooks())
    np.testing.assert_allclose(restored.query, additive.query, rtol=1e-3, atol=1e-3)


def test_learned_codewords_do_not_change_codes(vectors: np.ndarray) -> None:
    additive = fit_additive(vectors, 4)
    moved = additive._replace(codewords=additive.codewords * 2 + 1)
    np.testing.assert_array_equal(additive.encode(vectors), moved.encode(vectors))


def test_books_are_grouped_evenly_above_the_limit() -> None:
    assert [count_groups(books) for books in (1, 8, 16, 32, 48, 96)] == [1, 1, 1, 2, 3, 6]
    assert [count_groups(books, 16) for books in (16, 32, 64)] == [1, 1, 2]


def test_wide_vectors_are_reduced_to_principal_axes(monkeypatch: pytest.MonkeyPatch, vectors: np.ndarray) -> None:
    monkeypatch.setattr("bidr.quantization.additive_quantizer.MAX_WIDTH", 10)
    flat = vectors @ np.linalg.qr(np.random.default_rng(1).normal(size=(24, 24)))[0].astype(np.float32)
    flat[:, 10:] = 0
    additive = fit_additive(flat, 4)
    assert additive.document.shape == (10, 24)
    scores = additive.adapt(flat[:5]) @ additive.project(flat).T
    np.testing.assert_allclose(scores, flat[:5] @ (flat - additive.centre).T, rtol=1e-3, atol=1e-2)


def test_fewer_vectors_than_codewords_are_refused(vectors: np.ndarray) -> None:
    with pytest.raises(DataError, match="at least 256 vectors: given 200"):
        fit_additive(vectors[:200], 4)


def test_a_wide_beam_finds_the_optimum():
    random = torch.Generator().manual_seed(0)
    words, vectors = torch.randn(3, 5, 4, generator=random), torch.randn(20, 4, generator=random)
    every = torch.cartesian_prod(*[torch.arange(5)] * 3)
    nearest = every[torch.cdist(vectors, sum_codewords(words, every)).argmin(1)]
    assert torch.equal(search_nearest_sums(vectors, words, beam=125), nearest)


def test_torch_reconstructs_as_well_as_faiss():
    vectors = np.random.default_rng(0).standard_normal((3_000, 16)).astype(np.float32) * np.linspace(0.1, 1, 16)
    faiss = fit_additive(vectors.astype(np.float32), 4)
    placed = torch.tensor(faiss.project(vectors.astype(np.float32)))

    def error(words: torch.Tensor) -> float:
        return float((placed - sum_codewords(words, search_nearest_sums(placed, words, 8))).square().sum(1).mean())

    assert error(fit_residual_quantizer(placed, 4, 256)) < 1.03 * error(torch.tensor(faiss.codewords))
    codes = faiss.encode(vectors[:500].astype(np.float32))
    same = faiss.encode_on(vectors[:500].astype(np.float32), torch.device("cpu")) == codes
    assert same.mean() > 0.95, "both are the same beam search, but for ties and rounding"
