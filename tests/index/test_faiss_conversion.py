import faiss
import numpy as np
import pytest
from sample_index import clustered, random_codebooks

from bidr.errors import ConfigError, DataError
from bidr.index.builder.build import build_index
from bidr.index.code_packing import pack, unpack
from bidr.index.faiss_conversion import export_faiss, import_faiss
from bidr.pipeline.open import open_index
from bidr.quantization.codebooks import Codebooks


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
    expected = np.take_along_axis(codebooks.compute_scores(vectors[:20], codes), rows, axis=1)
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


@pytest.mark.parametrize("words", [16, 256])
@pytest.mark.parametrize("widened", [False, True])
def test_lists_leave_as_lists(tmp_path, words, widened):
    """Faiss reads the file and finds what our own lists do: all of them visited, and a few."""
    codebooks, vectors = random_codebooks(24, 6, words), clustered(3_000, 24)
    if widened:  # as additive codes are: a copy of the vector for every book
        centroids = np.random.default_rng(1).standard_normal((6, words, 24)).astype(np.float32)
        codebooks = Codebooks(np.tile(np.eye(24, dtype=np.float32), (6, 1)), centroids)
    codes = np.random.default_rng(0).integers(0, words, (3_000, 6), dtype=np.uint8)
    build_index(tmp_path / "i", codebooks=codebooks, codes=codes, vectors=vectors, engine="lists")
    queries = clustered(40, 24, seed=9)
    with open_index(tmp_path / "i") as searcher:
        reader = searcher.reader.latest().segments[0].reader
        faiss.write_index(searcher.reader.to_faiss("lists"), str(tmp_path / "codes.faiss"))
        index = faiss.read_index(str(tmp_path / "codes.faiss"))
        inverted = faiss.extract_index_ivf(index)
        assert inverted.nlist == reader.candidates.list_count > 50
        assert inverted.nprobe == round(0.2 * inverted.nlist)
        for visits, agree in ((inverted.nlist, 0.999), (5, 0.95)):
            inverted.nprobe = visits
            theirs = index.search(queries, 50)[1]
            ours = reader.rows_of(reader.candidates.search(queries, 50, ef=visits)[1])
            same = np.mean([np.isin(a, b).mean() for a, b in zip(ours, theirs, strict=True)])
            assert same > agree, "4-bit scores are rounded, and so are the centroids"
        if words == 256:
            inverted.nprobe = inverted.nlist
            np.testing.assert_array_equal(
                index.search(queries, 50)[1], export_faiss(codebooks, codes).search(queries, 50)[1]
            )
    again, stored = import_faiss(index)
    np.testing.assert_array_equal(stored, codes)
    np.testing.assert_array_equal(again.centroids, codebooks.centroids)


def test_lists_that_hold_an_id_twice_are_refused():
    index = faiss.IndexIVFPQ(faiss.IndexFlatIP(8), 8, 2, 2, 8, faiss.METRIC_INNER_PRODUCT)
    vectors, index.by_residual = clustered(300, 8), False
    index.train(vectors)
    index.add_with_ids(vectors[:3], np.array([0, 2, 2]))
    with pytest.raises(DataError, match="id 1 0 times"):
        import_faiss(index)


def test_what_has_no_lists_cannot_leave_as_lists(tmp_path):
    codebooks, vectors = random_codebooks(24, 6), clustered(300, 24)
    build_index(tmp_path, codebooks=codebooks, codes=codebooks.encode(vectors), vectors=vectors, engine="scan")
    with open_index(tmp_path) as searcher, pytest.raises(ConfigError, match="engine is 'scan', expected 'lists'"):
        searcher.reader.to_faiss("lists")
