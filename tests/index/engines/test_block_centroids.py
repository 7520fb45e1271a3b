"""IVF with block centroids: only the nearest blocks of 32 documents are scanned."""

from itertools import pairwise

import numpy as np
import pytest
from sample_index import clustered, fitted, random_codebooks

from bidr.errors import IndexFolderError
from bidr.index.builder import coarse_clustering as clusters
from bidr.index.builder import reorder as arrange
from bidr.index.builder.block_centroid_builder import compute_block_centroids
from bidr.index.builder.build import build_index
from bidr.index.builder.clustering_vectors import VectorInput
from bidr.index.builder.in_memory_engines import make_lists, make_scan
from bidr.index.builder.journal import WorkFolder
from bidr.index.builder.reorder import bisect_rows, order_in_blocks
from bidr.index.engines import block_centroids, ivf
from bidr.index.engines.block_centroids import BlockCentroids, choose_book_shape, select_blocks
from bidr.index.engines.code_store import to_blocks
from bidr.index.engines.fast_scan_kernels import BLOCK, detect_pshufb
from bidr.index.engines.ivf import BLOCKS_SHARE, IvfEngine, get_default_nprobe
from bidr.index.reader import IndexReader
from bidr.quantization.additive_quantizer import fit_additive

COUNT, DIM = 1_510, 24


@pytest.fixture(autouse=True)
def use_blocks_in_small_indexes(monkeypatch):
    monkeypatch.setattr(block_centroids, "MIN_BLOCKS", 16)


@pytest.fixture(scope="module", params=["8-bit", "4-bit", "additive"])
def corpus(request):
    vectors, queries = clustered(COUNT, DIM), clustered(6, DIM, seed=3)
    if request.param == "additive":
        additive = fit_additive(vectors, 4, 256)
        return additive.to_codebooks(), additive.encode(vectors), additive.adapt(queries)
    books = fitted(vectors, *{"8-bit": (6, 256), "4-bit": (12, 16)}[request.param])
    return books, books.encode(vectors), queries


@pytest.mark.parametrize("k", [1, 40, 700, COUNT])
def test_visiting_all_blocks_equals_the_scan(corpus, k):
    codebooks, codes, queries = corpus
    engine, order = make_lists(codebooks, codes, 40)
    assert isinstance(engine.block_centroids, BlockCentroids)
    scores, places = engine.search(queries, k, ef=engine.list_count)
    expected = make_scan(codebooks, codes[order]).search(queries, k)
    np.testing.assert_array_equal(scores, expected[0])
    np.testing.assert_array_equal(places, expected[1])


@pytest.mark.parametrize("many", [0, 1 << 20])
def test_any_nprobe_returns_k_distinct_rows(corpus, monkeypatch, many):
    monkeypatch.setattr(ivf, "MANY_BLOCKS", many)
    codebooks, codes, queries = corpus
    engine, _ = make_lists(codebooks, codes, 40)
    for k in (1, 31, 32, 33, 500, COUNT):
        rows = engine.search(queries, k, ef=1)[1]
        assert rows.min() >= 0
        assert all(len(np.unique(row)) == k for row in rows)


@pytest.mark.parametrize("ranges", [[(0, 700)], [(3, 40), (40, 41), (64, 96), (100, 700)], [(699, 700)]])
@pytest.mark.parametrize("count", [1, 20, 699])
def test_selected_blocks_equal_those_of_numpy(ranges, count):
    random = np.random.default_rng(0)
    rows, table = (random.integers(0, 256, shape, dtype=np.uint8) for shape in ((700, 5), (5, 32)))
    table //= 8  # four of them fit a byte
    low, high = (table[np.arange(5), at] for at in (rows & 15, 16 + (rows >> 4)))
    sums = (low.astype(int) + high).sum(axis=1)
    inside = np.concatenate([np.arange(*range_) for range_ in ranges])
    bound = np.sort(sums[inside])[::-1][min(count, len(inside)) - 1]
    starts, stops = np.array(ranges).T
    for shuffle in {detect_pshufb(), None}:
        selected = select_blocks(to_blocks(rows), table, starts, stops, count, shuffle)
        np.testing.assert_array_equal(selected, inside[sums[inside] >= bound])


