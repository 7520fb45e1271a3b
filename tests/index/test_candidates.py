import faiss
import numpy as np
import pytest
from made_index import clustered, fitted, random_codebooks

from bidr.errors import ConfigError, DataError
from bidr.index import candidates, faissfile
from bidr.index.candidates import AUTO_SCAN_DOCUMENTS, Graph, Scan, choose_engine, default_width
from bidr.index.faissfile import export_faiss, import_faiss, pack, unpack


@pytest.fixture(autouse=True)
def always_walk(monkeypatch):
    """On so few documents a graph would scan instead, and its faults would not show."""
    monkeypatch.setattr(candidates, "SCANNED_PER_VISIT", 0)


def share_found(graph: Graph, scan: Scan, queries: np.ndarray) -> float:
    wanted, found = scan.search(queries, 100)[1], graph.search(queries, 100)[1]
    return float(np.mean([len(np.intersect1d(a, b)) / 100 for a, b in zip(wanted, found, strict=True)]))


@pytest.fixture(scope="module")
def corpus():
    vectors = clustered(40_000, 96)
    codebooks = fitted(vectors, 16)
    random = np.random.default_rng(5)
    queries = vectors[random.integers(0, len(vectors), 200)] + 0.5 * clustered(200, 96, seed=6)
    return codebooks, codebooks.encode(vectors), queries


def test_the_graph_finds_98_percent_of_what_a_scan_finds(corpus):
    codebooks, codes, queries = corpus
    graph, scan = Graph(export_faiss(codebooks, codes, engine="hnsw"), ef=200), Scan(export_faiss(codebooks, codes))
    assert share_found(graph, scan, queries) >= 0.98


def test_without_inner_products_in_the_table_the_graph_is_broken(corpus, monkeypatch):
    """Should a new Faiss make this fail, the correction in `_fill_graph` can go."""
    codebooks, codes, queries = corpus
    codes = codes[:10_000]
    scan = Scan(export_faiss(codebooks, codes))
    corrected = share_found(Graph(export_faiss(codebooks, codes, engine="hnsw"), ef=200), scan, queries)

    def euclidean(centroids):
        squares = np.square(centroids).sum(axis=2)
        return squares[:, :, None] + squares[:, None] - 2 * np.matmul(centroids, centroids.transpose(0, 2, 1))

    monkeypatch.setattr(faissfile, "inner_product_table", euclidean)
    as_it_comes = share_found(Graph(export_faiss(codebooks, codes, engine="hnsw"), ef=200), scan, queries)
    assert corrected >= 0.98
    assert as_it_comes < corrected - 0.03


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


@pytest.mark.parametrize("engine", ["scan", "hnsw"])
@pytest.mark.parametrize("k", [1, 29, 30, 299, 300])
def test_every_depth_gives_k_different_rows_in_order(engine, k):
    codebooks = random_codebooks(16, 4)
    vectors = clustered(300, 16)
    index = export_faiss(codebooks, codebooks.encode(vectors), engine=engine)
    scores, rows = (Scan(index) if engine == "scan" else Graph(index, ef=1)).search(vectors[:5], k)
    assert rows.min() >= 0
    assert all(len(set(found)) == k for found in rows.tolist())
    assert (np.diff(scores, axis=1) <= 0).all()


def test_a_graph_in_pieces_still_gives_k_rows():
    """Many equal documents fill one another's links, so that a walk cannot leave them."""
    codebooks = random_codebooks(16, 4)
    codes = np.zeros((4_000, 4), dtype=np.uint8)
    codes[2_000:] = 7
    graph = Graph(export_faiss(codebooks, codes, engine="hnsw"), ef=200)
    rows = graph.search(clustered(10, 16), 390)[1]
    assert rows.min() >= 0


@pytest.mark.parametrize("engine", ["scan", "hnsw"])
def test_a_search_leaves_the_number_of_threads_alone(engine):
    codebooks = random_codebooks(16, 4)
    index = export_faiss(codebooks, codebooks.encode(clustered(300, 16)), engine=engine)
    before = faiss.omp_get_max_threads()
    (Scan(index) if engine == "scan" else Graph(index)).search(clustered(1, 16), 5)
    assert faiss.omp_get_max_threads() == before


def test_a_graph_of_few_documents_answers_as_a_scan_does(monkeypatch):
    monkeypatch.undo()
    codebooks, vectors = random_codebooks(16, 4), clustered(500, 16)
    codes = codebooks.encode(vectors)
    graph, scan = Graph(export_faiss(codebooks, codes, engine="hnsw"), ef=1), Scan(export_faiss(codebooks, codes))
    for k in (4, 50, 500):
        for found, expected in zip(graph.search(vectors, k), scan.search(vectors, k), strict=True):
            np.testing.assert_array_equal(found, expected)


def test_width_grows_with_what_is_wanted():
    assert [default_width(k) for k in (1, 10, 200, 400, 1_000)] == [200, 200, 1_000, 1_000, 2_000]


def test_engine_names():
    assert choose_engine("auto", AUTO_SCAN_DOCUMENTS) == "scan"
    assert choose_engine("auto", AUTO_SCAN_DOCUMENTS + 1) == "hnsw"
    with pytest.raises(ConfigError, match=r"ivf.*expected one of auto, scan, hnsw"):
        choose_engine("ivf", 10)


def test_codes_of_other_codebooks_are_refused():
    codebooks = random_codebooks(16, 4)
    good = np.zeros((5, 4), dtype=np.uint8)
    for bad in (good[:, :3], good.astype(np.int32), good + 16, good[:0]):
        with pytest.raises(DataError, match="expected"):
            export_faiss(codebooks, bad)
    with pytest.raises(ConfigError, match="codewords per book"):
        export_faiss(random_codebooks(16, 4, words=64), good)
