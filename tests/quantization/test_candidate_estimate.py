"""Estimated candidates grow with the corpus, shrink with the codes, and are the same every time."""

import numpy as np
import pytest

from bidr.data.vector_source import VectorSource
from bidr.quantization import candidate_estimate
from bidr.quantization.candidate_estimate import draw_sample, estimate_candidates
from bidr.quantization.distance_codes import add_query_component
from bidr.quantization.exact_search import search_codes, search_vectors
from bidr.quantization.opq_config import PlainCodes
from bidr.quantization.pq_training import fit_pq
from bidr.utils.array_types import Floats

DIM, COUNT = 32, 6_000


@pytest.fixture(scope="module")
def rows() -> VectorSource:
    random = np.random.default_rng(0)
    centers = random.standard_normal((60, DIM))
    scale = np.arange(1, DIM + 1) ** -0.3
    vectors = (centers[random.integers(0, 60, COUNT)] + random.standard_normal((COUNT, DIM))) * scale
    return VectorSource(vectors.astype(np.float32), "vectors", "cosine")


@pytest.fixture(autouse=True)
def small_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidate_estimate, "SAMPLE_ROWS", 3_000)


def test_longer_codes_need_fewer_candidates_and_more_documents_more(rows: VectorSource) -> None:
    sample = draw_sample(rows, 10)
    sizes = [estimate_candidates(sample, COUNT, size).candidates for size in (2, 4, 8)]
    assert sizes[0] > sizes[1] > sizes[2] >= 10
    few, many = (estimate_candidates(sample, count, 4) for count in (3_000, 100_000))
    assert few.sampled == many.sampled == few.candidates < many.candidates <= 100_000
    assert estimate_candidates(sample, 3_000, 4, recall=0.9).candidates < few.candidates


def test_the_same_vectors_give_the_same_estimate(rows: VectorSource) -> None:
    assert estimate_candidates(draw_sample(rows, 10), COUNT, 4) == estimate_candidates(draw_sample(rows, 10), COUNT, 4)


def test_given_queries_need_about_as_many_candidates_as_estimated(rows: VectorSource) -> None:
    random = np.random.default_rng(1)
    vectors = rows[:]
    queries = vectors[:200] + 0.1 * random.standard_normal((200, DIM)).astype(np.float32)
    estimate = estimate_candidates(draw_sample(rows, 10, queries), COUNT, 4, recall=0.95)
    codebooks = fit_pq(vectors, 8, 16)
    exact = search_vectors(queries, vectors, 10).rows
    candidates = search_codes(queries, codebooks, codebooks.encode(vectors), estimate.candidates).rows
    recall = np.mean([np.isin(best, found).mean() for best, found in zip(exact, candidates, strict=True)])
    assert recall == pytest.approx(0.95, abs=0.03)


@pytest.mark.parametrize("dim", [DIM, 27])
def test_under_euclidean_distance_vectors_of_any_dimensions_need_as_many_candidates_as_estimated(dim: int) -> None:
    """The norms differ, so that inner products would rank other documents first."""
    random = np.random.default_rng(2)
    vectors = (random.standard_normal((COUNT, dim)) * random.uniform(0.5, 3, (COUNT, 1))).astype(np.float32)
    queries = vectors[:200] + 0.1 * random.standard_normal((200, dim)).astype(np.float32)
    rows = VectorSource(vectors, "vectors", "l2")
    estimate = estimate_candidates(draw_sample(rows, 10, queries), COUNT, 4, recall=0.95)
    assert estimate.candidates < COUNT / 3
    codebooks = PlainCodes(4, metric="l2").fit(rows)
    exact = search_vectors(*_add_norms(queries, vectors), 10).rows
    coded = search_codes(
        add_query_component(codebooks, queries), codebooks, codebooks.encode(vectors), estimate.candidates
    )
    recall = np.mean([np.isin(best, found).mean() for best, found in zip(exact, coded.rows, strict=True)])
    assert recall == pytest.approx(0.95, abs=0.04)


def _add_norms(queries: Floats, documents: Floats) -> tuple[Floats, Floats]:
    """Return vectors whose inner products rank by distance."""
    half_norms = -np.square(documents).sum(axis=1, keepdims=True) / 2
    return np.pad(queries, ((0, 0), (0, 1)), constant_values=1), np.hstack([documents, half_norms])
