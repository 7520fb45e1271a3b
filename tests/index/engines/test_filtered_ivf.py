"""IVF search under a filter: what is scanned, and the recall."""

from itertools import pairwise

import numpy as np
import pytest
from sample_index import clustered, fitted

from bidr.index.builder.in_memory_engines import make_lists
from bidr.index.engines import block_centroids, ivf
from bidr.index.engines.adc_kernels import extract_rows
from bidr.index.engines.block_centroids import BlockBudget, select_filtered_blocks
from bidr.index.engines.code_store import ALL_ROWS, to_blocks
from bidr.index.engines.fast_scan import (
    MAX_GAP_BLOCKS,
    SAMPLE_EVERY,
    _estimate_threshold,
    _sample_blocks,
    find_allowed_ranges,
    scan_top_k,
)
from bidr.index.engines.fast_scan_kernels import BLOCK, CACHE_LINE, detect_pshufb
from bidr.index.engines.flat import FlatEngine
from bidr.index.engines.ivf import count_bits_in_ranges

COUNT, DIM = 12_010, 24
KINDS = ("random", "correlated", "anticorrelated", "anticorrelated clusters")


@pytest.fixture(scope="module", params=[(12, 16), (6, 256)], ids=["4-bit", "8-bit"])
def corpus(request):
    """An IVF engine with block centroids, a scan over the same codes, vectors in index order, queries."""
    vectors, queries = clustered(COUNT, DIM), clustered(12, DIM, seed=4)
    codebooks = fitted(vectors, *request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_centroids, "MIN_BLOCKS", 16)
        engine, order = make_lists(codebooks, codebooks.encode(vectors), 100)
    assert engine.block_centroids is not None
    return engine, FlatEngine(engine.store), vectors[order], queries


def make_mask(kind, share, scores, engine):
    if kind == "random":
        return np.random.default_rng(0).random(len(scores)) < share
    if kind == "correlated":
        return scores >= np.quantile(scores, 1 - share)
    if kind == "anticorrelated":
        return scores <= np.quantile(scores, share)
    list_of_row = np.repeat(np.arange(engine.list_count), np.diff(engine.offsets))
    worst = np.argsort([scores[list_of_row == number].mean() for number in range(engine.list_count)])
    return np.isin(list_of_row, worst[: round(share * engine.list_count)])


def count_filled_blocks(mask):
    """Count the blocks with an allowed document."""
    return np.count_nonzero(np.add.reduceat(mask, np.arange(0, len(mask), BLOCK)))


def pack_bitmap(mask):
    return np.packbits(mask, bitorder="little")


