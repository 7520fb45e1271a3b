import faiss
import numpy as np
import pytest
from made_index import clustered, random_codebooks

from bidr.errors import ConfigError, DataError
from bidr.index.faissfile import export_faiss, import_faiss, pack, unpack


@pytest.mark.parametrize("words", [16, 256])
@pytest.mark.parametrize("engine", ["scan", "hnsw"])
@pytest.mark.parametrize("books", [4, 6, 3])
def test_faiss_gives_the_scores_of_the_codebooks_and_the_codes_back(tmp_path, words, engine, books):
    codebooks = random_codebooks(24, books, words)
    vectors = clustered(500, 24)
    codes = codebooks.encode(vectors)
    faiss.write_index(export_faiss(codebooks, codes, engine=engine), str(tmp_path / "codes.faiss"))
    index = faiss.read_index(str(tmp_path / "codes.faiss"))
    scores, rows = index.search(vectors[:20], 10)
    expected = np.take_along_axis(codebooks.scores(vectors[:20], codes), rows, axis=1)
    np.testing.assert_allclose(scores, expected, atol=1e-4)
    again, stored = import_faiss(index)
    np.testing.assert_array_equal(stored, codes)
    np.testing.assert_array_equal(again.rotation, codebooks.rotation)
    np.testing.assert_array_equal(again.centroids, codebooks.centroids)


@pytest.mark.parametrize("engine", ["scan", "hnsw"])
def test_codes_are_stored_as_given_where_codewords_are_equal(engine):
    codebooks = random_codebooks(16, 4)
    codebooks.centroids[:, 8:] = codebooks.centroids[:, :8]
    codes = np.random.default_rng(0).integers(0, 16, (300, 4), dtype=np.uint8)
    np.testing.assert_array_equal(import_faiss(export_faiss(codebooks, codes, engine=engine))[1], codes)


def test_indexes_of_faiss_itself_are_read():
    vectors = clustered(1_000, 32)
    for name in ("PQ8x4np", "OPQ8,PQ8x4np", "HNSW16_PQ8x4np"):
        index = faiss.index_factory(32, name, faiss.METRIC_INNER_PRODUCT)
        if name.startswith("OPQ"):
            faiss.downcast_VectorTransform(index.chain.at(0)).niter = 2
        index.train(vectors)
        index.add(vectors)
        codebooks, codes = import_faiss(index)
        reconstructed = index.reconstruct_n(0, 50) @ codebooks.rotation.T
        np.testing.assert_allclose(codebooks.decode(codes[:50]), reconstructed, atol=1e-5)


@pytest.mark.parametrize("name", ["Flat", "IVF4,PQ4x4", "PQ4x6np", "PCA16,PQ4x4np", "PCA24,PCA16,PQ4x4np"])
def test_other_indexes_of_faiss_are_refused(name):
    index = faiss.index_factory(32, name, faiss.METRIC_INNER_PRODUCT)
    index.train(clustered(1_000, 32))
    with pytest.raises(DataError, match="expected"):
        import_faiss(index)


@pytest.mark.parametrize("bits", [4, 8])
def test_packing_is_undone(bits):
    for books in (1, 2, 5):
        codes = np.random.default_rng(0).integers(0, 2**bits, (7, books), dtype=np.uint8)
        np.testing.assert_array_equal(unpack(pack(codes, bits), books, bits), codes)


def test_codes_of_other_codebooks_are_refused():
    codebooks = random_codebooks(16, 4)
    good = np.zeros((5, 4), dtype=np.uint8)
    for bad in (good[:, :3], good.astype(np.int32), good + 16, good[:0]):
        with pytest.raises(DataError, match="expected"):
            export_faiss(codebooks, bad)
    with pytest.raises(ConfigError, match="codewords per book"):
        export_faiss(random_codebooks(16, 4, words=64), good)
