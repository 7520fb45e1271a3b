"""Row cache and memory policy: bounded memory, the same scores with any cache, hot rows stay."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_index import clustered
from vector_files import evict, write_vectors

from bidr.errors import ConfigError, IndexFolderError
from bidr.index.vectors import VectorFile, VectorMemory, vector_memory
from bidr.index.vectors.row_cache import LOCKS, WAYS, RowCache
from bidr.utils.memory_limit import MemoryLimit

GROUP_SEARCH = Path(__file__).parents[2] / "helpers" / "search_in_memory_group.py"
QUERY = clustered(1, 96)[0]


def open_vectors(path: Path, cache: int | str | None) -> VectorFile:
    memory = VectorMemory(cache)
    memory.vector_bytes = path.stat().st_size
    return VectorFile.open(path, memory=memory)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A file of 4,000 rows of 192 bytes, not in the page cache."""
    path = write_vectors(tmp_path_factory.mktemp("v"), clustered(4_000, 96))
    evict(path)
    with open_vectors(path, 0) as file:
        if file.reads != "direct" or not file.fetch(np.arange(100, 200), QUERY).stats.reads:
            pytest.skip("no O_DIRECT here")
    return path


@given(st.sampled_from(["fp16", "int8"]), st.sampled_from([7, 96, 384, 2_500]), st.data())
@settings(max_examples=15, deadline=None)
def test_scores_are_the_same_with_any_cache(tmp_path_factory, kind, dim, data):
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    vectors = random.standard_normal((200_000 // dim, dim)).astype(np.float32)
    path, query = write_vectors(tmp_path_factory.mktemp("v"), vectors, kind), vectors[0]
    size = path.stat().st_size
    capacities = (0, 1, size // 10, size - 1)
    with VectorFile.open(path, reads="advice") as mapped:
        files = [open_vectors(path, capacity) for capacity in capacities]
        for _ in range(12):
            rows = random.integers(-1, len(vectors), data.draw(st.integers(0, 300)))
            expected = mapped.score(rows, query).tobytes()
            for file in files:
                assert file.score(rows, query).tobytes() == expected
        for capacity, file in zip(capacities, files, strict=True):
            assert file.memory.cache.ram_bytes <= capacity
            file.close()


def test_rows_in_the_cache_are_not_read_again(path):
    rows = np.random.default_rng(0).permutation(4_000)[:500]
    with open_vectors(path, path.stat().st_size - 1) as file:
        first, second = (file.fetch(rows, QUERY).stats for _ in range(2))
    assert (first.rows, first.hits, second.rows) == (500, 0, 500)
    assert first.bytes >= 500 * 192
    assert second.hits >= 490, "a set may be full before the others"
    assert second.reads <= 10


def test_rows_read_once_do_not_evict_rows_read_often(path):
    random = np.random.default_rng(1)
    hot, cold = np.split(random.permutation(4_000), [200])
    with open_vectors(path, 400 * 210 + LOCKS * 64) as file:
        for _ in range(3):
            file.score(hot, QUERY)
        hits = file.fetch(hot, QUERY).stats.hits
        for part in np.array_split(cold, 19):
            file.score(part, QUERY)
        assert file.fetch(hot, QUERY).stats.hits >= 0.95 * hits > 150
        for _ in range(8):  # now other rows are hot
            file.score(cold[:200], QUERY)
        assert file.fetch(cold[:200], QUERY).stats.hits > 150


def test_threads_evict_each_others_rows_and_score_the_same(path):
    random = np.random.default_rng(2)
    draws = [random.integers(0, 4_000, 100) for _ in range(300)]
    with VectorFile.open(path, reads="advice") as file:
        expected = [file.score(draw, QUERY).tobytes() for draw in draws]
    evict(path)
    with open_vectors(path, 40_000) as file, ThreadPoolExecutor(16) as threads:
        for _ in range(3):
            assert list(threads.map(lambda draw: file.score(draw, QUERY).tobytes(), draws)) == expected
        assert 0 < file.memory.cache.ram_bytes <= 40_000


def test_a_flipped_byte_is_detected_after_eviction(tmp_path):
    path = write_vectors(tmp_path, clustered(4_000, 96))
    with open_vectors(path, LOCKS * 64 + WAYS * 300) as file:
        if file.reads != "direct":
            pytest.skip("no O_DIRECT here")
        file.score(np.arange(100), QUERY)
        content = bytearray(path.read_bytes())
        content[4_096 + 192 * 50] ^= 1
        path.write_bytes(content)
        file.score(np.arange(1_000, 3_000), QUERY)
        with pytest.raises(IndexFolderError, match=r"rows .* are damaged"):
            file.score(np.arange(100), QUERY)


def test_files_of_an_index_share_a_cache(tmp_path, path):
    memory = VectorMemory(path.stat().st_size)
    memory.vector_bytes = 2 * path.stat().st_size
    (tmp_path / "other").mkdir()
    other_path = write_vectors(tmp_path / "other", -clustered(4_000, 96))
    rows = np.arange(0, 4_000, 9)
    with VectorFile.open(path, memory=memory) as file, VectorFile.open(other_path, memory=memory) as other:
        for _ in range(3):
            np.testing.assert_array_equal(file.score(rows, QUERY), -other.score(rows, QUERY))
        assert file.memory.cache is other.memory.cache
        assert other.fetch(rows, QUERY).stats.hits > 400


def test_a_cache_without_room_for_a_set_of_rows_takes_no_memory():
    cache = RowCache(lambda: LOCKS * 64 + 100)
    assert len(cache.get_memory(192, np.dtype("<u2")).keys) == 0
    assert cache.ram_bytes == 0


@pytest.mark.parametrize("size", [-1, True, 1.5, "two", "2 XB", "-1", "", [], 1 << 61])
def test_sizes_that_make_no_sense_are_rejected(size):
    with pytest.raises(ConfigError, match="cache: given"):
        VectorMemory(size)


@pytest.mark.parametrize(("size", "expected"), [(0, 0), ("0", 0), (None, None), ("2GiB", 2 << 30), (123, 123)])
def test_sizes_are_numbers_or_texts(size, expected):
    assert VectorMemory(size).capacity == expected


@pytest.fixture
def available(monkeypatch):
    """Sets the available memory that a policy sees."""
    limits = [MemoryLimit(1 << 40, 1 << 40, "test")]
    monkeypatch.setattr(vector_memory, "read_memory_limit", lambda: limits[0])
    monkeypatch.setattr(vector_memory, "RECHECK_SECONDS", 0.0)
    monkeypatch.setattr(vector_memory, "_memories", type(vector_memory._memories)())

    def set_available(size: int) -> None:
        limits[0] = MemoryLimit(1 << 40, size, "test")

    return set_available


def test_the_page_cache_is_used_while_it_can_hold_the_vectors(path, available):
    size = path.stat().st_size
    memory = VectorMemory()
    memory.vector_bytes = size
    with VectorFile.open(path, memory=memory) as file:
        for share, expected in ((1.2, True), (1.1, False), (1.2, False), (1.3, True), (1.2, True), (0.3, False)):
            available(int(share * size))
            assert memory.uses_page_cache() == expected, share
        file.score(np.arange(1_000), QUERY)
        cached = memory.cache.ram_bytes
        assert 0.1 * size < cached <= 0.15 * size
        available(int(1.3 * size) - cached)
        assert memory.uses_page_cache(), "the cache's own memory would become available"
        assert memory.cache.ram_bytes == 0


def test_indexes_of_a_process_share_the_page_cache(available):
    memories = [VectorMemory() for _ in range(3)]
    for memory in memories:
        memory.vector_bytes = 100
    available(250)
    assert not memories[0].uses_page_cache()
    del memories[1:], memory
    assert memories[0].uses_page_cache()


def test_an_explicit_size_limits_vectors_in_memory(available):
    for cache, expected in ((99, False), (100, True), (0, False)):
        memory = VectorMemory(cache)
        memory.vector_bytes = 100
        assert memory.uses_page_cache() == expected
        assert memory.describe()["cache_bytes"] == (0 if expected else cache)


def test_workers_divide_the_cache(available):
    available(1_000)
    for cache, expected in ((None, 125), (100, 25)):
        memory = VectorMemory(cache, processes=4)
        memory.vector_bytes = 10_000
        assert memory.describe() == {"memory": "row cache", "cache_bytes": expected}


def test_in_a_memory_cgroup_the_row_cache_replaces_the_page_cache(tmp_path):
    """In a subprocess that enters a cgroup of half the size of the file."""
    path = write_vectors(tmp_path, clustered(80_000, 96))
    command = [sys.executable, str(GROUP_SEARCH), str(path), str(path.stat().st_size // 2)]
    process = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ})
    if process.returncode == 77:
        pytest.skip(process.stderr.strip())
    assert process.returncode == 0, process.stderr
    reads, resident, cached, faults = process.stdout.split()
    assert reads == "direct"
    assert float(resident) < 0.05
    assert 0.1 < float(cached) < 0.3
    assert int(faults) == 0
