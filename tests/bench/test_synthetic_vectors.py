"""Synthetic vectors depend on their row number alone, in any order and any parts."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
from synthetic_million import SyntheticVectors, find_clusters, write_file, write_parts

COUNT = 2_500


@pytest.fixture(scope="module")
def vectors() -> SyntheticVectors:
    documents = np.random.default_rng(0).standard_normal((640, 8)).astype(np.float32)
    documents /= np.linalg.norm(documents, axis=1, keepdims=True)
    return SyntheticVectors(documents, COUNT, clusters=find_clusters(documents))


def test_rows_are_the_same_in_any_order(vectors: SyntheticVectors) -> None:
    rows = np.array([2_400, 3, 700, 3])
    whole = vectors[:]
    assert whole.shape == (COUNT, 8)
    np.testing.assert_array_equal(vectors[rows], whole[rows])
    np.testing.assert_array_equal(vectors[1_000:1_010], whole[1_000:1_010])


def test_documents_come_first_and_the_others_are_new_unit_vectors(vectors: SyntheticVectors) -> None:
    whole = vectors[:].astype(np.float32)
    np.testing.assert_allclose(whole[:640], vectors.documents, atol=1e-3)
    np.testing.assert_allclose(np.linalg.norm(whole, axis=1), 1, atol=2e-3)
    assert len(np.unique(whole[640:], axis=0)) > 0.9 * (COUNT - 640)
    assert (whole[640:] @ vectors.documents.T).max(axis=1).mean() > 0.6, "near the documents they are made from"


def test_parts_are_made_once_and_may_be_removed(vectors: SyntheticVectors, tmp_path: Path) -> None:
    write_file(vectors, tmp_path / "whole.npy")
    parts = tmp_path / "parts"
    write_parts(vectors, parts, 1_000)
    joined = np.concatenate([np.load(path) for path in sorted(parts.glob("*.npy"))])
    np.testing.assert_array_equal(joined, np.load(tmp_path / "whole.npy"))
    first, second = parts / "part-00000.npy", parts / "part-00001.npy"
    first.unlink()
    first.with_suffix(".done").touch()
    second.unlink()
    write_parts(vectors, parts, 1_000)
    assert not first.exists()
    assert second.exists()
