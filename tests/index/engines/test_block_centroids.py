"""Lists that look into blocks of 32 documents, by the means of these."""

from itertools import pairwise

import numpy as np
import pytest
from sample_index import clustered, fitted, random_codebooks

from bidr.errors import IndexFolderError
from bidr.index.builder import coarse_clustering as clusters
from bidr.index.builder import reorder as arrange
from bidr.index.builder.block_centroids import compute_block_centroids
from bidr.index.builder.build import build_index
from bidr.index.builder.cluster_input import VectorInput
from bidr.index.builder.in_memory import make_lists, make_scan
from bidr.index.builder.journal import WorkFolder
from bidr.index.builder.reorder import bisect_rows, order_in_blocks
from bidr.index.engines import block_centroids as means_engine
from bidr.index.engines import ivf as lists_engine
from bidr.index.engines.block_centroids import BlockCentroids, choose_book_shape, select_blocks
from bidr.index.engines.code_store import to_blocks
from bidr.index.engines.ivf import BLOCKS_SHARE, IvfEngine, get_default_nprobe
from bidr.index.engines.pshufb import BLOCK, detect_pshufb
from bidr.index.reader import IndexReader
from bidr.quantization.additive_quantizer import fit_additive

COUNT, DIM = 1_510, 24


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch):
    monkeypatch.setattr(means_engine, "MIN_BLOCKS", 16)


@pytest.fixture(scope="module", params=["8-bit", "4-bit", "additive"])
def corpus(request):
    vectors, queries = clustered(COUNT, DIM), clustered(6, DIM, seed=3)
    if request.param == "additive":
        additive = fit_additive(vectors, 4, 256)
        return additive.to_codebooks(), additive.encode(vectors), additive.adapt(queries)
    books = fitted(vectors, *{"8-bit": (6, 256), "4-bit": (12, 16)}[request.param])
    return books, books.encode(vectors), queries


@pytest.mark.parametrize("k", [1, 40, 700, COUNT])
def test_all_blocks_are_the_scan(corpus, k):
    codebooks, codes, queries = corpus
    engine, order = make_lists(codebooks, codes, 40)
    assert isinstance(engine.block_centroids, BlockCentroids)
    scores, places = engine.search(queries, k, ef=engine.list_count)
    expected = make_scan(codebooks, codes[order]).search(queries, k)
    np.testing.assert_array_equal(scores, expected[0])
    np.testing.assert_array_equal(places, expected[1])


@pytest.mark.parametrize("many", [0, 1 << 20])
def test_whatever_is_visited_k_different_rows_come(corpus, monkeypatch, many):
    monkeypatch.setattr(lists_engine, "MANY_BLOCKS", many)
    codebooks, codes, queries = corpus
    engine, _ = make_lists(codebooks, codes, 40)
    for k in (1, 31, 32, 33, 500, COUNT):
        rows = engine.search(queries, k, ef=1)[1]
        assert rows.min() >= 0
        assert all(len(np.unique(row)) == k for row in rows)


@pytest.mark.parametrize("ranges", [[(0, 700)], [(3, 40), (40, 41), (64, 96), (100, 700)], [(699, 700)]])
@pytest.mark.parametrize("count", [1, 20, 699])
def test_the_best_means_are_those_of_numpy(ranges, count):
    random = np.random.default_rng(0)
    rows, table = (random.integers(0, 256, shape, dtype=np.uint8) for shape in ((700, 5), (5, 32)))
    table //= 8  # four of them fit a byte
    low, high = (table[np.arange(5), at] for at in (rows & 15, 16 + (rows >> 4)))
    sums = (low.astype(int) + high).sum(axis=1)
    inside = np.concatenate([np.arange(*each) for each in ranges])
    least = np.sort(sums[inside])[::-1][min(count, len(inside)) - 1]
    starts, stops = np.array(ranges).T
    for shuffle in {detect_pshufb(), None}:
        found = select_blocks(to_blocks(rows), table, starts, stops, count, shuffle)
        np.testing.assert_array_equal(found, inside[sums[inside] >= least])


