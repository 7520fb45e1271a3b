"""An index that stores and ranks by the first numbers of its vectors; users give and ask whole ones."""

import numpy as np
import pytest
from sample_index import clustered, random_codebooks

import bidr
from bidr.data.types import Document
from bidr.data.vector_source import truncate
from bidr.errors import ConfigError, DataError, IndexFolderError
from bidr.index.builder.build import build_index
from bidr.index.builder.journal import WorkFolder
from bidr.index.live.live_index import LiveIndex
from bidr.index.reader import IndexReader
from bidr.index.storage.manifest import Manifest, parse, render
from bidr.index.vectors.row_layout import encode_rows
from bidr.planning.tuning import tune_on_index
from bidr.quantization.opq import PlainCodes
from bidr.search.searcher import Searcher
from bidr.search.truncation import TruncatedSearcher
from bidr.search.types import QueryVectors

DIM, DIMS, COUNT = 32, 8, 500
PLAIN = PlainCodes(bytes_per_doc=4, codewords=16)


def first(vectors: np.ndarray, dims: int = DIMS) -> np.ndarray:
    part = vectors[:, :dims].astype(np.float64)
    return part / np.linalg.norm(part, axis=1, keepdims=True)


def best(documents: np.ndarray, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    scores = queries @ documents.T
    rows = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return rows, np.take_along_axis(scores, rows, axis=1)


def restored(kind: str, rows: np.ndarray) -> np.ndarray:
    stored = encode_rows(kind, rows.astype(np.float32))
    whole = stored["vector"] * stored["scale"][:, None] if kind == "int8" else stored
    return whole.astype(np.float64)


@pytest.mark.parametrize("kind", ["fp16", "int8"])
@pytest.mark.parametrize("engine", ["scan", "lists"])
def test_at_full_depth_it_is_exact_search_by_cut_vectors(tmp_path, kind, engine):
    vectors, queries = 3 * clustered(COUNT, DIM, 1), 5 * clustered(9, DIM, 2)
    bidr.build_vectors(vectors, None, tmp_path / "i", plain=PLAIN, dims=DIMS, stored=kind, engine=engine)
    with bidr.open_index(tmp_path / "i") as index:
        found = index.search_vectors(queries, 10, COUNT)
        about = index.reader.describe()
    rows, scores = best(restored(kind, first(vectors)), first(queries), 10)
    np.testing.assert_allclose(found.scores, scores, atol=2e-6)
    np.testing.assert_array_equal(found.rows, rows)
    assert (rows != best(vectors, queries, 10)[0]).any()
    assert about["dimensions"] == {"vectors": DIM, "stored": DIMS, "codes": DIM}
    stored = np.load(tmp_path / "i" / about["generation"] / "vectors.npy")
    assert (stored["vector"] if kind == "int8" else stored).shape == (COUNT, DIMS)


def test_codes_are_of_whole_vectors(tmp_path):
    vectors, queries = clustered(COUNT, DIM, 1), clustered(9, DIM, 2)
    for name, dims in (("whole", None), ("cut", DIMS)):
        bidr.build_vectors(vectors, None, tmp_path / name, plain=PLAIN, dims=dims)
    found = []
    for name in ("whole", "cut"):
        with bidr.open_index(tmp_path / name) as index:
            found.append(index.search_vectors(queries, 10, codes_only=True))
    np.testing.assert_array_equal(found[0].rows, found[1].rows)
    np.testing.assert_array_equal(found[0].scores, found[1].scores)


def test_inner_products_are_cut_and_not_scaled(tmp_path):
    vectors, queries = 3 * clustered(COUNT, DIM, 1), clustered(9, DIM, 2)
    bidr.build_vectors(vectors, None, tmp_path / "i", plain=PLAIN._replace(metric="ip"), dims=DIMS)
    with bidr.open_index(tmp_path / "i") as index:
        found = index.search_vectors(queries, 10, COUNT)
    scores = best(restored("fp16", vectors[:, :DIMS]), queries[:, :DIMS], 10)[1]
    np.testing.assert_allclose(found.scores, scores, atol=1e-5)


@pytest.mark.parametrize("kind", ["fp16", "int8"])
def test_what_is_added_is_cut_and_stays_so(tmp_path, kind):
    vectors, added, queries = clustered(300, DIM, 1), 2 * clustered(40, DIM, 3), clustered(9, DIM, 2)
    bidr.build_vectors(vectors, None, tmp_path / "i", plain=PLAIN, dims=DIMS, stored=kind)
    documents = [Document(f"new-{row}", "", "") for row in range(40)]
    rows, scores = best(first(np.concatenate([vectors, added])), first(queries), 10)
    names = [[str(row) if row < 300 else f"new-{row - 300}" for row in near] for near in rows.tolist()]
    exact = {"atol": 0.02 if kind == "int8" else 1e-3}

    def check(folder):
        with bidr.open_index(folder) as index:
            found = index.answers(index.search_vectors(queries, 10, 340))
            index.reader.verify()
            assert index.reader.describe()["dimensions"]["stored"] == DIMS
            np.testing.assert_allclose([[one.score for one in near] for near in found], scores, **exact)
            if kind == "fp16":
                assert [one.id for near in found for one in near][:30] == [name for near in names for name in near][:30]

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


def test_drift_is_told_by_whole_vectors(tmp_path):
    vectors = clustered(600, DIM, 1)
    other = np.random.default_rng(0).standard_normal((300, DIM)).astype(np.float32)
    told = {}
    for name, given, dims in (("same", vectors[:300], DIMS), ("other", other, DIMS), ("whole", other, None)):
        bidr.build_vectors(vectors, None, tmp_path / name, plain=PLAIN, dims=dims)
        with bidr.open_writer(tmp_path / name, warn=lambda said: None) as writer:
            writer.add([Document(f"new-{row}", "", "") for row in range(300)], given)
            assert writer.drift is not None
            told[name] = writer.drift
            writer.compact()
            assert (writer.view.manifest.code_error is None) == (dims is None)
    assert told["same"].error == pytest.approx(told["same"].base_error, rel=0.1)
    assert told["other"].error > 1.2 * told["other"].base_error
    assert told["other"].base_error == pytest.approx(told["whole"].base_error, rel=0.02)


def test_nobody_looked_at_the_whole_vectors(tmp_path):
    """An index of arrays alone: additions go on past the point where their errors would be compared."""
    vectors, books = clustered(300, DIM, 1), random_codebooks(DIM, 4)
    build_index(tmp_path, codebooks=books, codes=books.encode(vectors), vectors=vectors, dims=DIMS, unit=True)
    with bidr.open_writer(tmp_path) as writer:
        writer.add([Document(f"new-{row}", "", "") for row in range(300)], vectors)
        assert writer.drift is not None
        assert writer.drift.warning is None
        assert writer.view.count == 600


@pytest.mark.parametrize("dims", [0, -1, DIM + 1, 2.5, True])
def test_dims_that_vectors_have_not(tmp_path, dims):
    with pytest.raises(ConfigError, match=rf"dims: given {dims}, expected a whole number from 1 to {DIM}"):
        bidr.build_vectors(clustered(300, DIM), None, tmp_path / "i", plain=PLAIN, dims=dims)
    assert not (tmp_path / "i").exists()


def test_all_dims_are_whole_vectors(tmp_path):
    bidr.build_vectors(clustered(300, DIM), None, tmp_path, plain=PLAIN, dims=DIM)
    with IndexReader.open(tmp_path) as reader:
        assert (reader.manifest.dims, reader.manifest.stored_dim) == (None, DIM)
        # As before there was a choice: older versions read it.
        assert b'"dims"' not in render(reader.manifest)
        assert b'"code_error"' not in render(reader.manifest)


def test_the_manifest_is_read_as_it_was_written(tmp_path):
    bidr.build_vectors(clustered(300, DIM), None, tmp_path, plain=PLAIN, dims=DIMS)
    with IndexReader.open(tmp_path) as reader:
        manifest = reader.manifest
    assert (manifest.dim, manifest.dims, manifest.unit) == (DIM, DIMS, True)
    assert parse(render(manifest), tmp_path) == manifest
    for wrong in (0, DIM, "x"):
        changed = Manifest(**{**manifest.__dict__, "dims": wrong})
        with pytest.raises(IndexFolderError):
            parse(render(changed), tmp_path)


def test_a_build_that_goes_on_does_not_take_vectors_cut_elsewhere(tmp_path):
    vectors, books = clustered(300, DIM, 1), random_codebooks(DIM, 4)
    for dims in (4, DIMS, None):
        (tmp_path / "work").mkdir(exist_ok=True)
        arrays = {"codebooks": books, "codes": books.encode(vectors), "vectors": vectors}
        build_index(tmp_path / "i", **arrays, dims=dims, work=WorkFolder(tmp_path / "work"), engine="scan")
        with IndexReader.open(tmp_path / "i") as reader:
            assert reader.vectors.dim == (dims or DIM)


def test_settings_and_shorter_vectors_are_measured_by_what_is_stored(tmp_path):
    vectors, queries = clustered(COUNT, DIM, 1), clustered(20, DIM, 2)
    bidr.build_vectors(vectors, None, tmp_path / "i", plain=PLAIN, dims=DIMS)
    np.save(tmp_path / "q.npy", queries)
    assert tune_on_index(tmp_path / "i", tmp_path / "q.npy", 0.99, 10).settings[0].recall >= 0.99
    searcher = Searcher(LiveIndex.open(tmp_path / "i"))
    with pytest.raises(ConfigError, match=f"expected 1 to {DIMS}"):
        TruncatedSearcher(searcher, dims=DIMS + 1)
    found = TruncatedSearcher(searcher, dims=4).search_vectors(QueryVectors(queries, queries), 10, COUNT)
    np.testing.assert_allclose(found.scores, best(first(vectors, 4), first(queries, 4), 10)[1], atol=2e-3)


def test_numbers_too_small_to_be_squared_have_a_length():
    found = truncate(np.array([[3e-30, 4e-30, 1], [0, 0, 1]], dtype=np.float32), 2, unit=True)
    np.testing.assert_allclose(found, [[0.6, 0.8], [0, 0]], rtol=1e-6)