def count_scanned_blocks(engine, monkeypatch):
    """Record the number of blocks of each later scan, without those where nothing is allowed."""
    block_counts = []
    for name in ("scan", "scan_sparse"):
        scan = getattr(engine.store, name)

        def count_and_scan(table, starts, stops, k, allowed=ALL_ROWS, scan=scan):
            visited = np.zeros(-(-engine.count // BLOCK), dtype=bool)
            for start, stop in zip(starts, stops, strict=True):
                visited[start // BLOCK : -(-stop // BLOCK)] = True
            block_counts.append(int((visited & (allowed > 0)).sum() if len(allowed) else visited.sum()))
            return scan(table, starts, stops, k, allowed)

        monkeypatch.setattr(engine.store, name, count_and_scan)
    return block_counts


@pytest.mark.parametrize("share", [1.0, 0.5, 0.1, 0.01, 0.001])
@pytest.mark.parametrize("kind", KINDS)
def test_filtered_search_has_the_recall_of_unfiltered_search(corpus, kind, share):
    engine, scan, vectors, queries = corpus
    recalls = []
    for query in queries:
        mask = make_mask(kind, share, vectors @ query, engine)
        bits = pack_bitmap(mask)
        expected, rows = (searched.search(query[None], 50, allowed=bits)[1][0] for searched in (scan, engine))
        np.testing.assert_array_equal(expected < 0, rows < 0)
        assert mask[rows[rows >= 0]].all()
        assert len(np.unique(rows[rows >= 0])) == (rows >= 0).sum()
        recalls.append(np.isin(expected, rows).mean())
    unfiltered = [
        np.isin(scan.search(query[None], 50)[1], engine.search(query[None], 50)[1]).mean() for query in queries
    ]
    assert np.mean(recalls) >= np.mean(unfiltered) - 0.01


@pytest.mark.parametrize("share", [0.5, 0.1])
def test_filters_increase_the_scanned_blocks_within_bounds(corpus, monkeypatch, share):
    engine, _, vectors, queries = corpus
    counts, blocks = count_scanned_blocks(engine, monkeypatch), {}
    for kind in (None, *KINDS):
        counts.clear()
        for query in queries:
            allowed = None if kind is None else pack_bitmap(make_mask(kind, share, vectors @ query, engine))
            engine.search(query[None], 20, allowed=allowed)
        blocks[kind] = sum(counts) / len(queries)
    slack = 1.1  # ties are included
    assert blocks["random"] <= slack * ivf.FILTERED_BLOCKS_FACTOR * blocks[None]
    assert blocks["correlated"] <= slack * ivf.FILTERED_BLOCKS_FACTOR * blocks[None]
    assert blocks["random"] > 1.5 * blocks[None]
    assert blocks["anticorrelated"] == np.mean(
        [count_filled_blocks(make_mask("anticorrelated", share, vectors @ query, engine)) for query in queries]
    )


def test_a_deleted_document_hardly_changes_the_scanned_blocks(corpus, monkeypatch):
    engine, _, _, queries = corpus
    counts = count_scanned_blocks(engine, monkeypatch)
    expected = engine.search(queries[:1], 20)[1][0]
    mask = np.ones(COUNT, dtype=bool)
    mask[expected[3]] = False
    rows = engine.search(queries[:1], 20, allowed=pack_bitmap(mask))[1][0]
    np.testing.assert_array_equal(rows[:19], np.delete(expected, 3))
    assert abs(counts[1] - counts[0]) <= 2


@pytest.mark.parametrize("many", [0, 1 << 20])
@pytest.mark.parametrize("share", [0.9, 0.3, 0.02])
def test_any_nprobe_returns_all_allowed_documents_up_to_k(corpus, monkeypatch, many, share):
    monkeypatch.setattr(ivf, "MANY_BLOCKS", many)
    engine, _, vectors, queries = corpus
    for kind in KINDS:
        mask = make_mask(kind, share, vectors @ queries[0], engine)
        for k in (1, 33, 2_000):
            rows = engine.search(queries[:1], k, ef=1, allowed=pack_bitmap(mask))[1][0]
            assert (rows >= 0).sum() == min(k, mask.sum())
            assert mask[rows[rows >= 0]].all()


@pytest.mark.parametrize("anticorrelated", [False, True])
@pytest.mark.parametrize(("min_blocks", "documents"), [(20, 1), (300, 1), (5, 2_000), (5, 10**6)])
@pytest.mark.parametrize("ranges", [[(0, 700)], [(3, 40), (40, 41), (64, 96), (100, 700)]])
def test_selected_filtered_blocks_equal_those_of_numpy(anticorrelated, min_blocks, documents, ranges):
    random = np.random.default_rng(0)
    rows, table = (random.integers(0, 256, shape, dtype=np.uint8) for shape in ((700, 5), (5, 32)))
    table //= 8
    low, high = (table[np.arange(5), at] for at in (rows & 15, 16 + (rows >> 4)))
    sums = (low.astype(int) + high).sum(axis=1)
    counts = np.where(random.random(700) < 0.6, random.integers(1, 33, 700), 0).astype(np.uint8)
    inside = np.concatenate([np.arange(*range_) for range_ in ranges])
    unfiltered = inside[sums[inside] >= np.sort(sums[inside])[-50]]
    density = counts[unfiltered].mean() / BLOCK
    budget = BlockBudget(50, min_blocks, documents, density + (0.001 if anticorrelated else -0.001))
    filled = inside[counts[inside] > 0]
    order = filled[np.argsort(-sums[filled], kind="stable")]
    enough = int(np.searchsorted(np.cumsum(counts[order].astype(int)), documents)) + 1
    bound = sums[order[min(max(min_blocks, enough), len(order)) - 1]]
    expected = filled[sums[filled] >= bound]
    starts, stops = np.array(ranges).T
    for shuffle in {detect_pshufb(), None}:
        selected = select_filtered_blocks(to_blocks(rows), table, starts, stops, counts, budget, shuffle)
        np.testing.assert_array_equal(selected, [] if anticorrelated else expected)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.2, 0.9])
def test_allowed_ranges_omit_only_blocks_without_allowed_rows(share):
    random = np.random.default_rng(1)
    allowed = (random.random(300) < share).astype(np.uint32)
    starts, stops = np.array([5, 640, 4_000, 9_599]), np.array([70, 641, 9_000, 9_600])
    begins, ends = find_allowed_ranges(starts, stops, allowed)
    rows = np.concatenate([np.arange(*range_) for range_ in zip(starts, stops, strict=True)])
    remaining = np.concatenate([np.arange(0), *(np.arange(*range_) for range_ in zip(begins, ends, strict=True))])
    assert np.isin(rows[allowed[rows // BLOCK] > 0], remaining).all()
    assert np.isin(remaining, rows).all()
    assert len(np.unique(remaining)) == len(remaining)
    for begin, end in zip(begins, ends, strict=True):
        blocks = allowed[begin // BLOCK : -(-end // BLOCK)]
        assert blocks[0]
        assert blocks[-1]
        assert "0" * (MAX_GAP_BLOCKS + 1) not in "".join(map(str, blocks))
    for end, begin in zip(ends[:-1], begins[1:], strict=True):
        same_range = np.searchsorted(starts, end, side="right") == np.searchsorted(starts, begin, side="right")
        assert not same_range or begin // BLOCK - -(-end // BLOCK) > MAX_GAP_BLOCKS


@pytest.mark.parametrize("share", [0.5, 0.05, 0.002])
def test_filtered_scans_of_ranges_equal_a_filtered_scan_of_all(corpus, share):
    engine, scan, _, queries = corpus
    mask, random = np.random.default_rng(2).random(COUNT) < share, np.random.default_rng(3)
    cuts = np.sort(random.choice(COUNT, 40, replace=False))
    starts, stops = cuts[::2], cuts[1::2]
    inside = np.zeros(COUNT, dtype=bool)
    for start, stop in zip(starts, stops, strict=True):
        inside[start:stop] = True
    expected = scan.search(queries[:1], 30, allowed=pack_bitmap(mask & inside))
    words = np.zeros(-(-COUNT // BLOCK) * 4, dtype=np.uint8)
    words[: len(pack_bitmap(mask))] = pack_bitmap(mask)
    table = engine.compute_tables(queries[:1])[0]
    for scan_ranges in (engine.store.scan, engine.store.scan_sparse):
        results = scan_ranges(table, starts, stops, 30, words.view(np.uint32))
        for result, exact in zip(results, expected, strict=True):
            np.testing.assert_array_equal(result, exact[0])


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("ranges", [[(0, 32_000)], [(5, 70), (640, 641), (4_000, 9_000), (9_599, 31_990)], [(33, 34)]])
def test_every_nth_block_of_ranges_is_sampled(ranges, filtered):
    mask = np.random.default_rng(5).random(32_000) < (0.02 if filtered else 1)
    words = np.packbits(mask, bitorder="little").view(np.uint32) if filtered else ALL_ROWS
    blocks = [(block, start, stop) for start, stop in ranges for block in range(start // BLOCK, -(-stop // BLOCK))]
    expected = []
    for block, start, stop in blocks[SAMPLE_EVERY - 1 :: SAMPLE_EVERY]:
        rows = np.arange(BLOCK * block, BLOCK * block + BLOCK)
        bits = np.packbits((rows >= start) & (rows < stop) & mask[rows], bitorder="little").view(np.uint32)[0]
        expected += [(block, bits)] if bits else []
    starts, stops = np.array(ranges).T
    sample = _sample_blocks(starts, stops, words, int((stops - starts).sum()))
    assert list(zip(*sample, strict=True)) == expected


def test_clustered_best_rows_do_not_raise_the_estimate_too_far():
    """One of two blocks of the best rows is sampled; a sixteenth of a block would be expected."""
    k, table = 200, np.tile(np.arange(16, dtype=np.uint8), (4, 2))
    rows = 17 * np.random.default_rng(6).integers(0, 15, (64_000, 4), dtype=np.uint8)
    for block in (SAMPLE_EVERY - 1, 101):
        rows[BLOCK * block : BLOCK * block + BLOCK] = 255
    codes, (starts, stops) = to_blocks(rows), np.array([[0], [64_000]])
    low, high = rows & 15, rows >> 4
    kth = np.sort((low.astype(int) + high).sum(axis=1))[-k]
    for shuffle in {detect_pshufb(), None}:
        assert 0 < _estimate_threshold(codes, table, starts, stops, ALL_ROWS, k, 0, shuffle) <= kth


@pytest.mark.parametrize("ranges", [[(0, 64_000)], [(0, 32_000), (32_320, 64_000)]])
def test_the_last_rows_of_long_ranges_are_found(ranges):
    table = np.tile(np.arange(16, dtype=np.uint8), (4, 2))
    rows = 17 * np.random.default_rng(7).integers(0, 12, (64_000, 4), dtype=np.uint8)
    best = np.concatenate([np.arange(stop - 10, stop) for _, stop in ranges])
    rows[best] = 255
    starts, stops = np.array(ranges).T
    for shuffle in {detect_pshufb(), None}:
        keys = scan_top_k(to_blocks(rows), table, starts, stops, ALL_ROWS, len(best), 0, shuffle)
        np.testing.assert_array_equal(np.sort(extract_rows(keys)), best)


def test_blocks_are_aligned_to_cache_lines():
    for count in (1, 40, 5_000, 200_000):
        assert to_blocks(np.zeros((count, 8), dtype=np.uint8)).ctypes.data % CACHE_LINE == 0


def test_bits_are_counted_per_range():
    mask, offsets = np.random.default_rng(0).random(1_000) < 0.3, np.array([0, 5, 5, 32, 64, 99, 640, 1_000])
    words = np.packbits(np.pad(mask, (0, 24)), bitorder="little").view(np.uint32)
    expected = [mask[start:stop].sum() for start, stop in pairwise(offsets)]
    np.testing.assert_array_equal(count_bits_in_ranges(words, np.bitwise_count(words), offsets), expected)
