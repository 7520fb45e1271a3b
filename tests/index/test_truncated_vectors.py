"""Truncated (Matryoshka) vectors: an index stores and ranks by the first dimensions; input vectors are complete."""

import numpy as np
import pytest
from sample_index import clustered, random_codebooks

import bidr
from bidr.data.types import Document
from bidr.data.vector_source import truncate
from bidr.errors import ConfigError, DataError, IndexFolderError
from bidr.index.builder.build import build_index
from bidr.index.builder.journal import WorkFolder
from bidr.index.live.live_reader import LiveIndex
from bidr.index.reader import IndexReader
from bidr.index.storage.manifest import Manifest, parse_manifest, render_manifest
from bidr.index.vectors.row_layout import encode_rows
from bidr.planning.tuning import tune_on_index
from bidr.quantization.opq_config import PlainCodes
from bidr.search.searcher import Searcher
from bidr.search.truncated_searcher import TruncatedSearcher
from bidr.search.types import QueryVectors

DIM, DIMS, COUNT = 32, 8, 500
PLAIN = PlainCodes(bytes_per_doc=4, codewords=16)


def truncate_rows(vectors: np.ndarray, dims: int = DIMS) -> np.ndarray:
    part = vectors[:, :dims].astype(np.float64)
    return part / np.linalg.norm(part, axis=1, keepdims=True)


