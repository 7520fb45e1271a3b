"""Lists under a filter: what is looked into, and that it is enough."""

from itertools import pairwise

import numpy as np
import pytest
from sample_index import clustered, fitted

from bidr.index.builder.in_memory import make_lists
from bidr.index.engines import block_centroids as means_engine
from bidr.index.engines import ivf as lists_engine
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
from bidr.index.engines.flat import FlatEngine
from bidr.index.engines.ivf import count_bits_in_ranges
from bidr.index.engines.pshufb import BLOCK, CACHE_LINE, detect_pshufb

COUNT, DIM = 12_010, 24
KINDS = ("at random", "with", "against", "clusters against")


@pytest.fixture(scope="module", params=[(12, 16), (6, 256)], ids=["4-bit", "8-bit"])
def corpus(request):
    """Lists with blocks, a scan over the same codes, vectors by place, queries."""
    vectors, queries = clustered(COUNT, DIM), clustered(12, DIM, seed=4)
    codebooks = fitted(vectors, *request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(means_engine, "MIN_BLOCKS", 16)
        engine, order = make_lists(codebooks, codebooks.encode(vectors), 100)
    assert engine.block_centroids is not None
    return engine, FlatEngine(engine.store), vectors[order], queries


def mask_of(kind, share, near, engine):
    if kind == "at random":
        return np.random.default_rng(0).random(len(near)) < share
    if kind == "with":
        return near >= np.quantile(near, 1 - share)
    if kind == "against":
        return near <= np.quantile(near, share)
    of = np.repeat(np.arange(engine.list_count), np.diff(engine.offsets))
    worst = np.argsort([near[of == number].mean() for number in range(engine.list_count)])
    return np.isin(of, worst[: round(share * engine.list_count)])


def filled_by(mask):
    """Blocks that hold an allowed document."""
    return np.count_nonzero(np.add.reduceat(mask, np.arange(0, len(mask), BLOCK)))


def bits(mask):
    return np.packbits(mask, bitorder="little")


def looked_at(engine, monkeypatch):
    """Blocks that each scan of the store looks into from now on, without those where nothing is allowed."""
    seen = []
    for name in ("scan", "scan_sparse"):
        scan = getattr(engine.store, name)

        def watched(table, starts, stops, k, allowed=ALL_ROWS, scan=scan):
            there = np.zeros(-(-engine.count // BLOCK), dtype=bool)
            for start, stop in zip(starts, stops, strict=True):
                there[start // BLOCK : -(-stop // BLOCK)] = True
            seen.append(int((there & (allowed > 0)).sum() if len(allowed) else there.sum()))
            return scan(table, starts, stops, k, allowed)

        monkeypatch.setattr(engine.store, name, watched)
    return seen


@pytest.mark.parametrize("share", [1.0, 0.5, 0.1, 0.01, 0.001])
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_scan_finds_is_found(corpus, kind, share):
    engine, scan, vectors, queries = corpus
    found = []
    for query in queries:
        mask = mask_of(kind, share, vectors @ query, engine)
        wanted, rows = (one.search(query[None], 50, allowed=bits(mask))[1][0] for one in (scan, engine))
        np.testing.assert_array_equal(wanted < 0, rows < 0)
        assert mask[rows[rows >= 0]].all()
        assert len(np.unique(rows[rows >= 0])) == (rows >= 0).sum()
        found.append(np.isin(wanted, rows).mean())
    usual = [np.isin(scan.search(query[None], 50)[1], engine.search(query[None], 50)[1]).mean() for query in queries]
    assert np.mean(found) >= np.mean(usual) - 0.01


@pytest.mark.parametrize("share", [0.5, 0.1])
def test_as_many_blocks_are_looked_into_as_it_takes(corpus, monkeypatch, share):
    engine, _, vectors, queries = corpus
    seen, blocks = looked_at(engine, monkeypatch), {}
    for kind in (None, *KINDS):
        seen.clear()
        for query in queries:
            allowed = None if kind is None else bits(mask_of(kind, share, vectors @ query, engine))
            engine.search(query[None], 20, allowed=allowed)
        blocks[kind] = sum(seen) / len(queries)
    slack = 1.1  # equal means are taken together
    assert blocks["at random"] <= slack * lists_engine.FILTERED_BLOCKS_FACTOR * blocks[None]
    assert blocks["with"] <= slack * lists_engine.FILTERED_BLOCKS_FACTOR * blocks[None]
    assert blocks["at random"] > 1.5 * blocks[None]
    assert blocks["against"] == np.mean(
        [filled_by(mask_of("against", share, vectors @ query, engine)) for query in queries]
    )


def test_one_deleted_document_changes_next_to_nothing(corpus, monkeypatch):
    engine, _, _, queries = corpus
    seen = looked_at(engine, monkeypatch)
    expected = engine.search(queries[:1], 20)[1][0]
    mask = np.ones(COUNT, dtype=bool)
    mask[expected[3]] = False
    rows = engine.search(queries[:1], 20, allowed=bits(mask))[1][0]
    np.testing.assert_array_equal(rows[:19], np.delete(expected, 3))
    assert abs(seen[1] - seen[0]) <= 2


@pytest.mark.parametrize("many", [0, 1 << 20])
@pytest.mark.parametrize("share", [0.9, 0.3, 0.02])
def test_whatever_is_visited_as_many_come_as_there_are(corpus, monkeypatch, many, share):
    monkeypatch.setattr(lists_engine, "MANY_BLOCKS", many)
    engine, _, vectors, queries = corpus
    for kind in KINDS:
        mask = mask_of(kind, share, vectors @ queries[0], engine)
        for k in (1, 33, 2_000):
            rows = engine.search(queries[:1], k, ef=1, allowed=bits(mask))[1][0]
            assert (rows >= 0).sum() == min(k, mask.sum())
            assert mask[rows[rows >= 0]].all()


@pytest.mark.parametrize("against", [False, True])
@pytest.mark.parametrize(("more", "documents"), [(20, 1), (300, 1), (5, 2_000), (5, 10**6)])
@pytest.mark.parametrize("ranges", [[(0, 700)], [(3, 40), (40, 41), (64, 96), (100, 700)]])
def test_the_best_held_are_those_of_numpy(against, more, documents, ranges):
    random = np.random.default_rng(0)
    rows, table = (random.integers(0, 256, shape, dtype=np.uint8) for shape in ((700, 5), (5, 32)))
    table //= 8
    low, high = (table[np.arange(5), at] for at in (rows & 15, 16 + (rows >> 4)))
    sums = (low.astype(int) + high).sum(axis=1)
    held = np.where(random.random(700) < 0.6, random.integers(1, 33, 700), 0).astype(np.uint8)
    inside = np.concatenate([np.arange(*each) for each in ranges])
    usual = inside[sums[inside] >= np.sort(sums[inside])[-50]]
    density = held[usual].mean() / BLOCK
    wanted = BlockBudget(50, more, documents, density + (0.001 if against else -0.001))
    filled = inside[held[inside] > 0]
    order = filled[np.argsort(-sums[filled], kind="stable")]
    enough = int(np.searchsorted(np.cumsum(held[order].astype(int)), documents)) + 1
    bound = sums[order[min(max(more, enough), len(order)) - 1]]
    expected = filled[sums[filled] >= bound]
    starts, stops = np.array(ranges).T
    for shuffle in {detect_pshufb(), None}:
        found = select_filtered_blocks(to_blocks(rows), table, starts, stops, held, wanted, shuffle)
        np.testing.assert_array_equal(found, [] if against else expected)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.2, 0.9])
def test_runs_leave_out_what_holds_nothing_and_nothing_else(share):
    random = np.random.default_rng(1)
    allowed = (random.random(300) < share).astype(np.uint32)
    starts, stops = np.array([5, 640, 4_000, 9_599]), np.array([70, 641, 9_000, 9_600])
    begins, ends = find_allowed_ranges(starts, stops, allowed)
    rows = np.concatenate([np.arange(*each) for each in zip(starts, stops, strict=True)])
    left = np.concatenate([np.arange(0), *(np.arange(*each) for each in zip(begins, ends, strict=True))])
    assert np.isin(rows[allowed[rows // BLOCK] > 0], left).all()
    assert np.isin(left, rows).all()
    assert len(np.unique(left)) == len(left)
    for begin, end in zip(begins, ends, strict=True):
        there = allowed[begin // BLOCK : -(-end // BLOCK)]
        assert there[0]
        assert there[-1]
        assert "0" * (MAX_GAP_BLOCKS + 1) not in "".join(map(str, there))
    for end, begin in zip(ends[:-1], begins[1:], strict=True):
        same = np.searchsorted(starts, end, side="right") == np.searchsorted(starts, begin, side="right")
        assert not same or begin // BLOCK - -(-end // BLOCK) > MAX_GAP_BLOCKS


@pytest.mark.parametrize("share", [0.5, 0.05, 0.002])
def test_ranges_under_a_filter_are_scanned_as_by_hand(corpus, share):
    engine, scan, _, queries = corpus
    mask, random = np.random.default_rng(2).random(COUNT) < share, np.random.default_rng(3)
    cuts = np.sort(random.choice(COUNT, 40, replace=False))
    starts, stops = cuts[::2], cuts[1::2]
    inside = np.zeros(COUNT, dtype=bool)
    for start, stop in zip(starts, stops, strict=True):
        inside[start:stop] = True
    expected = scan.search(queries[:1], 30, allowed=bits(mask & inside))
    words = np.zeros(-(-COUNT // BLOCK) * 4, dtype=np.uint8)
    words[: len(bits(mask))] = bits(mask)
    table = engine.compute_tables(queries[:1])[0]
    for way in (engine.store.scan, engine.store.scan_sparse):
        for found, wanted in zip(way(table, starts, stops, 30, words.view(np.uint32)), expected, strict=True):
            np.testing.assert_array_equal(found, wanted[0])


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("ranges", [[(0, 32_000)], [(5, 70), (640, 641), (4_000, 9_000), (9_599, 31_990)], [(33, 34)]])
def test_every_so_many_blocks_of_ranges_are_sampled(ranges, filtered):
    mask = np.random.default_rng(5).random(32_000) < (0.02 if filtered else 1)
    words = np.packbits(mask, bitorder="little").view(np.uint32) if filtered else ALL_ROWS
    blocks = [(at, *each) for each in ranges for at in range(each[0] // BLOCK, -(-each[1] // BLOCK))]
    expected = []
    for block, start, stop in blocks[SAMPLE_EVERY - 1 :: SAMPLE_EVERY]:
        rows = np.arange(BLOCK * block, BLOCK * block + BLOCK)
        wanted = np.packbits((rows >= start) & (rows < stop) & mask[rows], bitorder="little").view(np.uint32)[0]
        expected += [(block, wanted)] if wanted else []
    starts, stops = np.array(ranges).T
    found = _sample_blocks(starts, stops, words, int((stops - starts).sum()))
    assert list(zip(*found, strict=True)) == expected


def test_good_ones_that_stand_together_are_no_guess_too_high():
    """Of two blocks of the best one is in the sample, where by chance a sixteenth of one would be."""
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
def test_what_stands_last_in_a_long_range_is_found(ranges):
    table = np.tile(np.arange(16, dtype=np.uint8), (4, 2))
    rows = 17 * np.random.default_rng(7).integers(0, 12, (64_000, 4), dtype=np.uint8)
    best = np.concatenate([np.arange(stop - 10, stop) for _, stop in ranges])
    rows[best] = 255
    starts, stops = np.array(ranges).T
    for shuffle in {detect_pshufb(), None}:
        keys = scan_top_k(to_blocks(rows), table, starts, stops, ALL_ROWS, len(best), 0, shuffle)
        np.testing.assert_array_equal(np.sort(extract_rows(keys)), best)


def test_blocks_begin_with_a_line_of_the_cache():
    for count in (1, 40, 5_000, 200_000):
        assert to_blocks(np.zeros((count, 8), dtype=np.uint8)).ctypes.data % CACHE_LINE == 0


def test_bits_are_counted_in_each_range():
    mask, offsets = np.random.default_rng(0).random(1_000) < 0.3, np.array([0, 5, 5, 32, 64, 99, 640, 1_000])
    words = np.packbits(np.pad(mask, (0, 24)), bitorder="little").view(np.uint32)
    expected = [mask[start:stop].sum() for start, stop in pairwise(offsets)]
    np.testing.assert_array_equal(count_bits_in_ranges(words, np.bitwise_count(words), offsets), expected)
