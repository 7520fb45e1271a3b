"""Engines: at full width each equals the scan, and the scan equals numpy."""

from collections.abc import Callable

import numpy as np
import pytest
from sample_index import clustered, fitted, random_codebooks

from bidr.errors import ConfigError, DataError
from bidr.index import faiss_conversion
from bidr.index.builder.in_memory_engines import make_graph, make_lists, make_scan
from bidr.index.builder.reorder import GROUP
from bidr.index.candidate_source import Candidates, to_bitmask_words
from bidr.index.engines import ivf
from bidr.index.engines.adc_tables import AdcTables, compute_margin, pad_books, quantize_table
from bidr.index.engines.code_store import from_blocks, to_blocks
from bidr.index.engines.engine_choice import AUTO_SCAN_DOCUMENTS, choose_engine
from bidr.index.engines.fast_scan import SAMPLE_EVERY
from bidr.index.engines.flat import FlatEngine
from bidr.index.engines.graph import engine as graph_engine
from bidr.index.engines.graph.adjacency import count_link_bits, read_links, write_links
from bidr.index.engines.graph.construction import (
    GROUPS_PER_NODE,
    LINK_WORDS,
    MAX_LINKS,
    NODE,
    ROWS_PER_RANGE,
    _select_best,
    choose_links,
    pack_links,
)
from bidr.index.engines.graph.engine import get_default_ef_search
from bidr.index.engines.ivf import CentroidGraph, CoarseCentroids, get_default_nprobe
from bidr.quantization.additive_quantizer import fit_additive
from bidr.quantization.codebooks import Codebooks
from bidr.utils.faiss_loader import load_faiss

COUNTLESS = 1 << 40
Corpus = tuple[Codebooks, np.ndarray, np.ndarray]
KINDS = ("8-bit", "4-bit", "4-bit, odd", "additive", "additive in groups", "additive, 4-bit", "additive, 4-bit, odd")


@pytest.fixture(autouse=True)
def always_walk(monkeypatch):
    """Make graphs of few documents follow links; they would scan otherwise."""
    monkeypatch.setattr(graph_engine, "SCANNED_PER_EF", 0)


@pytest.fixture(scope="module", params=KINDS)
def small(request) -> Corpus:
    """Codes of every kind: 1,500 documents, a few of them duplicates."""
    vectors, queries = clustered(1_500, 24), clustered(6, 24, seed=3)
    vectors[700:720] = vectors[:20]
    if request.param.startswith("additive"):
        books, words = {"additive, 4-bit": (8, 16), "additive, 4-bit, odd": (5, 16)}.get(request.param, (4, 256))
        additive = fit_additive(vectors, books, words, groups=2 if "groups" in request.param else 1)
        return additive.to_codebooks(), additive.encode(vectors), additive.adapt(queries)
    books, words = {"8-bit": (6, 256), "4-bit": (12, 16), "4-bit, odd": (3, 16)}[request.param]
    codebooks = fitted(vectors, books, words)
    return codebooks, codebooks.encode(vectors), queries