def test_means_are_of_what_stands_in_a_block():
    rows = np.random.default_rng(0).standard_normal((100, 8)).astype(np.float32)
    expected = [rows[at : at + BLOCK].mean(axis=0) for at in range(0, 100, BLOCK)]
    np.testing.assert_allclose(compute_block_centroids(rows), expected, atol=1e-5)


@pytest.mark.parametrize("before", [0, 5, 31])
def test_parts_end_where_blocks_do_and_rounds_bring_near_ones_together(before):
    vectors = clustered(333, DIM)
    spread = {}
    for rounds in (0, 5):
        order = bisect_rows(vectors, np.arange(333), BLOCK, rounds, before)
        np.testing.assert_array_equal(np.sort(order), np.arange(333))
        ends = [0, *range(before or BLOCK, 333, BLOCK), 333]
        parts = [vectors[order[start:stop]] for start, stop in pairwise(ends)]
        spread[rounds] = sum(np.square(part - part.mean(axis=0)).sum() for part in parts)
    assert spread[5] < 0.97 * spread[0]


def test_blocks_find_more_of_as_many_documents_than_whole_lists():
    vectors, queries = clustered(20_000, DIM), clustered(50, DIM, seed=3)
    codebooks = fitted(vectors, 12, 16)
    engine, _ = make_lists(codebooks, codebooks.encode(vectors), 100)
    whole = IvfEngine(engine.store, *_centroids(engine, codebooks), engine.nprobe)
    wanted = engine.search(queries, 100, ef=engine.list_count)[1]
    found = []
    for one in (engine, whole):
        rows = one.search(queries, 100, ef=engine.list_count // 20)[1]
        found.append(np.mean([np.isin(right, near).mean() for right, near in zip(wanted, rows, strict=True)]))
    assert found[0] > found[1] + 0.02


def _centroids(engine, codebooks):
    decoded = codebooks.decode(engine.unpack_codes()) @ codebooks.rotation
    offsets = engine.offsets
    return np.add.reduceat(decoded, offsets[:-1]) / np.diff(offsets)[:, None], offsets


def test_by_default_blocks_hold_fewer_documents(monkeypatch):
    vectors = clustered(20_000, DIM)
    codebooks = random_codebooks(DIM, 12)
    engine, _ = make_lists(codebooks, codebooks.encode(vectors))
    asked = []
    monkeypatch.setattr(
        engine, "_select_blocks", lambda means, query, visits, k: asked.append(visits) or engine._near_all
    )
    monkeypatch.setattr(engine, "_near_all", (np.zeros(1, dtype=np.int64), np.full(1, 100)), raising=False)
    engine.search(vectors[:1], 10)
    assert asked == [get_default_nprobe(engine.list_count, BLOCKS_SHARE)]
    assert asked[0] == pytest.approx(0.7 * get_default_nprobe(engine.list_count), abs=1)


@pytest.mark.parametrize(("dim", "books"), [(384, 128), (768, 128), (1_024, 128), (100, 100), (257, 86), (300, 100)])
def test_means_take_at_most_two_bytes_a_document(dim, books):
    found, width = choose_book_shape(dim)
    assert (found, dim <= found * width < dim + width) == (books, True)


def test_dimensions_that_nothing_divides_are_looked_into_as_well(monkeypatch, tmp_path):
    monkeypatch.setattr(means_engine, "MAX_BOOKS", 16)
    share = {}
    for dim in (22, 23):
        vectors, queries = clustered(6_000, dim), clustered(40, dim, seed=3)
        additive = fit_additive(vectors[:3_000], 8, 16)
        made = {"codebooks": additive.to_codebooks(), "codes": additive.encode(vectors)}
        build_index(tmp_path / f"{dim}", vectors=vectors, engine="lists", **made)
        with IndexReader.open(tmp_path / f"{dim}") as reader:
            asked, engine = additive.adapt(queries), reader.candidates
            wanted, found = (engine.search(asked, 100, ef=ef)[1] for ef in (engine.list_count, engine.list_count // 10))
        share[dim] = np.mean([np.isin(right, near).mean() for right, near in zip(wanted, found, strict=True)])
    assert share[23] > share[22] - 0.05


class TestOnDisk:
    @pytest.fixture
    def folder(self, tmp_path):
        vectors, codebooks = clustered(COUNT, DIM), random_codebooks(DIM, 12)
        build_index(tmp_path, codebooks=codebooks, codes=codebooks.encode(vectors), vectors=vectors, engine="lists")
        return tmp_path

    def test_an_index_answers_as_one_in_memory(self, folder):
        codebooks, queries = random_codebooks(DIM, 12), clustered(6, DIM, seed=3)
        vectors = clustered(COUNT, DIM)
        made, order = make_lists(codebooks, codebooks.encode(vectors), vectors=vectors)
        with IndexReader.open(folder) as reader:
            assert reader.candidates.block_centroids is not None
            np.testing.assert_array_equal(reader.order, order)
            for ef in (1, 10):
                found, wanted = (engine.search(queries, 30, ef=ef) for engine in (reader.candidates, made))
                np.testing.assert_array_equal(found[0], wanted[0])
                np.testing.assert_array_equal(found[1], wanted[1])

    def test_a_build_that_was_killed_at_its_end_does_not_divide_again(self, tmp_path, monkeypatch):
        vectors, codebooks = clustered(COUNT, DIM), random_codebooks(DIM, 12)
        given = {"codebooks": codebooks, "codes": codebooks.encode(vectors), "vectors": vectors, "engine": "lists"}
        work = WorkFolder(tmp_path).open_subfolder("work")
        build_index(tmp_path / "i", **given, work=work)  # whose work is there still, as after a kill
        monkeypatch.setattr(clusters, "run_round", None)
        build_index(tmp_path / "i", **given, work=work)

    @pytest.mark.parametrize("name", ["means.npy", "means.safetensors"])
    def test_damaged_means_are_refused(self, folder, name):
        path = folder / "000001" / name
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        with pytest.raises(IndexFolderError, match=name):
            IndexReader.open(folder)

    def test_without_means_whole_lists_are_visited(self, tmp_path, monkeypatch):
        monkeypatch.setattr(means_engine, "MIN_BLOCKS", 1_000)
        vectors, codebooks = clustered(COUNT, DIM), random_codebooks(DIM, 12)
        build_index(tmp_path, codebooks=codebooks, codes=codebooks.encode(vectors), vectors=vectors, engine="lists")
        with IndexReader.open(tmp_path) as reader:
            assert reader.candidates.block_centroids is None
            assert reader.candidates.search(vectors[:2], 100)[1].min() >= 0


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("together", [128, 1 << 14])
def test_lists_are_divided_each_by_itself(monkeypatch, threads, together):
    """However many are read at once, and by how many threads."""
    monkeypatch.setattr(arrange, "MAX_BATCH_ROWS", together)
    monkeypatch.setattr(arrange, "available_cpus", lambda: threads)
    vectors, order = clustered(900, DIM), np.random.default_rng(1).permutation(900)
    offsets = np.array([0, 0, 45, 170, 170, 260, 300, 428, 429, 520, 640, 768, 800, 900])
    expected = []
    for start, stop in pairwise(offsets.tolist()):
        rows = np.sort(order[start:stop])
        expected.append(rows[bisect_rows(vectors[rows], np.arange(len(rows)), BLOCK, arrange.ROUNDS, -start % BLOCK)])
    found = np.concatenate(list(order_in_blocks(VectorInput(vectors), offsets, order, BLOCK)))
    np.testing.assert_array_equal(found, np.concatenate(expected))
