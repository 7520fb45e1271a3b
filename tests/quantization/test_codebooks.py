import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from sample_codebooks import clustered, random_codebooks

from bidr.data.vector_source import advise_dontneed
from bidr.errors import ConfigError, ModelError
from bidr.quantization import codebooks
from bidr.quantization.code_quality import measure_usage
from bidr.quantization.codebooks import Codebooks, check_shape

SHAPES = st.sampled_from([(8, 2, 16), (12, 4, 16), (16, 4, 256), (6, 1, 256), (10, 5, 16)])
SEEDS = st.integers(0, 2**32 - 1)


@given(SHAPES, SEEDS, st.integers(0, 40))
@settings(max_examples=40, deadline=None)
def test_decoded_vectors_encode_to_the_same_codes(shape, seed, count):
    books = random_codebooks(*shape, seed=seed % 1_000)
    codes = np.random.default_rng(seed).integers(shape[2], size=(count, shape[1])).astype(np.uint8)
    assert np.array_equal(books.encode(books.decode(codes) @ books.rotation), codes)


@given(SHAPES, SEEDS)
@settings(max_examples=30, deadline=None)
def test_codes_are_the_nearest_codewords_of_the_rotated_vector(shape, seed):
    books, random = random_codebooks(*shape, seed=seed % 1_000), np.random.default_rng(seed)
    vectors = random.standard_normal((20, shape[0])).astype(np.float32)
    parts = (vectors @ books.rotation.T).reshape(20, shape[1], -1)
    distances = np.square(parts[:, :, None] - books.centroids).sum(axis=3)
    chosen = np.take_along_axis(distances, books.encode(vectors).astype(np.int64)[:, :, None], axis=2)[:, :, 0]
    assert np.allclose(chosen, distances.min(axis=2), atol=1e-4)


def test_the_nearest_codeword_is_not_the_one_with_the_largest_inner_product():
    books = Codebooks(np.eye(2, dtype=np.float32), np.array([[[1, 0]] * 15 + [[9, 0]]], dtype=np.float32))
    assert books.encode(np.array([[1.2, 0]], dtype=np.float32))[0, 0] < 15


@given(SHAPES, SEEDS)
@settings(max_examples=30, deadline=None)
def test_scores_are_inner_products_with_decoded_vectors(shape, seed):
    books, random = random_codebooks(*shape, seed=seed % 1_000), np.random.default_rng(seed)
    queries = random.standard_normal((4, shape[0])).astype(np.float32)
    codes = random.integers(shape[2], size=(9, shape[1])).astype(np.uint8)
    expected = np.zeros((4, 9))
    for row, code in enumerate(codes):
        said = np.concatenate([books.centroids[book, word] for book, word in enumerate(code)])
        expected[:, row] = queries @ (said @ books.rotation)
    assert np.allclose(books.compute_scores(queries, codes), expected, atol=1e-4)


def test_codes_do_not_depend_on_the_block_size(monkeypatch):
    books, vectors = random_codebooks(12, 3, 16), clustered(50, 12, 5)
    whole = books.encode(vectors)
    monkeypatch.setattr(codebooks, "ENCODE_ROWS", 7)
    assert np.array_equal(books.encode(vectors), whole)


@pytest.mark.parametrize(("words", "bytes_per_doc"), [(256, 8), (16, 4)])
def test_sizes(words, bytes_per_doc):
    books = random_codebooks(24, 8, words)
    assert (books.books, books.words, books.dim, books.bytes_per_doc) == (8, words, 24, bytes_per_doc)


def test_saved_codebooks_come_back_bit_for_bit(tmp_path):
    books = random_codebooks(12, 3, 16)
    books.save(tmp_path / "q.safetensors")
    found = Codebooks.load(tmp_path / "q.safetensors")
    assert np.array_equal(found.rotation, books.rotation)
    assert np.array_equal(found.centroids, books.centroids)


def test_a_transposed_rotation_is_saved_correctly(tmp_path):
    books = random_codebooks(12, 3, 16)
    turned = Codebooks(books.rotation.T, books.centroids)
    turned.save(tmp_path / "q.safetensors")
    assert np.array_equal(Codebooks.load(tmp_path / "q.safetensors").rotation, books.rotation.T)


@pytest.mark.parametrize("mapped", [False, True])
def test_invalid_files_are_model_errors(tmp_path, mapped):
    path = tmp_path / "q.safetensors"
    with pytest.raises(ModelError, match=r"q\.safetensors"):
        Codebooks.load(path, mapped=mapped)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(ModelError, match="not a codebook file"):
        Codebooks.load(path, mapped=mapped)
    save_file({"rotation": np.eye(4, dtype=np.float32)}, path)
    with pytest.raises(ModelError, match="centroids"):
        Codebooks.load(path, mapped=mapped)
    random_codebooks(12, 3, 16).save(path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ModelError, match="not a codebook file"):
        Codebooks.load(path, mapped=mapped)


def test_mapped_codebooks_are_equal_and_released(tmp_path):
    books, path = random_codebooks(12, 3, 16), tmp_path / "books.safetensors"
    books.save(path)
    mapped = Codebooks.load(path, mapped=True)
    for saved, found in zip(books, mapped, strict=True):
        assert (saved is None) == (found is None)
        if saved is not None:
            assert isinstance(found, np.memmap)
            advise_dontneed(found)
            advise_dontneed(found.astype(np.float64))  # numpy calls it mapped too, and there is no file behind it
            np.testing.assert_array_equal(found, saved)


def test_a_refused_number_of_books_names_valid_ones():
    check_shape(768, 96, 256)
    with pytest.raises(ConfigError, match=r"given 7 for 128 dimensions; choose one of 4, 8, 16|2, 4, 8"):
        check_shape(128, 7, 256)
    with pytest.raises(ConfigError, match="given 0 for 128"):
        check_shape(128, 0, 256)
    with pytest.raises(ConfigError, match="given 100, expected 256"):
        check_shape(128, 8, 100)


@given(st.integers(1, 300), st.integers(-2, 320))
@settings(deadline=None)
def test_every_suggestion_is_valid(dim, books):
    try:
        check_shape(dim, books, 256)
    except ConfigError as error:
        assert books < 1 or dim % books
        for choice in str(error).rsplit("choose one of ", 1)[1].split(", "):
            check_shape(dim, int(choice), 256)
    else:
        assert dim % books == 0


def test_usage_statistics():
    even = np.repeat(np.arange(16, dtype=np.uint8)[:, None], 2, axis=1)
    assert measure_usage(even, 16) == (1.0, 4.0, 4.0)
    half = even.copy()
    half[:, 1] %= 4
    assert measure_usage(half, 16) == ((16 + 4) / 32, 3.0, 2.0)
    assert measure_usage(np.zeros((5, 3), dtype=np.uint8), 256) == (1 / 256, 0.0, 0.0)
