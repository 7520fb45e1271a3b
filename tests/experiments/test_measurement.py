"""Sweeps: one deep search stands for all shallower ones; inner products as distances."""

from pathlib import Path

import numpy as np
import pytest

from bidr.data.positives import Positives
from bidr.errors import MissingExtraError
from bidr.experiments.reproduce import measurement
from bidr.experiments.reproduce.measurement import (
    JudgedTexts,
    build_vector_index,
    list_sizes,
    measure_ranks,
    measure_sizes,
    rank_at_depth,
    read_vectors,
    to_distance_space,
)
from bidr.experiments.reproduce.row_files import rank_relevant
from bidr.pipeline.build import build_vectors
from bidr.pipeline.open import open_index
from bidr.quantization.opq_config import PlainCodes
from bidr.search.evaluation import QUERIES_PER_BATCH
from bidr.search.types import QueryVectors, RankedBatch, Timings


def test_ranks_at_a_depth_are_those_of_a_search_that_reads_so_many_candidates() -> None:
    random = np.random.default_rng(0)
    candidates = np.array([random.permutation(60)[:40] for _ in range(50)])
    scores = random.random((50, 60))
    pairs = Positives(np.arange(0, 101, 2), random.integers(0, 60, 100))
    order = np.argsort(-np.take_along_axis(scores, candidates, axis=1), axis=1)
    rows, candidate_ranks = np.take_along_axis(candidates, order, axis=1), order + 1
    for depth in (1, 7, 25, 40):
        shallow = candidates[:, :depth]
        best = np.argsort(-np.take_along_axis(scores, shallow, axis=1), axis=1)
        expected = rank_relevant(np.take_along_axis(shallow, best, axis=1), pairs)
        assert rank_at_depth(rank_relevant(rows, pairs), candidate_ranks, pairs, depth).tolist() == expected.tolist()


def test_the_nearest_by_distance_have_the_largest_inner_products() -> None:
    random = np.random.default_rng(1)
    vectors = (random.normal(size=(300, 8)) * random.uniform(1, 9, (300, 1))).astype(np.float32)
    queries = random.normal(size=(20, 8)).astype(np.float32)
    points, lookups = to_distance_space(vectors, queries)
    distances = ((points[None] - lookups[:, None]) ** 2).sum(axis=2)
    assert (distances.argmin(axis=1) == (queries @ vectors.T).argmax(axis=1)).all()
    assert ((vectors[None] - queries[:, None]) ** 2).sum(axis=2).argmin(axis=1).tolist() != distances.argmin(
        axis=1
    ).tolist()
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert to_distance_space(unit, queries)[0] is unit


def test_full_vectors_are_found_with_faiss_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.random.default_rng(2).normal(size=(400, 16)).astype(np.float32)
    exact = (-(vectors @ vectors[:5].T)).argsort(axis=0)[:3].T
    index = build_vector_index(vectors)
    assert "HNSW" in index.note
    assert index.search(vectors[:5], 3).tolist() == exact.tolist()
    assert index.ram["links"] > 0

    def fail() -> None:
        raise MissingExtraError("this index", "faiss", "faiss")

    monkeypatch.setattr(measurement, "load_faiss", fail)
    index = build_vector_index(vectors)
    assert "faiss is not installed" in index.note
    assert index.search(vectors[:5], 3).tolist() == exact.tolist()


def test_sizes_grow_to_the_corpus_and_hold_the_relevant_documents() -> None:
    assert list_sizes(192_990, 2_000) == [12_061, 48_247, 192_990]
    assert list_sizes(1_200, 100) == [1_200]
    assert all(size >= 4_000 for size in list_sizes(192_990, 2_000))


def test_a_part_of_the_corpus_is_searched_as_if_it_were_all(tmp_path: Path) -> None:
    vectors = np.random.default_rng(3).normal(size=(5_000, 16)).astype(np.float32)
    build_vectors(vectors, None, tmp_path / "index", plain=PlainCodes(2))
    queries = vectors[:40] + 0.8 * np.random.default_rng(4).normal(size=(40, 16)).astype(np.float32)
    texts = [str(number) for number in range(40)]
    judged = JudgedTexts(texts, Positives(np.arange(41), np.arange(40)))
    with open_index(tmp_path / "index") as searcher:
        searcher.encoder = searcher.make_lookup_encoder(queries, {text: row for row, text in enumerate(texts)})
        curve = measure_sizes(searcher, judged, 200, "cpu")
        ranks = measure_ranks(searcher, judged, 200)
        assert np.allclose(read_vectors(searcher)[7], vectors[7] / np.linalg.norm(vectors[7]), atol=1e-3)
    assert [point["documents"] for point in curve] == [1_250, 5_000]
    assert curve[1]["R@10"] == ranks["answers"].compute_recall(10)
    assert curve[1]["candidates' R@100"] == ranks["candidates"].compute_recall(100)
    assert curve[0]["candidates' R@100"] > curve[1]["candidates' R@100"], "fewer documents are in the way"


def test_the_words_of_a_query_reach_the_fusion_that_a_model_recommends() -> None:
    searched: list[tuple[str, ...]] = []

    class RecordingSearcher:
        def encode(self, texts: list[str]) -> tuple[QueryVectors, float]:
            return QueryVectors(np.zeros((len(texts), 2), np.float32), np.zeros((len(texts), 2), np.float32)), 0.0

        def search_vectors(self, queries: QueryVectors, k: int, candidates: int, *, words: list[str]) -> RankedBatch:
            searched.append(tuple(words))
            rows = np.tile(np.arange(k), (len(words), 1))
            return RankedBatch(rows, rows, rows, rows, rows, Timings(), None)

    texts = [f"query {number}" for number in range(QUERIES_PER_BATCH + 3)]
    judged = JudgedTexts(texts, Positives(np.arange(len(texts) + 1), np.full(len(texts), 4)))
    ranks = measure_ranks(RecordingSearcher(), judged, 10)  # type: ignore[arg-type]
    assert [text for batch in searched for text in batch] == texts
    assert ranks["answers"].ranks.tolist() == [5] * len(texts)
