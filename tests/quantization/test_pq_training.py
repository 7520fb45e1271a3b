import faiss
import numpy as np
import pytest
from sample_codebooks import clustered, correlated, error

from bidr.errors import ConfigError, DataError
from bidr.quantization import pq_training as module
from bidr.quantization.code_quality import measure_usage
from bidr.quantization.pq_training import fit_pq, run_kmeans_step


def faiss_error(vectors: np.ndarray, books: int, words: int, *, rotate: bool) -> float:
    """The error of Faiss' own OPQ or PQ, fitted to the same vectors."""
    faiss.omp_set_num_threads(1)
    dim = vectors.shape[1]
    quantizer = faiss.ProductQuantizer(dim, books, words.bit_length() - 1)
    quantizer.cp.min_points_per_centroid = 1
    turned = vectors
    if rotate:
        rotation = faiss.OPQMatrix(dim, books)
        rotation.pq = quantizer
        rotation.niter = 20
        rotation.train(vectors)
        turned = rotation.apply(vectors)
    quantizer.train(turned)
    decoded = quantizer.decode(quantizer.compute_codes(turned))
    return float(np.square(turned - decoded).sum(axis=1).mean())


@pytest.mark.parametrize(("words", "books"), [(256, 4), (16, 4)])
def test_reconstruction_error_matches_faiss(words, books):
    vectors = correlated(2_500, 16)
    # Where k-means and a rotation end up depends on where they began, by up to a tenth; Faiss' do too.
    pq = np.mean([error(fit_pq(vectors, books, words, rotate=False, seed=seed), vectors) for seed in range(3)])
    opq = np.median([error(fit_pq(vectors, books, words, seed=seed), vectors) for seed in range(7)])
    assert opq <= 1.03 * faiss_error(vectors, books, words, rotate=True)
    assert pq <= 1.03 * faiss_error(vectors, books, words, rotate=False)
    assert opq < 0.9 * pq


def test_the_rotation_is_orthonormal_and_the_identity_without_rotate():
    vectors = correlated(1_000, 24)
    rotation = fit_pq(vectors, 4, 16).rotation
    assert np.allclose(rotation @ rotation.T, np.eye(24), atol=1e-5)
    assert not np.allclose(rotation, np.eye(24), atol=0.1)
    assert np.array_equal(fit_pq(vectors, 4, 16, rotate=False).rotation, np.eye(24, dtype=np.float32))


@pytest.mark.parametrize("rotate", [True, False])
def test_clustered_vectors_use_every_codeword(rotate):
    vectors = clustered(3_000, 16, 40, spread=0.01)
    books = fit_pq(vectors, 4, rotate=rotate)
    assert measure_usage(books.encode(vectors), 256).used > 0.99


@pytest.mark.parametrize("rotate", [True, False])
def test_duplicates_leave_no_codeword_unused(rotate):
    """As empty documents are: most first codewords are that one vector, and all but one of them have to move."""
    vectors = np.ones((3_000, 8), dtype=np.float32)
    vectors[::10] = correlated(300, 8) + 5
    books = fit_pq(vectors, 2, 16, rotate=rotate)
    assert measure_usage(books.encode(vectors), 16).used == 1.0


def test_the_same_seed_gives_the_same_codebooks_and_another_does_not():
    vectors = correlated(1_500, 16)
    first, again, other = (fit_pq(vectors, 4, 16, seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(first.centroids, again.centroids)
    assert np.array_equal(first.rotation, again.rotation)
    assert not np.array_equal(first.centroids, other.centroids)


def test_training_reads_only_a_sample(monkeypatch):
    monkeypatch.setattr(module, "FIT_ROWS", 300)
    looked_at = set()

    def watched(rows, centroids, random):
        looked_at.add(len(rows))
        return run_kmeans_step(rows, centroids, random)

    monkeypatch.setattr(module, "run_kmeans_step", watched)
    fit_pq(correlated(1_000, 8), 2, 16, iterations=1)
    assert looked_at == {300}


def test_half_precision_and_memory_mapped_vectors_are_accepted(tmp_path):
    vectors = correlated(600, 8).astype(np.float16)
    np.save(tmp_path / "v.npy", vectors)
    books = fit_pq(np.load(tmp_path / "v.npy", mmap_mode="r"), 2, 16)
    assert books.centroids.dtype == books.rotation.dtype == np.float32
    assert np.array_equal(books.centroids, fit_pq(vectors.astype(np.float32), 2, 16).centroids)


def test_invalid_shapes_are_refused():
    with pytest.raises(DataError, match="256 codewords needs at least 256 vectors: given 200"):
        fit_pq(correlated(200, 8), 2)
    with pytest.raises(ConfigError, match="must divide"):
        fit_pq(correlated(300, 8), 3)