def search_with_numpy(corpus: Corpus, k: int, allowed: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Compute tables and sums in numpy, in the summation order of an engine; equal scores by row."""
    codebooks, codes, queries = corpus
    table = AdcTables(codebooks).compute(queries)
    scores = np.zeros((len(queries), len(codes)), dtype=np.float32)
    parts = [table[:, book][:, codes[:, book]] for book in range(codebooks.books)]
    if codebooks.bits == 4:  # four accumulators
        sums = [np.sum([scores, *parts[place::4]], axis=0, dtype=np.float32) for place in range(4)]
        scores = (sums[0] + sums[1]) + (sums[2] + sums[3])
    else:
        scores = np.sum(parts, axis=0, dtype=np.float32)
    if allowed is not None:
        scores[:, ~allowed] = -np.inf
    rows = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    scores = np.take_along_axis(scores, rows, axis=1)
    return scores, np.where(np.isinf(scores), -1, rows)


def pack_bitmap(allowed: np.ndarray | None) -> np.ndarray | None:
    return None if allowed is None else np.packbits(allowed, bitorder="little")


@pytest.fixture(scope="module")
def engines(small) -> dict[str, Callable[..., tuple[np.ndarray, np.ndarray]]]:
    """Every engine at full width, with results as rows."""
    codebooks, codes, _ = small
    scan = make_scan(codebooks, codes)

    def search_rows(built, ef):
        engine, order = built

        def search(queries, k, allowed):
            bits = None if allowed is None else pack_bitmap(allowed[order])
            scores, places = engine.search(queries, k, ef=ef, allowed=bits)
            return scores, np.where(places < 0, -1, order[places])

        return search

    return {
        "scan": lambda queries, k, allowed: scan.search(queries, k, allowed=pack_bitmap(allowed)),
        "lists": search_rows(make_lists(codebooks, codes, 40), 40),
        "hnsw": search_rows(make_graph(codebooks, codes), len(codes)),
    }


@pytest.mark.parametrize("share", [None, 0.9, 0.3, 0.02, 0.0])
@pytest.mark.parametrize("k", [1, 40, 300])
def test_every_engine_at_full_width_equals_numpy(small, engines, share, k):
    _, codes, queries = small
    allowed = None if share is None else np.random.default_rng(1).random(len(codes)) < share
    expected = search_with_numpy(small, k, allowed)
    deeper = search_with_numpy(small, k + 40, allowed)[1]
    for name, search in engines.items():
        scores, rows = search(queries, k, allowed)
        np.testing.assert_allclose(scores, expected[0], rtol=1e-5, atol=1e-5, err_msg=name)
        np.testing.assert_array_equal(rows < 0, expected[1] < 0, err_msg=name)
        for number, row in enumerate(rows):
            real = row[row >= 0]
            assert len(set(real.tolist())) == len(real), name
            assert allowed is None or allowed[real].all(), name
            assert len(np.setdiff1d(real, deeper[number])) == 0, name


@pytest.mark.parametrize(("words", "groups"), [(256, 1), (16, 1), (16, 2)])
def test_additive_tables_with_an_adapter_are_products_with_every_codeword(words, groups):
    vectors, queries = clustered(600, 24), clustered(6, 24, seed=3)
    additive = fit_additive(vectors, 4, words, groups=groups)
    query_map = np.random.default_rng(0).standard_normal(additive.query.shape).astype(np.float32)
    codebooks = additive._replace(query=query_map).to_adapted_codebooks()
    rotated = codebooks.rotate(queries).reshape(len(queries), codebooks.books, -1)
    expected = np.einsum("qms,mws->qmw", rotated, codebooks.centroids)
    np.testing.assert_allclose(AdcTables(codebooks).compute(queries), expected, rtol=1e-4, atol=1e-4)


def test_the_scan_equals_numpy_bit_for_bit(small):
    codebooks, codes, queries = small
    scores, rows = make_scan(codebooks, codes).search(queries, 200)
    expected = search_with_numpy(small, 200)
    np.testing.assert_array_equal(scores, expected[0])
    np.testing.assert_array_equal(rows, expected[1])


def test_plain_lookups_equal_shuffles(small):
    codebooks, codes, queries = small
    scan = make_scan(codebooks, codes)
    allowed = pack_bitmap(np.random.default_rng(1).random(len(codes)) < 0.5)
    with_shuffle = scan.search(queries, 100, allowed=allowed)
    scan.store.shuffle = None
    for result, expected in zip(scan.search(queries, 100, allowed=allowed), with_shuffle, strict=True):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("books", [1, 2, 7, 8, 15, 96, 129])
@pytest.mark.parametrize("count", [1, 31, 32, 33, 500])
def test_any_number_of_books_and_documents_scans_correctly(books, count):
    """Remainders of four pairs of books and of 32 documents take separate code paths."""
    random = np.random.default_rng(books)
    codebooks = random_codebooks(books * 2, books)
    codes = random.integers(0, 16, (count, books), dtype=np.uint8)
    corpus = codebooks, codes, random.standard_normal((3, 2 * books)).astype(np.float32)
    k = min(count, 20)
    for result, expected in zip(
        make_scan(codebooks, codes).search(corpus[2], k), search_with_numpy(corpus, k), strict=True
    ):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("books", [1_024, 1_152, 2_048])
def test_sums_of_very_many_books_fit_16_bits(books):
    """Equal books, so that quantized sums reach their maximum."""
    random = np.random.default_rng(0)
    words = np.tile(np.linspace(-1, 1, 16, dtype=np.float32)[:, None], (books, 1, 1))
    codebooks, codes = Codebooks(np.eye(books, dtype=np.float32), words), random.integers(0, 16, (3_000, books))
    codes[7] = 15  # the maximum
    codes[11, : 4 * books // 5] = 15
    query = np.ones((1, books), dtype=np.float32)
    expected = np.argsort(-codes.sum(axis=1), kind="stable")[:10]
    rows = make_scan(codebooks, codes.astype(np.uint8)).search(query, 10)[1][0]
    assert rows[:2].tolist() == [7, 11]
    np.testing.assert_array_equal(codes[rows].sum(axis=1), codes[expected].sum(axis=1))


def test_quantized_tables_stay_within_the_margin():
    random = np.random.default_rng(0)
    for _ in range(20):
        books = int(random.integers(1, 120))
        table = (random.standard_normal((books, 16)) * random.uniform(0.01, 3, (books, 1))).astype(np.float32)
        entries = quantize_table(pad_books(table)).reshape(-1, 16).astype(int)
        ends = entries.max(axis=1).reshape(-1, 2)
        for start in range(0, len(ends), 4):
            assert ends[start : start + 4].sum(axis=0).max() <= 255
        codes = random.integers(0, 16, (5_000, books))
        exact = table[np.arange(books), codes].sum(axis=1)
        sums = entries[np.arange(books), codes].sum(axis=1)
        step = (table.max(axis=1) - table.min(axis=1)).sum() / max(entries.max(axis=1).sum(), 1)
        assert np.abs((sums - sums.mean()) - (exact - exact.mean()) / step).max() < compute_margin(books) + 2


def test_unpacked_codes_of_some_rows_equal_those_of_all(small):
    codebooks, codes, _ = small
    rows = np.array([0, 31, 32, 33, len(codes) - 1, 7, 7])
    np.testing.assert_array_equal(make_scan(codebooks, codes).unpack_codes(rows), codes[rows])
    np.testing.assert_array_equal(
        make_graph(codebooks, codes)[0].unpack_codes(rows), make_graph(codebooks, codes)[0].unpack_codes()[rows]
    )


def test_from_blocks_inverts_to_blocks():
    for count, books in ((1, 1), (32, 3), (100, 8)):
        rows = np.random.default_rng(0).integers(0, 256, (count, books), dtype=np.uint8)
        np.testing.assert_array_equal(from_blocks(to_blocks(rows))[:count], rows)


def test_equal_documents_rank_by_row():
    codebooks = random_codebooks(16, 4)
    codes = np.zeros((5_000, 4), dtype=np.uint8)
    codes[::7] = 3
    query = np.ones((1, 16), dtype=np.float32)
    results = make_scan(codebooks, codes).search(query, 100)
    for result, expected in zip(results, search_with_numpy((codebooks, codes, query), 100), strict=True):
        np.testing.assert_array_equal(result, expected)


def test_a_misleading_sample_loses_no_results():
    """The best documents are only in sampled blocks and fewer than k, so the estimated threshold is too high."""
    codebooks, k = random_codebooks(16, 4), 64
    random = np.random.default_rng(0)
    query = random.standard_normal((1, 16)).astype(np.float32)
    table = AdcTables(codebooks).compute(query)[0]
    codes = random.integers(0, 16, (4 * 32 * k, 4), dtype=np.uint8)
    sampled = (np.arange(len(codes)) // 32 % SAMPLE_EVERY == SAMPLE_EVERY - 1) & (np.arange(len(codes)) % 8 == 0)
    assert 0 < sampled.sum() < k
    codes[sampled] = table.argmax(axis=1)
    codes[~sampled] = np.where(codes[~sampled] == table.argmax(axis=1), table.argmin(axis=1), codes[~sampled])
    for result, expected in zip(
        make_scan(codebooks, codes).search(query, k), search_with_numpy((codebooks, codes, query), k), strict=True
    ):
        np.testing.assert_array_equal(result, expected)


def test_links_are_read_as_written():
    random, links = np.random.default_rng(4), np.empty(MAX_LINKS, dtype=np.int64)
    drawn = [np.unique(random.integers(0, 8**power, 130)).tolist() for power in range(1, 10)]
    for groups in ([], [0], [7, 8], [3, 130, 131, 40_000, 3_000_000, (1 << 31) - 1], list(range(MAX_LINKS)), *drawn):
        packed = np.zeros(3 * LINK_WORDS, dtype=np.uint64)
        packed[2 * LINK_WORDS :] = 2**64 - 1  # of another node
        while sum(count_link_bits(int(gap)) for gap in np.diff(groups, prepend=-1)) > 64 * LINK_WORDS:
            groups.pop()
        write_links(np.array(groups, dtype=np.int64), packed[LINK_WORDS : 2 * LINK_WORDS])
        assert links[: read_links(packed, LINK_WORDS, LINK_WORDS, links)].tolist() == groups
        assert not packed[:LINK_WORDS].any()


def test_links_lead_to_near_documents_and_use_their_space():
    vectors = clustered(3_000, 32)
    codebooks = fitted(vectors, 8)
    graph, order = make_graph(codebooks, codebooks.encode(vectors))
    assert sorted(order) == list(range(3_000))
    links, recalls, counts = np.empty(MAX_LINKS, dtype=np.int64), [], []
    products = (decoded := codebooks.decode(graph.unpack_codes())) @ decoded.T
    for place in range(0, 3_000, 100):
        groups = links[: read_links(graph.links[place // NODE], 0, LINK_WORDS, links)].copy()
        assert place // NODE not in groups // GROUPS_PER_NODE
        counts.append(len(groups))
        nearest = np.argsort(-products[place])[:10]
        recalls.append((np.isin(nearest // GROUP, groups) | (nearest // NODE == place // NODE)).mean())
    assert np.mean(recalls) > 0.9
    assert np.mean(counts) > 300


@pytest.mark.parametrize("misleading", [False, True])
@pytest.mark.parametrize("count", [1, 250, 4_999])
def test_selected_scores_equal_those_of_sorting(misleading, count):
    scores = np.random.default_rng(3).standard_normal((4, 5_000), dtype=np.float32).round(2)
    if misleading:
        scores[:, ::16] += 100  # the sampled scores
    assert np.array_equal(_select_best(scores, count), np.argsort(-scores, axis=1, kind="stable")[:, :count])


def test_links_do_not_depend_on_where_a_build_resumes():
    codebooks, vectors = random_codebooks(16, 4), clustered(1_000, 16)
    codes = codebooks.encode(vectors)
    candidates = np.concatenate(list(choose_links(codebooks, codes, 50)))
    assert len(candidates) == 1_000 // GROUP
    resumed = 3 * ROWS_PER_RANGE // GROUP
    np.testing.assert_array_equal(
        np.concatenate(list(choose_links(codebooks, codes, 50, resumed))), candidates[resumed:]
    )
    links = np.concatenate(list(pack_links(candidates)))
    np.testing.assert_array_equal(
        np.concatenate(list(pack_links(candidates, ROWS_PER_RANGE // GROUPS_PER_NODE))),
        links[ROWS_PER_RANGE // GROUPS_PER_NODE :],
    )


def test_int8_centroids_and_centroid_graphs_rank_like_floats():
    centroids, queries = clustered(400, 32), clustered(20, 32, seed=2)
    exact = np.argsort(-(queries @ centroids.T), axis=1)[:, :40]
    pairs = list(zip(queries, exact, strict=True))
    for finder in (CoarseCentroids(centroids), CentroidGraph(centroids)):
        shares = [len(np.intersect1d(finder.find_nearest(query, 40), best)) / 40 for query, best in pairs]
        assert np.mean(shares) > 0.95
        assert sorted(finder.find_nearest(queries[0], 400)) == list(range(400))


def test_lists_with_a_centroid_graph_equal_lists_without(small, monkeypatch):
    codebooks, codes, queries = small
    expected = make_lists(codebooks, codes, 40)[0].search(queries, 50, ef=40)
    monkeypatch.setattr(ivf, "MANY_LISTS", 8)
    for result, exact in zip(make_lists(codebooks, codes, 40)[0].search(queries, 50, ef=40), expected, strict=True):
        np.testing.assert_array_equal(result, exact)


def test_more_lists_are_visited_where_they_contain_fewer_than_k_documents(small):
    codebooks, codes, queries = small
    rows = make_lists(codebooks, codes, 100)[0].search(queries, 300, ef=1)[1]
    assert rows.min() >= 0


@pytest.mark.parametrize("share", [0.5, 0.1, 0.01])
@pytest.mark.parametrize("kind", ["random", "correlated", "anticorrelated"])
@pytest.mark.parametrize("scans_all", [True, False])
def test_lists_keep_their_recall_under_a_filter(filtered, kind, share, scans_all, monkeypatch):
    """Also where the filter is correlated or anticorrelated with the query.

    So few documents are scanned completely unless that is disabled.
    """
    if not scans_all:
        monkeypatch.setattr(ivf, "MIN_SAVED_ROWS_8_BIT", -COUNTLESS)
    lists, scan, vectors, queries = filtered
    recalls = []
    for query in queries:
        scores = vectors @ query
        allowed = np.random.default_rng(0).random(len(scores)) < share
        if kind != "random":
            allowed = (
                scores >= np.quantile(scores, 1 - share)
                if kind == "correlated"
                else scores <= np.quantile(scores, share)
            )
        bits = pack_bitmap(allowed)
        expected, rows = (engine.search(query[None], 50, allowed=bits)[1][0] for engine in (scan, lists))
        assert allowed[rows[rows >= 0]].all()
        recalls.append(np.isin(expected, rows).mean())
    unfiltered = np.mean([np.isin(scan.search(q[None], 50)[1], lists.search(q[None], 50)[1]).mean() for q in queries])
    assert np.mean(recalls) >= unfiltered - 0.01


@pytest.fixture(scope="module")
def filtered():
    vectors, queries = clustered(12_000, 48), clustered(20, 48, seed=4)
    codebooks = fitted(vectors, 12)
    lists, order = make_lists(codebooks, codebooks.encode(vectors), 200)
    return lists, FlatEngine(lists.store), vectors[order], queries


@pytest.mark.parametrize("kind", ["random", "correlated", "anticorrelated", "anticorrelated, near entries allowed"])
@pytest.mark.parametrize("share", [0.5, 0.1])
def test_a_filtered_graph_search_finds_allowed_documents_with_bounded_expansions(kind, share):
    """Passing all documents that are nearer than the allowed ones would take longer than scanning."""
    vectors, queries = clustered(6_000, 24), clustered(8, 24, seed=4)
    codebooks = fitted(vectors, 6)
    graph, order = make_graph(codebooks, codebooks.encode(vectors))
    complete, recalls = [], []
    for table, query, scores in zip(graph.compute_tables(queries), queries, queries @ vectors[order].T, strict=True):
        allowed = np.random.default_rng(0).random(len(scores)) < share
        if kind != "random":
            allowed = (
                scores >= np.quantile(scores, 1 - share)
                if kind == "correlated"
                else scores <= np.quantile(scores, share)
            )
        if kind.endswith("entries allowed"):
            allowed[graph._entries[::8]] = True
        bits = pack_bitmap(allowed)
        keys, _, expanded = graph.walk(table, 20, to_bitmask_words(bits, len(scores)))
        assert expanded <= (0 if kind == "anticorrelated" else 2 * 20 / allowed.mean())
        complete.append(len(keys) == 20)
        expected, rows = (
            engine.search(query[None], 20, ef=20, allowed=bits)[1][0] for engine in (FlatEngine(graph.store), graph)
        )
        assert allowed[rows].all()
        recalls.append(np.isin(expected, rows).mean())
    assert np.mean(recalls) >= 0.97
    assert all(complete) or kind.startswith("anticorrelated")


def test_a_bitmap_of_another_size_is_rejected(small):
    codebooks, codes, queries = small
    scan = make_scan(codebooks, codes)
    for wrong in (np.zeros(3, dtype=np.uint8), np.zeros(188, dtype=bool)):
        with pytest.raises(DataError, match="expected uint8"):
            scan.search(queries, 5, allowed=wrong)


def test_threads_do_not_change_results(small):
    codebooks, codes, _ = small
    queries = clustered(40, codebooks.dim, seed=8)
    scan = make_scan(codebooks, codes)
    results = []
    for scan.threads in (1, 4):
        results.append(scan.search(queries, 20))
    np.testing.assert_array_equal(results[0][1], results[1][1])


def measure_recall(built: tuple[Candidates, np.ndarray], scan: Candidates, queries: np.ndarray) -> float:
    graph, order = built
    expected, rows = scan.search(queries, 100)[1], order[graph.search(queries, 100)[1]]
    return float(np.mean([len(np.intersect1d(a, b)) / 100 for a, b in zip(expected, rows, strict=True)]))


@pytest.fixture(scope="module")
def corpus():
    vectors = clustered(40_000, 96)
    codebooks = fitted(vectors, 16)
    random = np.random.default_rng(5)
    queries = vectors[random.integers(0, len(vectors), 200)] + 0.5 * clustered(200, 96, seed=6)
    return codebooks, codebooks.encode(vectors), queries


def test_the_graph_finds_98_percent_of_a_scan(corpus):
    codebooks, codes, queries = corpus
    graph, scan = make_graph(codebooks, codes, ef=200), make_scan(codebooks, codes)
    assert measure_recall(graph, scan, queries) >= 0.98


def test_faiss_graphs_need_inner_products_in_the_table(corpus, monkeypatch):
    """If a new Faiss makes this fail, remove the correction in `faiss_graph`."""
    codebooks, codes, queries = corpus
    codes = codes[:10_000]
    expected = make_scan(codebooks, codes).search(queries, 100)[1]

    def measure_faiss_recall() -> float:
        index = faiss_conversion.export_faiss(codebooks, codes, engine="hnsw")
        load_faiss().downcast_index(index.index).hnsw.efSearch = 200
        return float(
            np.mean([np.isin(*pair).mean() for pair in zip(expected, index.search(queries, 100)[1], strict=True)])
        )

    corrected = measure_faiss_recall()

    def compute_distances(centroids):
        squares = np.square(centroids).sum(axis=2)
        return squares[:, :, None] + squares[:, None] - 2 * np.matmul(centroids, centroids.transpose(0, 2, 1))

    monkeypatch.setattr(faiss_conversion, "compute_inner_product_table", compute_distances)
    assert corrected >= 0.98
    assert measure_faiss_recall() < corrected - 0.03


def test_a_disconnected_graph_returns_k_rows():
    """Many equal documents link only to each other."""
    codebooks = random_codebooks(16, 4)
    codes = np.zeros((4_000, 4), dtype=np.uint8)
    codes[2_000:] = 7
    rows = make_graph(codebooks, codes, ef=200)[0].search(clustered(10, 16), 390)[1]
    assert rows.min() >= 0


@pytest.mark.parametrize("k", [1, 29, 30, 299, 300])
def test_every_k_returns_k_distinct_rows_in_order(k):
    codebooks = random_codebooks(16, 4)
    vectors = clustered(300, 16)
    codes = codebooks.encode(vectors)
    engines = make_scan(codebooks, codes), make_graph(codebooks, codes, ef=1)[0], make_lists(codebooks, codes, 9)[0]
    for engine in engines:
        scores, rows = engine.search(vectors[:5], k)
        assert rows.min() >= 0
        assert all(len(set(row)) == k for row in rows.tolist())
        assert (np.diff(scores, axis=1) <= 0).all()


def test_a_graph_of_few_documents_equals_a_scan(monkeypatch):
    monkeypatch.undo()
    codebooks, vectors = random_codebooks(16, 4), clustered(500, 16)
    codes = codebooks.encode(vectors)
    (graph, order), scan = make_graph(codebooks, codes, ef=1), make_scan(codebooks, codes)
    for k in (4, 50, 500):
        scores, places = graph.search(vectors, k)
        expected = scan.search(vectors, k)
        np.testing.assert_allclose(scores, expected[0], atol=1e-6)
        if k == 500:
            np.testing.assert_array_equal(np.sort(order[places]), np.sort(expected[1]))


def test_default_ef_search_grows_with_k():
    assert [get_default_ef_search(k) for k in (1, 10, 200, 400, 1_000)] == [200, 200, 400, 800, 1_000]


def test_auto_chooses_a_scan_for_few_documents():
    for bits, limit in AUTO_SCAN_DOCUMENTS.items():
        assert choose_engine("auto", limit, bits) == "scan"
        assert choose_engine("auto", limit + 1, bits) == "lists"
    with pytest.raises(ConfigError, match=r"tree.*expected one of auto, flat, ivf, graph, scan, lists, hnsw"):
        choose_engine("tree", 10)


@pytest.mark.parametrize(("alias", "engine"), [("flat", "scan"), ("ivf", "lists"), ("graph", "hnsw")])
def test_engines_have_the_names_of_faiss_too(alias, engine):
    assert choose_engine(alias, 10) == engine


def test_default_nprobe_is_a_fifth_of_the_lists_and_less_of_very_many():
    assert [get_default_nprobe(lists) for lists in (1, 3, 100, 4_000)] == [1, 1, 20, 800]
    assert get_default_nprobe(4_000, 1.5) == 1_200
    values = [get_default_nprobe(lists) for lists in range(4_000, 200_000, 1_000)]
    assert values == sorted(values)
    assert get_default_nprobe(126_491) < 0.02 * 126_491