def test_centroids_are_means_of_blocks():
    rows = np.random.default_rng(0).standard_normal((100, 8)).astype(np.float32)
    expected = [rows[at : at + BLOCK].mean(axis=0) for at in range(0, 100, BLOCK)]
    np.testing.assert_allclose(compute_block_centroids(rows), expected, atol=1e-5)


@pytest.mark.parametrize("prefix", [0, 5, 31])
def test_parts_end_at_blocks_and_rounds_reduce_their_spread(prefix):
    vectors = clustered(333, DIM)
    spread = {}
    for rounds in (0, 5):
        order = bisect_rows(vectors, np.arange(333), BLOCK, rounds, prefix)
        np.testing.assert_array_equal(np.sort(order), np.arange(333))
        ends = [0, *range(prefix or BLOCK, 333, BLOCK), 333]
        parts = [vectors[order[start:stop]] for start, stop in pairwise(ends)]
        spread[rounds] = sum(np.square(part - part.mean(axis=0)).sum() for part in parts)
    assert spread[5] < 0.97 * spread[0]


def test_blocks_have_higher_recall_than_lists_of_as_many_documents():
    vectors, queries = clustered(20_000, DIM), clustered(50, DIM, seed=3)
    codebooks = fitted(vectors, 12, 16)
    engine, _ = make_lists(codebooks, codebooks.encode(vectors), 100)
    by_lists = IvfEngine(engine.store, *_compute_centroids(engine, codebooks), engine.nprobe)
    expected = engine.search(queries, 100, ef=engine.list_count)[1]
    recalls = []
    for searched in (engine, by_lists):
        rows = searched.search(queries, 100, ef=engine.list_count // 20)[1]
        recalls.append(np.mean([np.isin(best, row).mean() for best, row in zip(expected, rows, strict=True)]))
    assert recalls[0] > recalls[1] + 0.02


def _compute_centroids(engine, codebooks):
    decoded = codebooks.decode(engine.unpack_codes()) @ codebooks.rotation
    offsets = engine.offsets
    return np.add.reduceat(decoded, offsets[:-1]) / np.diff(offsets)[:, None], offsets


def test_default_nprobe_is_lower_with_blocks(monkeypatch):
    vectors = clustered(20_000, DIM)
    codebooks = random_codebooks(DIM, 12)
    engine, _ = make_lists(codebooks, codebooks.encode(vectors))
    nprobes = []
    monkeypatch.setattr(
        engine, "_select_blocks", lambda centroids, query, nprobe, k: nprobes.append(nprobe) or engine._near_all
    )
    monkeypatch.setattr(engine, "_near_all", (np.zeros(1, dtype=np.int64), np.full(1, 100)), raising=False)
    engine.search(vectors[:1], 10)
    assert nprobes == [get_default_nprobe(engine.list_count, BLOCKS_SHARE)]
    assert nprobes[0] == pytest.approx(0.7 * get_default_nprobe(engine.list_count), abs=1)


@pytest.mark.parametrize(("dim", "books"), [(384, 128), (768, 128), (1_024, 128), (100, 100), (257, 86), (300, 100)])
def test_block_centroids_take_at_most_two_bytes_per_document(dim, books):
    count, width = choose_book_shape(dim)
    assert (count, dim <= count * width < dim + width) == (books, True)


def test_indivisible_dimensions_have_equal_recall(monkeypatch, tmp_path):
    monkeypatch.setattr(block_centroids, "MAX_BOOKS", 16)
    recalls = {}
    for dim in (22, 23):
        vectors, queries = clustered(6_000, dim), clustered(40, dim, seed=3)
        additive = fit_additive(vectors[:3_000], 8, 16)
        codes = {"codebooks": additive.to_codebooks(), "codes": additive.encode(vectors)}
        build_index(tmp_path / f"{dim}", vectors=vectors, engine="lists", **codes)
        with IndexReader.open(tmp_path / f"{dim}") as reader:
            adapted, engine = additive.adapt(queries), reader.candidates
            expected, rows = (
                engine.search(adapted, 100, ef=ef)[1] for ef in (engine.list_count, engine.list_count // 10)
            )
        recalls[dim] = np.mean([np.isin(best, row).mean() for best, row in zip(expected, rows, strict=True)])
    assert recalls[23] > recalls[22] - 0.05


class TestOnDisk:
    @pytest.fixture
    def folder(self, tmp_path):
        vectors, codebooks = clustered(COUNT, DIM), random_codebooks(DIM, 12)
        build_index(tmp_path, codebooks=codebooks, codes=codebooks.encode(vectors), vectors=vectors, engine="lists")
        return tmp_path

    def test_an_index_on_disk_equals_one_in_memory(self, folder):
        codebooks, queries = random_codebooks(DIM, 12), clustered(6, DIM, seed=3)
        vectors = clustered(COUNT, DIM)
        in_memory, order = make_lists(codebooks, codebooks.encode(vectors), vectors=vectors)
        with IndexReader.open(folder) as reader:
            assert reader.candidates.block_centroids is not None
            np.testing.assert_array_equal(reader.order, order)
            for ef in (1, 10):
                results, expected = (engine.search(queries, 30, ef=ef) for engine in (reader.candidates, in_memory))
                np.testing.assert_array_equal(results[0], expected[0])
                np.testing.assert_array_equal(results[1], expected[1])

    def test_a_build_killed_at_its_end_resumes_without_clustering(self, tmp_path, monkeypatch):
        vectors, codebooks = clustered(COUNT, DIM), random_codebooks(DIM, 12)
        arrays = {"codebooks": codebooks, "codes": codebooks.encode(vectors), "vectors": vectors, "engine": "lists"}
        work = WorkFolder(tmp_path).open_subfolder("work")
        build_index(tmp_path / "i", **arrays, work=work)  # its journal remains, as after a kill
        monkeypatch.setattr(clusters, "run_round", None)
        build_index(tmp_path / "i", **arrays, work=work)

    @pytest.mark.parametrize("name", ["means.npy", "means.safetensors"])
    def test_damaged_block_centroids_are_rejected(self, folder, name):
        path = folder / "000001" / name
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        with pytest.raises(IndexFolderError, match=name):
            IndexReader.open(folder)

    def test_block_centroids_that_the_manifest_does_not_list_are_ignored(self, folder, tmp_path, monkeypatch):
        monkeypatch.setattr(block_centroids, "MIN_BLOCKS", 1_000)
        vectors, codebooks = clustered(COUNT, DIM), random_codebooks(DIM, 12)
        arrays = {"codebooks": codebooks, "codes": codebooks.encode(vectors), "vectors": vectors, "engine": "lists"}
        generation = build_index(tmp_path / "i", **arrays)
        for name in ("means.npy", "means.safetensors"):
            (generation / name).write_bytes((folder / "000001" / name).read_bytes())
        with IndexReader.open(tmp_path / "i") as reader:
            assert reader.candidates.block_centroids is None

    def test_without_block_centroids_lists_are_visited(self, tmp_path, monkeypatch):
        monkeypatch.setattr(block_centroids, "MIN_BLOCKS", 1_000)
        vectors, codebooks = clustered(COUNT, DIM), random_codebooks(DIM, 12)
        build_index(tmp_path, codebooks=codebooks, codes=codebooks.encode(vectors), vectors=vectors, engine="lists")
        with IndexReader.open(tmp_path) as reader:
            assert reader.candidates.block_centroids is None
            assert reader.candidates.search(vectors[:2], 100)[1].min() >= 0


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("batch_rows", [128, 1 << 14])
def test_lists_are_partitioned_independently(monkeypatch, threads, batch_rows):
    """For any batch size and number of threads."""
    monkeypatch.setattr(arrange, "MAX_BATCH_ROWS", batch_rows)
    monkeypatch.setattr(arrange, "count_available_cpus", lambda: threads)
    vectors, order = clustered(900, DIM), np.random.default_rng(1).permutation(900)
    offsets = np.array([0, 0, 45, 170, 170, 260, 300, 428, 429, 520, 640, 768, 800, 900])
    expected = []
    for start, stop in pairwise(offsets.tolist()):
        rows = np.sort(order[start:stop])
        expected.append(rows[bisect_rows(vectors[rows], np.arange(len(rows)), BLOCK, arrange.ROUNDS, -start % BLOCK)])
    result = np.concatenate(list(order_in_blocks(VectorInput(vectors), offsets, order, BLOCK)))
    np.testing.assert_array_equal(result, np.concatenate(expected))
