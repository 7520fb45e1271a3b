"""Vector files: stored values, scores, and rejected input."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from sample_index import clustered, small_index
from vector_files import read_with_numpy, write_vectors

from bidr.errors import ConfigError, DataError, IndexFolderError
from bidr.index.reader import IndexReader
from bidr.index.vectors import VectorFile, VectorWriter
from bidr.index.vectors import scoring_kernels as kernels
from bidr.index.vectors.row_layout import encode_rows, make_checksum_keys
from bidr.utils.jit import njit_cached

KINDS = ("fp16", "int8")


@given(st.sampled_from(KINDS), st.integers(1, 700), st.integers(1, 130) | st.sampled_from([384, 1024, 2500]), st.data())
@settings(max_examples=60, deadline=None)
def test_rows_and_scores_equal_those_of_numpy(tmp_path_factory, kind, count, dim, data):
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    count = min(count, 300_000 // dim)
    vectors = random.standard_normal((count, dim)).astype(np.float32) * 10 ** random.uniform(-4, 2)
    path = write_vectors(tmp_path_factory.mktemp("v"), vectors, kind, piece=data.draw(st.integers(1, 400)))
    stored = read_with_numpy(path)
    rows, query = random.integers(0, count, data.draw(st.integers(0, 300))), random.standard_normal(dim)
    with VectorFile.open(path) as file:
        assert (file.kind, file.count, file.dim) == (kind, count, dim)
        np.testing.assert_array_equal(file.read(rows), stored[rows])
        expected = stored[rows].astype(np.float64) @ query.astype(np.float32).astype(np.float64)
        norms = np.linalg.norm(stored[rows], axis=1) * np.linalg.norm(query)
        assert (np.abs(file.score(rows, query) - expected) <= 1e-6 * norms + 1e-30).all()


@pytest.mark.parametrize("kind", KINDS)
def test_equal_vectors_tie_at_any_position_and_batch_size(tmp_path, kind):
    vectors = np.repeat(clustered(3, 101), 200, axis=0)
    with VectorFile.open(write_vectors(tmp_path, vectors, kind)) as file:
        scores = file.score(np.random.default_rng(0).permutation(600), vectors[250]).tolist()
        single_scores = [float(file.score(np.array([row]), vectors[250])[0]) for row in range(600)]
    assert len(set(scores)) == 3
    assert set(scores) == set(single_scores)
    assert all(len(set(single_scores[start : start + 200])) == 1 for start in (0, 200, 400))


@pytest.mark.parametrize("hardware", [True, False])
def test_every_finite_fp16_is_decoded_as_by_numpy(hardware):
    if hardware and not kernels.has_hardware_fp16():
        pytest.skip("this processor has no fp16")
    as_float = kernels._make_decoder(hardware)

    @njit
    def decode(stored, out):
        for place in range(len(stored)):
            out[place] = as_float(stored[place])

    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)]
    out = np.empty(len(halves), dtype=np.float32)
    decode(halves.view(np.uint16), out)
    np.testing.assert_array_equal(out.view(np.uint32), halves.astype(np.float32).view(np.uint32))


@pytest.mark.parametrize("kind", KINDS)
def test_missing_rows_are_rejected_and_row_minus_one_scores_minus_infinity(tmp_path, kind):
    with VectorFile.open(write_vectors(tmp_path, clustered(60, 16), kind)) as file:
        query = np.ones(16, dtype=np.float32)
        for rows in ([0, 60], [-2], [2**40]):
            with pytest.raises(DataError, match="expected 0 to 59"):
                file.score(np.array(rows), query)
            with pytest.raises(DataError, match="expected 0 to 59"):
                file.read(np.array(rows))
        with pytest.raises(DataError, match="invalid row: -1"):
            file.read(np.array([-1]))
        scores = file.score(np.array([3, -1, 4]), query)
        assert scores[1] == -np.inf
        assert np.isfinite(scores[[0, 2]]).all()
        with pytest.raises(DataError, match=r"given shape \(15,\), expected \(16,\)"):
            file.score(np.array([0]), query[:15])


def test_int8_error_is_at_most_half_a_step_and_zeros_stay_zeros(tmp_path):
    vectors = clustered(50, 64)
    vectors[7] = 0
    stored = read_with_numpy(write_vectors(tmp_path, vectors, "int8"))
    steps = np.abs(vectors).max(axis=1, keepdims=True) / 127
    assert (np.abs(stored - vectors) <= 0.5001 * steps).all()
    assert not stored[7].any()


@pytest.mark.parametrize(("kind", "value"), [("fp16", 70_000.0), ("int8", np.inf), ("int8", np.nan), ("fp16", np.nan)])
def test_values_that_cannot_be_stored_are_rejected_with_their_row(tmp_path, kind, value):
    vectors = clustered(200, 8)
    vectors[150, 3] = value
    with pytest.raises(DataError, match=rf"row 150 holds .*\({kind}\)"):
        write_vectors(tmp_path, vectors, kind)


def test_fewer_or_more_rows_than_the_header_states_are_rejected(tmp_path):
    def create(name):
        return open(tmp_path / name, "wb")

    with pytest.raises(DataError, match="given 3 rows, expected 4"), VectorWriter(create, 4, 8) as out:
        out.write(clustered(3, 8))
    with pytest.raises(DataError, match="more than the expected 4 rows"), VectorWriter(create, 4, 8) as out:
        out.write(clustered(5, 8))
    with pytest.raises(ConfigError, match="'fp8'"):
        VectorWriter(create, 4, 8, "fp8")


def test_rows_start_a_block_and_checksums_follow_the_documented_formula(tmp_path):
    """The documented formula, in numpy."""
    path = write_vectors(tmp_path, clustered(501, 50))
    content = path.read_bytes()
    assert len(content) == 4_096 + 501 * 100
    words = np.frombuffer(content + bytes(-len(content) % 4_096), dtype="<u8").reshape(-1, 512)
    keys, low = make_checksum_keys(), np.uint64(2**32 - 1)
    half = np.uint64(32)
    products = ((words + keys) & low) * (((words >> half) + (keys >> half)) & low)
    sums = (products.sum(axis=1) * np.uint64(0x9E3779B97F4A7C15)) >> half
    np.testing.assert_array_equal(np.load(tmp_path / "vectors.checks.npy"), sums)


def test_a_file_without_checksums_is_readable(tmp_path):
    vectors = clustered(40, 12).astype(np.float16)
    np.save(tmp_path / "own.npy", vectors)
    with VectorFile.open(tmp_path / "own.npy") as file:
        assert not file.has_checksums
        np.testing.assert_array_equal(file.read(np.arange(40)), vectors)


@pytest.mark.parametrize("kind", KINDS)
def test_an_index_stores_rows_of_either_kind(tmp_path, kind):
    small_index(tmp_path / "i", stored=kind)
    with IndexReader.open(tmp_path / "i") as reader:
        reader.verify()
        facts = reader.describe()["vectors"]
        assert (facts["stored"], facts["checked"]) == (kind, True)
        rows = encode_rows(kind, clustered(60, 16))
        assert np.load(tmp_path / "i" / "000001" / "vectors.npy").tobytes() == rows.tobytes()


def test_other_npy_files_are_rejected(tmp_path):
    for array in (np.zeros((3, 4)), np.zeros(3, dtype=[("vector", "i1", (4,)), ("scale", "<f8")]), np.zeros(3, "<f2")):
        np.save(tmp_path / "x.npy", array)
        with pytest.raises(IndexFolderError, match=r"x\.npy"):
            VectorFile.open(tmp_path / "x.npy")


def test_kernels_compile_without_a_cache_file():
    namespace: dict = {}
    exec("def nowhere(x):\n    return x + 1", namespace)  # no source file: numba cannot cache
    with pytest.raises(RuntimeError, match="cannot cache"):
        njit(cache=True)(namespace["nowhere"])
    assert njit_cached()(namespace["nowhere"])(41) == 42