def find_exact(documents: np.ndarray, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    scores = queries @ documents.T
    rows = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return rows, np.take_along_axis(scores, rows, axis=1)


def store_and_restore(kind: str, rows: np.ndarray) -> np.ndarray:
    stored = encode_rows(kind, rows.astype(np.float32))
    values = stored["vector"] * stored["scale"][:, None] if kind == "int8" else stored
    return values.astype(np.float64)


@pytest.mark.parametrize("kind", ["fp16", "int8"])
@pytest.mark.parametrize("engine", ["scan", "lists"])
def test_full_depth_equals_exact_search_with_truncated_vectors(tmp_path, kind, engine):
    vectors, queries = 3 * clustered(COUNT, DIM, 1), 5 * clustered(9, DIM, 2)
    bidr.build_vectors(vectors, None, tmp_path / "i", plain=PLAIN, dims=DIMS, stored=kind, engine=engine)
    with bidr.open_index(tmp_path / "i") as index:
        result = index.search_vectors(queries, 10, COUNT)
        facts = index.reader.describe()
    rows, scores = find_exact(store_and_restore(kind, truncate_rows(vectors)), truncate_rows(queries), 10)
    np.testing.assert_allclose(result.scores, scores, atol=2e-6)
    np.testing.assert_array_equal(result.rows, rows)
    assert (rows != find_exact(vectors, queries, 10)[0]).any()
    assert facts["dimensions"] == {"vectors": DIM, "stored": DIMS, "codes": DIM}
    stored = np.load(tmp_path / "i" / facts["generation"] / "vectors.npy")
    assert (stored["vector"] if kind == "int8" else stored).shape == (COUNT, DIMS)


def test_codes_are_of_complete_vectors(tmp_path):
    vectors, queries = clustered(COUNT, DIM, 1), clustered(9, DIM, 2)
    for name, dims in (("complete", None), ("truncated", DIMS)):
        bidr.build_vectors(vectors, None, tmp_path / name, plain=PLAIN, dims=dims)
    results = []
    for name in ("complete", "truncated"):
        with bidr.open_index(tmp_path / name) as index:
            results.append(index.search_vectors(queries, 10, codes_only=True))
    np.testing.assert_array_equal(results[0].rows, results[1].rows)
    np.testing.assert_array_equal(results[0].scores, results[1].scores)


def test_inner_products_are_truncated_and_not_scaled(tmp_path):
    vectors, queries = 3 * clustered(COUNT, DIM, 1), clustered(9, DIM, 2)
    bidr.build_vectors(vectors, None, tmp_path / "i", plain=PLAIN._replace(metric="ip"), dims=DIMS)
    with bidr.open_index(tmp_path / "i") as index:
        result = index.search_vectors(queries, 10, COUNT)
    scores = find_exact(store_and_restore("fp16", vectors[:, :DIMS]), queries[:, :DIMS], 10)[1]
    np.testing.assert_allclose(result.scores, scores, atol=1e-5)


@pytest.mark.parametrize("kind", ["fp16", "int8"])
def test_added_vectors_are_truncated_and_stay_so(tmp_path, kind):
    vectors, added, queries = clustered(300, DIM, 1), 2 * clustered(40, DIM, 3), clustered(9, DIM, 2)
    bidr.build_vectors(vectors, None, tmp_path / "i", plain=PLAIN, dims=DIMS, stored=kind)
    documents = [Document(f"new-{row}", "", "") for row in range(40)]
    rows, scores = find_exact(truncate_rows(np.concatenate([vectors, added])), truncate_rows(queries), 10)
    names = [[str(row) if row < 300 else f"new-{row - 300}" for row in best] for best in rows.tolist()]
    exact = {"atol": 0.02 if kind == "int8" else 1e-3}

    def check(folder):
        with bidr.open_index(folder) as index:
            hits = index.load_results(index.search_vectors(queries, 10, 340))
            index.reader.verify()
            assert index.reader.describe()["dimensions"]["stored"] == DIMS
            np.testing.assert_allclose([[hit.score for hit in best] for best in hits], scores, **exact)
            if kind == "fp16":
                assert [hit.id for best in hits for hit in best][:30] == [name for best in names for name in best][:30]

    with bidr.open_writer(tmp_path / "i") as writer:
        writer.add(documents, added)
        check(tmp_path / "i")
        with pytest.raises(DataError, match=rf"given shape \(1, {DIMS}\), expected \(1, {DIM}\)"):
            writer.add([Document("x", "", "")], added[:1, :DIMS])
        writer.flush()
        check(tmp_path / "i")
        bidr.snapshot(tmp_path / "i", tmp_path / "copy")
        writer.compact()
    check(tmp_path / "i")
    check(tmp_path / "copy")


def test_drift_is_measured_with_complete_vectors(tmp_path):
    vectors = clustered(600, DIM, 1)
    other = np.random.default_rng(0).standard_normal((300, DIM)).astype(np.float32)
    drifts = {}
    for name, added, dims in (("same", vectors[:300], DIMS), ("other", other, DIMS), ("complete", other, None)):
        bidr.build_vectors(vectors, None, tmp_path / name, plain=PLAIN, dims=dims)
        with bidr.open_writer(tmp_path / name, warn=lambda text: None) as writer:
            writer.add([Document(f"new-{row}", "", "") for row in range(300)], added)
            assert writer.drift is not None
            drifts[name] = writer.drift
            writer.compact()
            assert (writer.view.manifest.code_error is None) == (dims is None)
    assert drifts["same"].error == pytest.approx(drifts["same"].base_error, rel=0.1)
    assert drifts["other"].error > 1.2 * drifts["other"].base_error
    assert drifts["other"].base_error == pytest.approx(drifts["complete"].base_error, rel=0.02)


def test_drift_is_unknown_in_an_index_of_arrays(tmp_path):
    """Additions continue beyond the number at which their errors would be compared."""
    vectors, books = clustered(300, DIM, 1), random_codebooks(DIM, 4)
    build_index(tmp_path, codebooks=books, codes=books.encode(vectors), vectors=vectors, dims=DIMS, unit=True)
    with bidr.open_writer(tmp_path) as writer:
        writer.add([Document(f"new-{row}", "", "") for row in range(300)], vectors)
        assert writer.drift is not None
        assert writer.drift.warning is None
        assert writer.view.count == 600


@pytest.mark.parametrize("dims", [0, -1, DIM + 1, 2.5, True])
def test_invalid_dims_are_rejected(tmp_path, dims):
    with pytest.raises(ConfigError, match=rf"dims: given {dims}, expected a whole number from 1 to {DIM}"):
        bidr.build_vectors(clustered(300, DIM), None, tmp_path / "i", plain=PLAIN, dims=dims)
    assert not (tmp_path / "i").exists()


def test_all_dims_equal_complete_vectors(tmp_path):
    bidr.build_vectors(clustered(300, DIM), None, tmp_path, plain=PLAIN, dims=DIM)
    with IndexReader.open(tmp_path) as reader:
        assert (reader.manifest.dims, reader.manifest.stored_dim) == (None, DIM)
        # Omitted so that older versions can read the manifest.
        assert b'"dims"' not in render_manifest(reader.manifest)
        assert b'"code_error"' not in render_manifest(reader.manifest)


def test_the_manifest_round_trips(tmp_path):
    bidr.build_vectors(clustered(300, DIM), None, tmp_path, plain=PLAIN, dims=DIMS)
    with IndexReader.open(tmp_path) as reader:
        manifest = reader.manifest
    assert (manifest.dim, manifest.dims, manifest.unit) == (DIM, DIMS, True)
    assert parse_manifest(render_manifest(manifest), tmp_path) == manifest
    for invalid in (0, DIM, "x"):
        changed = Manifest(**{**manifest.__dict__, "dims": invalid})
        with pytest.raises(IndexFolderError):
            parse_manifest(render_manifest(changed), tmp_path)


def test_a_resumed_build_does_not_reuse_vectors_truncated_differently(tmp_path):
    vectors, books = clustered(300, DIM, 1), random_codebooks(DIM, 4)
    for dims in (4, DIMS, None):
        (tmp_path / "work").mkdir(exist_ok=True)
        arrays = {"codebooks": books, "codes": books.encode(vectors), "vectors": vectors}
        build_index(tmp_path / "i", **arrays, dims=dims, work=WorkFolder(tmp_path / "work"), engine="scan")
        with IndexReader.open(tmp_path / "i") as reader:
            assert reader.vectors.dim == (dims or DIM)


def test_tuning_and_truncation_use_the_stored_vectors(tmp_path):
    vectors, queries = clustered(COUNT, DIM, 1), clustered(20, DIM, 2)
    bidr.build_vectors(vectors, None, tmp_path / "i", plain=PLAIN, dims=DIMS)
    np.save(tmp_path / "q.npy", queries)
    assert tune_on_index(tmp_path / "i", tmp_path / "q.npy", 0.99, 10).settings[0].recall >= 0.99
    searcher = Searcher(LiveIndex.open(tmp_path / "i"))
    with pytest.raises(ConfigError, match=f"expected 1 to {DIMS}"):
        TruncatedSearcher(searcher, dims=DIMS + 1)
    result = TruncatedSearcher(searcher, dims=4).search_vectors(QueryVectors(queries, queries), 10, COUNT)
    np.testing.assert_allclose(
        result.scores, find_exact(truncate_rows(vectors, 4), truncate_rows(queries, 4), 10)[1], atol=2e-3
    )


def test_tiny_numbers_are_normalized_without_underflow():
    rows = truncate(np.array([[3e-30, 4e-30, 1], [0, 0, 1]], dtype=np.float32), 2, unit=True)
    np.testing.assert_allclose(rows, [[0.6, 0.8], [0, 0]], rtol=1e-6)
