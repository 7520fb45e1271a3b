"""Bits that one compiled pass writes, beside what numpy says, and whole filters beside a look at each document."""

import json
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_live_index import BOOKS, some

from bidr.data.types import Document
from bidr.errors import IndexFolderError
from bidr.index.builder.build import build_index
from bidr.index.documents import attribute_columns as stored
from bidr.index.documents.lru_cache import OVERHEAD
from bidr.index.filters.bitmask import (
    ROWS_PER_BLOCK,
    allocate_bitmask,
    map_to_positions,
    map_to_rows,
    mark_float_range,
    mark_floats,
    mark_int_range,
    mark_ints,
    mark_range,
)
from bidr.index.filters.filter_expression import RANGES, match_filter, parse_filter
from bidr.index.reader import IndexReader

COUNTS = st.sampled_from(
    [1, 31, 32, 33, 100, ROWS_PER_BLOCK - 1, ROWS_PER_BLOCK, ROWS_PER_BLOCK + 1, 2 * ROWS_PER_BLOCK + 40]
)
SEEDS = st.integers(0, 1 << 32)
LARGE = 2**63 - 1
NONE = np.iinfo(np.int64).min
WHOLES = np.array([NONE, -LARGE, -(2**62), -70_000, -2, -1, 0, 1, 2, 3, 65_535, 65_536, 2**53, 2**53 + 1, LARGE])
FRACTIONS = np.array([np.nan, -1e300, -2.5, -1, -0.0, 0.0, 5e-324, 0.1, 0.5, 1, 2, 2**53, 2**62, 1e300])
KEYS = st.sampled_from(["gt", "gte", "lt", "lte"])
ASKED = st.one_of(
    st.sampled_from([*WHOLES.tolist(), *FRACTIONS[1:].tolist(), 2**63, -(2**80), 10**400, -(10**400), 1.5, 1e-300]),
    st.integers(-3, 70_000),
)
SOME = st.lists(ASKED, min_size=1, max_size=30)
LIMITS = st.dictionaries(KEYS, ASKED, min_size=1, max_size=3)


