"""Indexes that rank by Euclidean distance."""

from pathlib import Path

import numpy as np
import pytest

import bidr
from bidr.data.types import Document
from bidr.errors import ConfigError
from bidr.index.storage.manifest import L2_METRIC
from bidr.quantization.distance_codes import (
    add_query_component,
    make_distance_codebooks,
    make_inner_product_codebooks,
)
from bidr.quantization.pq_training import fit_pq

COUNT, DIM, K = 2_000, 24, 10
RANDOM = np.random.default_rng(0)
CENTRES = RANDOM.normal(size=(40, DIM)) * 3
# Norms differ widely: neither inner products nor cosines rank these vectors as distances do.
VECTORS = (CENTRES[RANDOM.integers(40, size=COUNT)] + RANDOM.normal(size=(COUNT, DIM))).astype(np.float32)
VECTORS *= RANDOM.uniform(0.3, 3, size=(COUNT, 1)).astype(np.float32)
QUERIES = VECTORS[RANDOM.integers(COUNT, size=50)] + RANDOM.normal(size=(50, DIM)).astype(np.float32) / 2
DISTANCES = ((QUERIES[:, None].astype(np.float64) - VECTORS[None]) ** 2).sum(axis=2)
NEAREST = np.argsort(DISTANCES, axis=1)[:, :K]


def measure_recall(rows: np.ndarray) -> float:
    return float(np.mean([len(set(row) & set(nearest)) / K for row, nearest in zip(rows, NEAREST, strict=True)]))


def build(folder: Path, **options: object) -> Path:
    return bidr.build_vectors(VECTORS, out=folder, plain=bidr.PlainCodes(6, metric="l2"), **options)  # type: ignore[arg-type]


def test_codes_score_by_the_distance_to_the_decoded_document() -> None:
    plain = fit_pq(VECTORS, 12, 16)
    codebooks = make_distance_codebooks(plain)
    codes = codebooks.encode(VECTORS)
    np.testing.assert_array_equal(codes, plain.encode(VECTORS))
    scores = codebooks.compute_scores(add_query_component(codebooks, QUERIES), codes)
    decoded = plain.decode(codes)
    distances = ((plain.rotate(QUERIES)[:, None] - decoded[None]) ** 2).sum(axis=2)
    halved = -distances / 2
    offsets = scores - halved  # half of the squared norm of the query, and a constant
    np.testing.assert_allclose(offsets, np.broadcast_to(offsets[:, :1], offsets.shape), atol=1e-2)
    original = make_inner_product_codebooks(codebooks)
    np.testing.assert_array_equal(original.rotation, plain.rotation)
    np.testing.assert_array_equal(original.centroids, plain.centroids)
    assert codebooks.are_of_distances
    assert not plain.are_of_distances


@pytest.mark.parametrize("engine", ["flat", "ivf", "graph"])
def test_every_engine_ranks_by_distance_at_full_depth(engine: str, tmp_path: Path) -> None:
    with bidr.open_index(build(tmp_path, engine=engine), ef=COUNT) as index:
        ranking = index.search_vectors(QUERIES, k=K, candidates=COUNT)
        assert measure_recall(ranking.rows) >= 0.99
        assert index.reader.describe()["metric"] == "L2"
        expected = -np.take_along_axis(DISTANCES, ranking.rows, axis=1)
        np.testing.assert_allclose(ranking.scores, expected, rtol=2e-2, atol=0.05)
        assert measure_recall(index.search_vectors(QUERIES, k=K, candidates=200).rows) >= 0.9


def test_int8_and_truncated_vectors_rank_by_distance(tmp_path: Path) -> None:
    with bidr.open_index(build(tmp_path / "int8", stored="int8")) as index:
        assert measure_recall(index.search_vectors(QUERIES, k=K, candidates=COUNT).rows) >= 0.9
    with bidr.open_index(build(tmp_path / "dims", dims=12)) as index:
        rows = index.search_vectors(QUERIES, k=1, candidates=COUNT).rows[:, 0]
    leading = ((QUERIES[:, None, :12] - VECTORS[None, :, :12]) ** 2).sum(axis=2)
    assert np.mean(rows == leading.argmin(axis=1)) >= 0.98


def test_an_index_of_distances_is_updated_compacted_and_repaired(tmp_path: Path) -> None:
    build(tmp_path / "index")
    with bidr.open_writer(tmp_path / "index") as writer:
        writer.add([Document(f"new{row}", "", "") for row in range(20)], QUERIES[:20])
        with bidr.open_index(tmp_path / "index") as index:
            hits = [result[0] for result in index.load_results(index.search_vectors(QUERIES[:20], k=1))]
        assert [hit.id for hit in hits] == [f"new{row}" for row in range(20)]
        assert all(abs(hit.score) < 0.1 for hit in hits)
    bidr.compact(tmp_path / "index")
    with bidr.open_index(tmp_path / "index") as index:
        assert index.reader.latest().manifest.metric == L2_METRIC
        result = index.load_results(index.search_vectors(QUERIES[3], k=1))[0]
        assert result[0].id == "new3"


def test_recall_is_tuned_by_distances(tmp_path: Path) -> None:
    from bidr.planning.tuning import tune_on_index

    np.save(tmp_path / "queries.npy", QUERIES)
    result = tune_on_index(build(tmp_path / "index"), tmp_path / "queries.npy", 0.95, K)
    assert result.cheapest is not None
    assert result.cheapest.candidates < COUNT


def test_learned_codes_and_unknown_metrics_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"metric: given 'l2', expected cosine or ip.*PlainCodes\(metric='l2'\)"):
        bidr.train_vectors(VECTORS, None, tmp_path / "model", metric="l2")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"metric: given 'euclid', expected one of cosine, ip, l2"):
        bidr.build_vectors(VECTORS, out=tmp_path / "index", metric="euclid")  # type: ignore[arg-type]
    assert not (tmp_path / "index").exists()


def test_more_like_a_document_ranks_by_distance(tmp_path: Path) -> None:
    nearest = np.argsort(((VECTORS - VECTORS[7]).astype(np.float64) ** 2).sum(axis=1))[1 : K + 1]
    for options in ({}, {"dims": DIM - 1}):
        with bidr.open_index(build(tmp_path / str(len(options)), **options)) as index:
            hits = [int(hit.id) for hit in index.more_like("7", K, COUNT)]
            assert len(set(hits) & set(nearest)) >= K - 1


def test_suggested_candidates_reach_the_recall_of_distances(tmp_path: Path) -> None:
    with bidr.open_index(build(tmp_path)) as index:
        suggestion = index.suggest_candidates(0.95, K, QUERIES)
        assert suggestion.recall >= 0.95
        ranking = index.search_vectors(QUERIES, k=K, candidates=suggestion.candidates)
        assert measure_recall(ranking.rows) == pytest.approx(suggestion.recall, abs=0.02)
