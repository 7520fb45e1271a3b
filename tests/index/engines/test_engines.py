"""Laws of the engines: at full width each of them is the scan, and the scan is what numpy says."""

from collections.abc import Callable

import numpy as np
import pytest
from sample_index import clustered, fitted, random_codebooks

from bidr.errors import ConfigError, DataError
from bidr.index import faiss_conversion as faissfile
from bidr.index.builder.in_memory import make_graph, make_lists, make_scan
from bidr.index.builder.reorder import GROUP
from bidr.index.engines import ivf as filtered_engine
from bidr.index.engines import ivf as lists_engine
from bidr.index.engines.adc_tables import AdcTables, compute_margin, pad_books, quantize_table
from bidr.index.engines.code_store import from_blocks, to_blocks
from bidr.index.engines.factory import AUTO_SCAN_DOCUMENTS, choose_engine
from bidr.index.engines.fast_scan import SAMPLE_EVERY
from bidr.index.engines.flat import FlatEngine
from bidr.index.engines.graph import engine as graph_engine
from bidr.index.engines.graph.adjacency import count_link_bits, read_links, write_links
from bidr.index.engines.graph.build import (
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
from bidr.index.types import Candidates, as_words
from bidr.quantization.additive_quantizer import fit_additive
from bidr.quantization.codebooks import Codebooks
from bidr.utils.faiss_loader import load_faiss

COUNTLESS = 1 << 40
Corpus = tuple[Codebooks, np.ndarray, np.ndarray]
KINDS = ("8-bit", "4-bit", "4-bit, odd", "additive", "additive in groups", "additive, 4-bit", "additive, 4-bit, odd")


@pytest.fixture(autouse=True)
def always_walk(monkeypatch):
    """On so few documents a graph would scan instead, and its faults would not show."""
    monkeypatch.setattr(graph_engine, "SCANNED_PER_VISIT", 0)


@pytest.fixture(scope="module", params=KINDS)
def small(request) -> Corpus:
    """Codes of every kind, 1,500 documents, a few of them twice."""
    vectors, queries = clustered(1_500, 24), clustered(6, 24, seed=3)
    vectors[700:720] = vectors[:20]
    if request.param.startswith("additive"):
        books, words = {"additive, 4-bit": (8, 16), "additive, 4-bit, odd": (5, 16)}.get(request.param, (4, 256))
        additive = fit_additive(vectors, books, words, groups=2 if "groups" in request.param else 1)
        return additive.to_codebooks(), additive.encode(vectors), additive.adapt(queries)
    books, words = {"8-bit": (6, 256), "4-bit": (12, 16), "4-bit, odd": (3, 16)}[request.param]
    codebooks = fitted(vectors, books, words)
    return codebooks, codebooks.encode(vectors), queries


def by_hand(corpus: Corpus, k: int, allowed: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Tables and their sums in numpy, in the order in which an engine sums; equal scores by row."""
    codebooks, codes, queries = corpus
    table = AdcTables(codebooks).of(queries)
    scores = np.zeros((len(queries), len(codes)), dtype=np.float32)
    parts = [table[:, book][:, codes[:, book]] for book in range(codebooks.books)]
    if codebooks.bits == 4:  # four sums that are added in the end
        sums = [np.sum([scores, *parts[place::4]], axis=0, dtype=np.float32) for place in range(4)]
        scores = (sums[0] + sums[1]) + (sums[2] + sums[3])
    else:
        scores = np.sum(parts, axis=0, dtype=np.float32)
    if allowed is not None:
        scores[:, ~allowed] = -np.inf
    rows = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    scores = np.take_along_axis(scores, rows, axis=1)
    return scores, np.where(np.isinf(scores), -1, rows)


def bitmap(allowed: np.ndarray | None) -> np.ndarray | None:
    return None if allowed is None else np.packbits(allowed, bitorder="little")


@pytest.fixture(scope="module")
def engines(small) -> dict[str, Callable[..., tuple[np.ndarray, np.ndarray]]]:
    """Every engine at full width, answering in rows."""
    codebooks, codes, _ = small
    scan = make_scan(codebooks, codes)

    def in_rows(made, ef):
        engine, order = made

        def search(queries, k, allowed):
            bits = None if allowed is None else bitmap(allowed[order])
            scores, places = engine.search(queries, k, ef=ef, allowed=bits)
            return scores, np.where(places < 0, -1, order[places])

        return search

    return {
        "scan": lambda queries, k, allowed: scan.search(queries, k, allowed=bitmap(allowed)),
        "lists": in_rows(make_lists(codebooks, codes, 40), 40),
        "hnsw": in_rows(make_graph(codebooks, codes), len(codes)),
    }


@pytest.mark.parametrize("share", [None, 0.9, 0.3, 0.02, 0.0])
@pytest.mark.parametrize("k", [1, 40, 300])
def test_at_full_width_every_engine_is_the_scan_by_hand(small, engines, share, k):
    _, codes, queries = small
    allowed = None if share is None else np.random.default_rng(1).random(len(codes)) < share
    expected = by_hand(small, k, allowed)
    deeper = by_hand(small, k + 40, allowed)[1]
    for name, search in engines.items():
        scores, rows = search(queries, k, allowed)
        np.testing.assert_allclose(scores, expected[0], rtol=1e-5, atol=1e-5, err_msg=name)
        np.testing.assert_array_equal(rows < 0, expected[1] < 0, err_msg=name)
        for number, found in enumerate(rows):
            real = found[found >= 0]
            assert len(set(real.tolist())) == len(real), name
            assert allowed is None or allowed[real].all(), name
            assert len(np.setdiff1d(real, deeper[number])) == 0, name


@pytest.mark.parametrize(("words", "groups"), [(256, 1), (16, 1), (16, 2)])
def test_tables_of_sums_with_an_adapter_are_products_with_every_codeword(words, groups):
    vectors, queries = clustered(600, 24), clustered(6, 24, seed=3)
    additive = fit_additive(vectors, 4, words, groups=groups)
    turned = np.random.default_rng(0).standard_normal(additive.query.shape).astype(np.float32)
    codebooks = additive._replace(query=turned).to_adapted_codebooks()
    rotated = codebooks.rotate(queries).reshape(len(queries), codebooks.books, -1)
    expected = np.einsum("qms,mws->qmw", rotated, codebooks.centroids)
    np.testing.assert_allclose(AdcTables(codebooks).of(queries), expected, rtol=1e-4, atol=1e-4)


def test_the_scan_is_that_of_numpy_to_the_bit(small):
    codebooks, codes, queries = small
    scores, rows = make_scan(codebooks, codes).search(queries, 200)
    expected = by_hand(small, 200)
    np.testing.assert_array_equal(scores, expected[0])
    np.testing.assert_array_equal(rows, expected[1])


def test_lookups_in_place_of_shuffles_change_nothing(small):
    codebooks, codes, queries = small
    scan = make_scan(codebooks, codes)
    allowed = bitmap(np.random.default_rng(1).random(len(codes)) < 0.5)
    with_shuffle = scan.search(queries, 100, allowed=allowed)
    scan.store.shuffle = None
    for found, expected in zip(scan.search(queries, 100, allowed=allowed), with_shuffle, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("books", [1, 2, 7, 8, 15, 96, 129])
@pytest.mark.parametrize("count", [1, 31, 32, 33, 500])
def test_every_number_of_books_and_documents_scans_right(books, count):
    """Pairs of books beyond a multiple of four, and documents beyond one of 32, take ways of their own."""
    random = np.random.default_rng(books)
    codebooks = random_codebooks(books * 2, books)
    codes = random.integers(0, 16, (count, books), dtype=np.uint8)
    corpus = codebooks, codes, random.standard_normal((3, 2 * books)).astype(np.float32)
    k = min(count, 20)
    for found, expected in zip(make_scan(codebooks, codes).search(corpus[2], k), by_hand(corpus, k), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("books", [1_024, 1_152, 2_048])
def test_sums_of_very_many_books_fit_16_bits(books):
    """All books alike, so that rounded sums come to the most that there can be."""
    random = np.random.default_rng(0)
    words = np.tile(np.linspace(-1, 1, 16, dtype=np.float32)[:, None], (books, 1, 1))
    codebooks, codes = Codebooks(np.eye(books, dtype=np.float32), words), random.integers(0, 16, (3_000, books))
    codes[7] = 15  # the best that there can be
    codes[11, : 4 * books // 5] = 15
    query = np.ones((1, books), dtype=np.float32)
    wanted = np.argsort(-codes.sum(axis=1), kind="stable")[:10]
    rows = make_scan(codebooks, codes.astype(np.uint8)).search(query, 10)[1][0]
    assert rows[:2].tolist() == [7, 11]
    np.testing.assert_array_equal(codes[rows].sum(axis=1), codes[wanted].sum(axis=1))


def test_rounded_tables_stay_within_their_margin():
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


def test_codes_of_some_rows_are_those_among_all(small):
    codebooks, codes, _ = small
    rows = np.array([0, 31, 32, 33, len(codes) - 1, 7, 7])
    np.testing.assert_array_equal(make_scan(codebooks, codes).unpack_codes(rows), codes[rows])
    np.testing.assert_array_equal(
        make_graph(codebooks, codes)[0].unpack_codes(rows), make_graph(codebooks, codes)[0].unpack_codes()[rows]
    )


def test_blocks_are_undone():
    for count, books in ((1, 1), (32, 3), (100, 8)):
        rows = np.random.default_rng(0).integers(0, 256, (count, books), dtype=np.uint8)
        np.testing.assert_array_equal(from_blocks(to_blocks(rows))[:count], rows)


def test_many_equal_documents_are_answered_by_row():
    codebooks = random_codebooks(16, 4)
    codes = np.zeros((5_000, 4), dtype=np.uint8)
    codes[::7] = 3
    query = np.ones((1, 16), dtype=np.float32)
    answers = make_scan(codebooks, codes).search(query, 100)
    for found, expected in zip(answers, by_hand((codebooks, codes, query), 100), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_sample_that_misleads_costs_time_and_no_answers():
    """The best documents stand in the sampled blocks alone, and are fewer than k: the first guess is too high."""
    codebooks, k = random_codebooks(16, 4), 64
    random = np.random.default_rng(0)
    query = random.standard_normal((1, 16)).astype(np.float32)
    table = AdcTables(codebooks).of(query)[0]
    codes = random.integers(0, 16, (4 * 32 * k, 4), dtype=np.uint8)
    sampled = (np.arange(len(codes)) // 32 % SAMPLE_EVERY == SAMPLE_EVERY - 1) & (np.arange(len(codes)) % 8 == 0)
    assert 0 < sampled.sum() < k
    codes[sampled] = table.argmax(axis=1)
    codes[~sampled] = np.where(codes[~sampled] == table.argmax(axis=1), table.argmin(axis=1), codes[~sampled])
    for found, expected in zip(
        make_scan(codebooks, codes).search(query, k), by_hand((codebooks, codes, query), k), strict=True
    ):
        np.testing.assert_array_equal(found, expected)


def test_links_are_read_as_they_were_written():
    random, found = np.random.default_rng(4), np.empty(MAX_LINKS, dtype=np.int64)
    drawn = [np.unique(random.integers(0, 8**power, 130)).tolist() for power in range(1, 10)]
    for groups in ([], [0], [7, 8], [3, 130, 131, 40_000, 3_000_000, (1 << 31) - 1], list(range(MAX_LINKS)), *drawn):
        packed = np.zeros(3 * LINK_WORDS, dtype=np.uint64)
        packed[2 * LINK_WORDS :] = 2**64 - 1  # another's
        while sum(count_link_bits(int(gap)) for gap in np.diff(groups, prepend=-1)) > 64 * LINK_WORDS:
            groups.pop()
        write_links(np.array(groups, dtype=np.int64), packed[LINK_WORDS : 2 * LINK_WORDS])
        assert found[: read_links(packed, LINK_WORDS, LINK_WORDS, found)].tolist() == groups
        assert not packed[:LINK_WORDS].any()


def test_links_fill_their_bytes_with_near_documents():
    vectors = clustered(3_000, 32)
    codebooks = fitted(vectors, 8)
    graph, order = make_graph(codebooks, codebooks.encode(vectors))
    assert sorted(order) == list(range(3_000))
    near, found, counts = np.empty(MAX_LINKS, dtype=np.int64), [], []
    products = (decoded := codebooks.decode(graph.unpack_codes())) @ decoded.T
    for place in range(0, 3_000, 100):
        groups = near[: read_links(graph.links[place // NODE], 0, LINK_WORDS, near)].copy()
        assert place // NODE not in groups // GROUPS_PER_NODE
        counts.append(len(groups))
        nearest = np.argsort(-products[place])[:10]
        found.append((np.isin(nearest // GROUP, groups) | (nearest // NODE == place // NODE)).mean())
    assert np.mean(found) > 0.9
    assert np.mean(counts) > 300


@pytest.mark.parametrize("misled", [False, True])
@pytest.mark.parametrize("count", [1, 250, 4_999])
def test_the_nearest_are_those_that_sorting_finds(misled, count):
    scores = np.random.default_rng(3).standard_normal((4, 5_000), dtype=np.float32).round(2)
    if misled:
        scores[:, ::16] += 100  # what a sample sees: it then promises too much
    assert np.array_equal(_select_best(scores, count), np.argsort(-scores, axis=1, kind="stable")[:, :count])


def test_links_are_the_same_wherever_a_build_goes_on():
    codebooks, vectors = random_codebooks(16, 4), clustered(1_000, 16)
    codes = codebooks.encode(vectors)
    noted = np.concatenate(list(choose_links(codebooks, codes, 50)))
    assert len(noted) == 1_000 // GROUP
    again = 3 * ROWS_PER_RANGE // GROUP
    np.testing.assert_array_equal(np.concatenate(list(choose_links(codebooks, codes, 50, again))), noted[again:])
    links = np.concatenate(list(pack_links(noted)))
    np.testing.assert_array_equal(
        np.concatenate(list(pack_links(noted, ROWS_PER_RANGE // GROUPS_PER_NODE))),
        links[ROWS_PER_RANGE // GROUPS_PER_NODE :],
    )


def test_centroids_in_bytes_and_by_graph_come_in_the_order_of_floats():
    centroids, queries = clustered(400, 32), clustered(20, 32, seed=2)
    exact = np.argsort(-(queries @ centroids.T), axis=1)[:, :40]
    pairs = list(zip(queries, exact, strict=True))
    for found in (CoarseCentroids(centroids), CentroidGraph(centroids)):
        shares = [len(np.intersect1d(found.find_nearest(query, 40), own)) / 40 for query, own in pairs]
        assert np.mean(shares) > 0.95
        assert sorted(found.find_nearest(queries[0], 400)) == list(range(400))


def test_lists_whose_centroids_a_graph_finds_answer_as_others(small, monkeypatch):
    codebooks, codes, queries = small
    expected = make_lists(codebooks, codes, 40)[0].search(queries, 50, ef=40)
    monkeypatch.setattr(lists_engine, "MANY_LISTS", 8)
    for found, wanted in zip(make_lists(codebooks, codes, 40)[0].search(queries, 50, ef=40), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_lists_that_hold_too_few_are_not_the_end(small):
    """One list is asked for, and 300 documents: as many lists are visited as it takes."""
    codebooks, codes, queries = small
    rows = make_lists(codebooks, codes, 100)[0].search(queries, 300, ef=1)[1]
    assert rows.min() >= 0


@pytest.mark.parametrize("share", [0.5, 0.1, 0.01])
@pytest.mark.parametrize("kind", ["at random", "with", "against"])
@pytest.mark.parametrize("whole", [True, False])
def test_lists_keep_their_recall_under_a_filter(filtered, kind, share, whole, monkeypatch):
    """Also where the filter goes with the query, or allows only what is far from it.

    So few documents would be scanned, as that is quicker.
    """
    if not whole:
        monkeypatch.setattr(filtered_engine, "MIN_SAVED_ROWS_8_BIT", -COUNTLESS)
    lists, scan, vectors, queries = filtered
    found = []
    for query in queries:
        near = vectors @ query
        allowed = np.random.default_rng(0).random(len(near)) < share
        if kind != "at random":
            allowed = near >= np.quantile(near, 1 - share) if kind == "with" else near <= np.quantile(near, share)
        wanted, rows = (one.search(query[None], 50, allowed=bitmap(allowed))[1][0] for one in (scan, lists))
        assert allowed[rows[rows >= 0]].all()
        found.append(np.isin(wanted, rows).mean())
    everything = np.mean([np.isin(scan.search(q[None], 50)[1], lists.search(q[None], 50)[1]).mean() for q in queries])
    assert np.mean(found) >= everything - 0.01


@pytest.fixture(scope="module")
def filtered():
    vectors, queries = clustered(12_000, 48), clustered(20, 48, seed=4)
    codebooks = fitted(vectors, 12)
    lists, order = make_lists(codebooks, codebooks.encode(vectors), 200)
    return lists, FlatEngine(lists.store), vectors[order], queries


@pytest.mark.parametrize("kind", ["at random", "with", "against", "against, near entries allowed"])
@pytest.mark.parametrize("share", [0.5, 0.1])
def test_a_graph_finds_what_passes_a_filter_without_going_through_everything(kind, share):
    """What is nearer than all that is allowed would be walked through, which takes longer than scanning."""
    vectors, queries = clustered(6_000, 24), clustered(8, 24, seed=4)
    codebooks = fitted(vectors, 6)
    graph, order = make_graph(codebooks, codebooks.encode(vectors))
    found, shares = [], []
    for table, query, near in zip(graph.compute_tables(queries), queries, queries @ vectors[order].T, strict=True):
        allowed = np.random.default_rng(0).random(len(near)) < share
        if kind != "at random":
            allowed = near >= np.quantile(near, 1 - share) if kind == "with" else near <= np.quantile(near, share)
        if kind.endswith("entries allowed"):
            allowed[graph._entries[::8]] = True
        bits = bitmap(allowed)
        keys, _, passed = graph.walk(table, 20, as_words(bits, len(near)))
        assert passed <= (0 if kind == "against" else 2 * 20 / allowed.mean())
        found.append(len(keys) == 20)
        wanted, rows = (
            one.search(query[None], 20, ef=20, allowed=bits)[1][0] for one in (FlatEngine(graph.store), graph)
        )
        assert allowed[rows].all()
        shares.append(np.isin(wanted, rows).mean())
    assert np.mean(shares) >= 0.97
    assert all(found) or kind.startswith("against")


def test_a_bitmap_of_another_size_is_refused(small):
    codebooks, codes, queries = small
    scan = make_scan(codebooks, codes)
    for wrong in (np.zeros(3, dtype=np.uint8), np.zeros(188, dtype=bool)):
        with pytest.raises(DataError, match="expected uint8"):
            scan.search(queries, 5, allowed=wrong)


def test_threads_change_nothing(small):
    codebooks, codes, _ = small
    queries = clustered(40, codebooks.dim, seed=8)
    scan = make_scan(codebooks, codes)
    answers = []
    for scan.threads in (1, 4):
        answers.append(scan.search(queries, 20))
    np.testing.assert_array_equal(answers[0][1], answers[1][1])


def share_found(made: tuple[Candidates, np.ndarray], scan: Candidates, queries: np.ndarray) -> float:
    graph, order = made
    wanted, found = scan.search(queries, 100)[1], order[graph.search(queries, 100)[1]]
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
    graph, scan = make_graph(codebooks, codes, ef=200), make_scan(codebooks, codes)
    assert share_found(graph, scan, queries) >= 0.98


def test_without_inner_products_in_the_table_a_graph_of_faiss_is_broken(corpus, monkeypatch):
    """Should a new Faiss make this fail, the correction in `faiss_graph` can go."""
    codebooks, codes, queries = corpus
    codes = codes[:10_000]
    wanted = make_scan(codebooks, codes).search(queries, 100)[1]

    def found() -> float:
        index = faissfile.export_faiss(codebooks, codes, engine="hnsw")
        load_faiss().downcast_index(index.index).hnsw.efSearch = 200
        return float(
            np.mean([np.isin(*pair).mean() for pair in zip(wanted, index.search(queries, 100)[1], strict=True)])
        )

    corrected = found()

    def euclidean(centroids):
        squares = np.square(centroids).sum(axis=2)
        return squares[:, :, None] + squares[:, None] - 2 * np.matmul(centroids, centroids.transpose(0, 2, 1))

    monkeypatch.setattr(faissfile, "inner_product_table", euclidean)
    assert corrected >= 0.98
    assert found() < corrected - 0.03


def test_a_graph_in_pieces_still_gives_k_rows():
    """Many equal documents fill one another's links, so that a walk cannot leave them."""
    codebooks = random_codebooks(16, 4)
    codes = np.zeros((4_000, 4), dtype=np.uint8)
    codes[2_000:] = 7
    rows = make_graph(codebooks, codes, ef=200)[0].search(clustered(10, 16), 390)[1]
    assert rows.min() >= 0


@pytest.mark.parametrize("k", [1, 29, 30, 299, 300])
def test_every_depth_gives_k_different_rows_in_order(k):
    codebooks = random_codebooks(16, 4)
    vectors = clustered(300, 16)
    codes = codebooks.encode(vectors)
    made = make_scan(codebooks, codes), make_graph(codebooks, codes, ef=1)[0], make_lists(codebooks, codes, 9)[0]
    for engine in made:
        scores, rows = engine.search(vectors[:5], k)
        assert rows.min() >= 0
        assert all(len(set(found)) == k for found in rows.tolist())
        assert (np.diff(scores, axis=1) <= 0).all()


def test_a_graph_of_few_documents_answers_as_a_scan_does(monkeypatch):
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


def test_width_grows_with_what_is_wanted():
    assert [get_default_ef_search(k) for k in (1, 10, 200, 400, 1_000)] == [200, 200, 400, 800, 1_000]


def test_engine_names():
    for bits, most in AUTO_SCAN_DOCUMENTS.items():
        assert choose_engine("auto", most, bits) == "scan"
        assert choose_engine("auto", most + 1, bits) == "lists"
    with pytest.raises(ConfigError, match=r"ivf.*expected one of auto, scan, lists, hnsw"):
        choose_engine("ivf", 10)


def test_a_fifth_of_the_lists_is_visited_and_of_very_many_fewer():
    assert [get_default_nprobe(lists) for lists in (1, 3, 100, 4_000)] == [1, 1, 20, 800]
    assert get_default_nprobe(4_000, 1.5) == 1_200
    ever = [get_default_nprobe(lists) for lists in range(4_000, 200_000, 1_000)]
    assert ever == sorted(ever)
    assert get_default_nprobe(126_491) < 0.02 * 126_491