def pack_mask(mask):
    words = np.zeros(-(-len(mask) // 32) * 4, dtype=np.uint8)
    words[: -(-len(mask) // 8)] = np.packbits(mask, bitorder="little")
    return words.view("<u4").tolist()


def run_kernel(mark, values, *asked):
    words = allocate_bitmask(len(values))
    mark(values, *asked, words)
    return words.tolist()


def draw_values(among, count, seed):
    """Some of the values, and others of the same kind."""
    random = np.random.default_rng(seed)
    values = random.choice(among, count)
    values[random.random(count) < 0.5] = random.integers(-3, 300)
    return values


def compare_in_python(values, holds):
    """As Python compares, number by number; the one that stands for none never passes."""
    return np.array([value != NONE and holds(value) for value in values.tolist()])


@given(COUNTS, SEEDS, SOME, LIMITS)
@settings(deadline=None, max_examples=60)
def test_integers_compare_as_in_python(count, seed, some_asked, limits):
    values = draw_values(WHOLES, count, seed)
    expected = pack_mask(compare_in_python(values, lambda value: value in some_asked))
    assert run_kernel(mark_ints, values, some_asked) == expected
    expected = pack_mask(
        compare_in_python(values, lambda value: all(RANGES[key](value, each) for key, each in limits.items()))
    )
    assert run_kernel(mark_int_range, values, tuple(limits.items())) == expected


@given(COUNTS, SEEDS, SOME, LIMITS)
@settings(deadline=None, max_examples=60)
def test_floats_compare_as_in_numpy(count, seed, some_asked, limits):
    values = draw_values(FRACTIONS, count, seed)
    fitting = [each for each in some_asked if abs(each) < 10**301]
    assert run_kernel(mark_floats, values, some_asked) == pack_mask(np.isin(values, np.array(fitting, dtype=float)))
    expected = ~np.isnan(values)
    for key, each in limits.items():
        expected &= RANGES[key](values, float(max(min(each, 2**1023), -(2**1023))))
    assert run_kernel(mark_float_range, values, tuple(limits.items())) == pack_mask(expected)


@given(COUNTS, SEEDS, st.integers(1, 3_000))
@settings(deadline=None, max_examples=40)
def test_large_value_sets(count, seed, many):
    """Enough of them that a table is wide, keys collide, and rows pass and fail by chance."""
    random = np.random.default_rng(seed)
    for wide in (4_000, 10**6, 2**62):
        asked = random.integers(-wide, wide, many)
        values = np.where(random.random(count) < 0.5, random.choice(asked, count), random.integers(-wide, wide, count))
        expected = pack_mask(np.isin(values, asked))
        assert run_kernel(mark_ints, values, asked.tolist()) == expected
        codes, known = (values % 2**32).astype(np.uint32), (asked % 2**32).astype(np.uint32)
        assert run_kernel(mark_ints, codes, known.tolist()) == pack_mask(np.isin(codes, known))
        parts = asked / 7
        assert run_kernel(mark_floats, values / 7, parts.tolist()) == pack_mask(np.isin(values / 7, parts))


@given(COUNTS, SEEDS)
@settings(deadline=None, max_examples=40)
def test_bits_map_to_positions_and_rows(count, seed):
    random = np.random.default_rng(seed)
    mask, order = random.random(count) < random.random(), random.permutation(count)
    bits = np.array(pack_mask(mask), dtype=np.uint32)
    for kind in (np.int32, np.int64):
        placed = allocate_bitmask(count)
        map_to_positions(bits, order.astype(kind), placed)
        assert placed.tolist() == pack_mask(mask[order])
    rows = np.sort(random.integers(0, 2 * count, count))  # some have several values, some none
    expected, words = np.zeros(2 * count, dtype=bool), allocate_bitmask(2 * count)
    expected[rows[mask]] = True
    map_to_rows(bits, rows, words)
    assert words.tolist() == pack_mask(expected)


def test_bits_are_added_to_those_that_are_set():
    values, words = np.arange(70), allocate_bitmask(70)
    mark_range(values, 3, 5, words)
    mark_range(values, 60, 80, words)
    assert words.tolist() == pack_mask(np.isin(values, [3, 4, 5, *range(60, 70)]))


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """More documents than one pass takes at once, in the order of clusters, with attributes of every kind."""
    random, folder = np.random.default_rng(0), tmp_path_factory.mktemp("bits") / "i"
    count = ROWS_PER_BLOCK + 77
    known = [attributes(row, random) for row in range(count)]
    documents = [Document(str(row), "", "", each) for row, each in enumerate(known)]
    vectors = some(range(count))[1]
    arrays = {"codebooks": BOOKS, "codes": BOOKS.encode(vectors), "vectors": vectors}
    build_index(folder, **arrays, documents=documents, engine="lists")
    return folder, known


def attributes(row, random):
    words = [f"w{number}" for number in random.integers(0, 40, 3)]
    every = {
        "word": f"w{row % 40}",
        "seldom": words[0],
        "tags": words[: random.integers(0, 4)],
        "whole": int(random.choice(WHOLES[1:])),
        "year": int(random.integers(0, 30)),
        "part": float(random.choice(FRACTIONS[1:])),
        "truth": bool(random.random() < 0.5),
        "mixed": [words[1], True, 3, 2.5, words[:2]][random.integers(5)],
    }
    left_out = [name for name in every if name != "word" and random.random() < 0.2]
    return {name: value for name, value in every.items() if name not in left_out}


STRINGS = st.sampled_from([f"w{number}" for number in range(0, 44, 3)] + ["", "w", "x"])
NAMES = st.sampled_from(["word", "seldom", "tags", "whole", "year", "part", "truth", "mixed", "nobody"])
# Python compares 2^53 + 1 with a fraction exactly, a column of fractions does not: not asked here.
NUMBERS = st.sampled_from([*WHOLES[1:-3].tolist(), LARGE, -1e300, 0.0, 0.1, 2.5, 10**400, *range(4, 30)])
SCALARS = st.one_of(STRINGS, NUMBERS, st.booleans())
CONDITIONS = st.one_of(
    SCALARS,
    st.fixed_dictionaries({"any": st.lists(SCALARS, min_size=1, max_size=12)}),
    st.dictionaries(KEYS, STRINGS, min_size=1, max_size=2),
    st.dictionaries(KEYS, NUMBERS, min_size=1, max_size=2),
)
FILTERS = st.recursive(
    st.dictionaries(NAMES, CONDITIONS, min_size=1, max_size=2),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"or": st.lists(inner, min_size=1, max_size=3)}),
        st.fixed_dictionaries({"and": st.lists(inner, min_size=1, max_size=3)}),
        st.fixed_dictionaries({"not": inner}),
    ),
    max_leaves=4,
)


def test_filters_equal_matching_each_document(index):
    folder, known = index
    with IndexReader.open(folder) as reader:
        columns, order = reader.documents.columns, reader.order
        assert {kind for _, kind in columns.columns} == {"word", "whole", "number", "truth"}

        @given(FILTERS)
        @settings(deadline=None, max_examples=80)
        def asked_of_all(given_filter):
            asked = parse_filter(given_filter)
            expected = np.array([match_filter(asked, each) for each in known])
            assert (columns.build_mask(asked) == expected).all()
            assert (columns.build_bitmap(asked, order) == np.packbits(expected[order], bitorder="little")).all()
            assert (columns.map_to_positions(columns.evaluate(asked), None).view(np.uint8)[: -(-len(expected) // 8)]
                    == np.packbits(expected, bitorder="little")).all()  # fmt: skip

        asked_of_all()


def test_an_order_with_invalid_rows_is_refused(index):
    with IndexReader.open(index[0]) as reader:
        for wrong in (reader.count, -1):
            order = np.array(reader.order)
            order[7] = wrong
            with pytest.raises(IndexFolderError, match="names invalid rows"):
                reader.documents.columns.build_bitmap(parse_filter({"year": 3, "not": {"year": wrong}}), order)


AFTER_WARMING = """
import json, sys
from bidr.index.filters import bitmask
from bidr.index.filters.filter_expression import parse_filter
from bidr.index.reader import IndexReader
from bidr.index.filters.bitmask import warm_up

compiled = lambda: sum(len(each.signatures) for each in vars(bitmask).values() if hasattr(each, "signatures"))
warm_up()
before = compiled()
with IndexReader.open(sys.argv[1]) as reader:
    for asked in json.loads(sys.argv[2]):
        reader.select(asked).count
print(before, compiled() - before)
"""


def test_filters_compile_nothing_after_warm_up(index):
    """That takes a second each, and nobody else is answered meanwhile."""
    each = [{"word": "w3"}, {"tags": {"any": ["w1", "w5"]}}, {"word": {"gt": "w2"}}, {"truth": True}, {"part": 2.0}]
    numbers = [{"year": 3}, {"year": {"any": [3, 7]}}, {"whole": {"any": [0, 2**62]}}, {"whole": {"lt": 2.5}}]
    parts = [{"part": {"any": [0.1, 1, 2]}}, {"part": {"gte": 0, "lt": 7}}, {"mixed": {"any": ["w3", True, 3]}}]
    run = [sys.executable, "-c", AFTER_WARMING, str(index[0]), json.dumps([*each, *numbers, *parts])]
    before, more = subprocess.run(run, capture_output=True, check=True, text=True).stdout.split()
    assert int(before) > 10
    assert more == "0"


@pytest.mark.parametrize("how", ["or", "and"])
def test_memory_does_not_grow_with_the_parts_of_a_filter(index, how):
    """Each is put to the others at once: a filter of thousands must not make as many bitmaps."""
    columns = IndexReader.open(index[0]).documents.columns
    bitmap = allocate_bitmask(len(index[1])).nbytes

    def peak(parts):
        asked = parse_filter({how: [{"word": "w1"}] * parts})
        tracemalloc.start()
        try:
            columns.build_mask(asked)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(3)  # opens the column
    assert peak(400) < peak(3) + 4 * bitmap


def test_bitmaps_are_cached_up_to_a_memory_bound(index, monkeypatch):
    """However long a filter is, and however many come: a bit a document, and a key of a few bytes."""
    room = 8
    a_filter = -(-len(index[1]) // 8) + OVERHEAD
    monkeypatch.setattr(stored, "CACHE_BYTES", room * a_filter)
    columns = IndexReader.open(index[0]).documents.columns
    ask = {number: parse_filter({"year": {"any": [number, *range(10_000, 12_000)]}}) for number in range(20)}
    first = columns.build_bitmap(ask[0], None)
    for number in range(1, 20):
        columns.build_bitmap(ask[number], None)
        assert columns.build_bitmap(ask[0], None) is first  # asked for again and again: others go
    kept = columns._bitmaps
    assert len(kept) == room
    assert kept.bytes == room * a_filter
    assert max(len(key) for key in kept._entries) < 100
    again = columns.build_bitmap(ask[19], None)
    assert columns.build_bitmap(ask[19], None) is again
    monkeypatch.setattr(kept, "max_bytes", 1)
    last = columns.build_bitmap(ask[5], None)
    assert columns.build_bitmap(ask[5], None) is last
    assert len(kept) == 1
