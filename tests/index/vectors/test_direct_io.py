"""O_DIRECT reads: used for first reads where they work, with the same results as other reads."""

import errno
import mmap
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_index import clustered
from vector_files import evict, find_resident_pages, find_spans, read_with_numpy, write_vectors

from bidr.errors import IndexFolderError
from bidr.index.vectors import VectorFile, VectorMemory, direct_io, direct_reader, vector_file
from bidr.index.vectors import read_buffers as buffers
from bidr.index.vectors.read_buffers import MAX_BUFFERS, ReadBuffer, read_buffers
from bidr.index.vectors.resource_pool import ResourcePool

QUERY = np.ones(250, dtype=np.float32)


@pytest.fixture(scope="module")
def cold(tmp_path_factory):
    """A file of 3,000 rows that can be evicted and read with O_DIRECT; its last block is short.

    Opening it loads the first 24 rows.
    """
    path = write_vectors(tmp_path_factory.mktemp("cold"), clustered(3_000, 250))
    with VectorFile.open(path) as file:
        evict(path)
        if not file.reads.startswith("direct") or file.fetch(np.arange(0, 3_000, 100), QUERY).scores is None:
            pytest.skip("no O_DIRECT here")
    return path


@pytest.fixture(scope="module")
def stored():
    return clustered(3_000, 250).astype(np.float16).astype(np.float32)


@pytest.fixture
def states(monkeypatch):
    """The result of each direct read."""
    results, score = [], ReadBuffer.score

    def record(*arguments):
        results.append(score(*arguments))
        return results[-1]

    monkeypatch.setattr(ReadBuffer, "score", record)
    return results


def open_vectors(path: Path, cache: int | None) -> VectorFile:
    """Open a file with a row cache of so many bytes, or in the page cache."""
    memory = VectorMemory(cache)
    memory.vector_bytes = path.stat().st_size
    return VectorFile.open(path, memory=memory)


def evict_mapped(file: VectorFile) -> None:
    file._map.madvise(mmap.MADV_DONTNEED)
    evict(file.path)


def test_rows_read_a_second_time_enter_the_page_cache(cold, stored, states):
    rows, query = np.arange(100, 2_900, 70), np.ones(250, dtype=np.float32)
    evict(cold)
    with VectorFile.open(cold) as file:
        pages = find_resident_pages(file)
        row_pages = np.concatenate([np.arange(first, last + 1) for first, last in find_spans(file, rows)])
        first = file.score(rows, query)
        np.testing.assert_array_equal(find_resident_pages(file), pages)
        assert len(states) == 1
        second = file.score(rows, query)
        np.testing.assert_array_equal(find_resident_pages(file), np.union1d(pages, row_pages))
        assert file.fetch(rows, QUERY).scores is None
        third = file.score(rows, query)
    assert first.tobytes() == second.tobytes() == third.tobytes()
    assert len(states) == 1
    np.testing.assert_allclose(first, stored[rows] @ query, atol=1e-5)


def test_evicted_rows_are_fetched_again_without_the_others(cold, states, monkeypatch):
    rows, half = np.arange(100, 2_900, 16), 1 << 18
    evict(cold)
    with VectorFile.open(cold) as file:
        scores = [file.score(rows, QUERY) for _ in range(3)]
        assert len(states) == 1
        read_blocks, read_spans = [], file._read_spans

        def record(spans):
            read_blocks.extend(block for first, last in spans for block in range(first, last + 1))
            read_spans(spans)

        monkeypatch.setattr(file, "_read_spans", record)
        file._map.madvise(mmap.MADV_DONTNEED, half)
        os.posix_fadvise(file._handle, half, 0, os.POSIX_FADV_DONTNEED)
        resident = find_resident_pages(file)
        assert len(resident)
        assert resident.max() < half >> 12
        scores += [file.score(rows, QUERY) for _ in range(3)]
        assert read_blocks
        assert min(read_blocks) >= half >> 12
        assert len(set(read_blocks)) == len(read_blocks)
        assert file.fetch(rows, QUERY).stats.hits == len(rows)
    assert len(states) == 1
    assert len({row.tobytes() for row in scores}) == 1


def test_rows_beside_rows_read_before_enter_the_page_cache(cold, states):
    evict(cold)
    with VectorFile.open(cold) as file:
        file.score(np.arange(1_000, 1_400), QUERY)
        assert file.fetch(np.arange(1_300, 1_600), QUERY).scores is None
        assert file.fetch(np.append(np.arange(2_000, 2_600), 1_050), QUERY).scores is not None
    assert len(states) == 2


def test_resident_rows_are_not_read_from_disk(cold, states):
    cold.read_bytes()
    with VectorFile.open(cold) as file:
        assert file.fetch(np.arange(0, 3_000, 9), QUERY).scores is None
    assert not states


@given(st.sampled_from(["fp16", "int8"]), st.sampled_from([7, 250, 384, 2_048, 2_500]), st.data())
@settings(max_examples=25, deadline=None)
def test_any_rows_in_any_order_equal_those_of_numpy(tmp_path_factory, kind, dim, data):
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    count = 400_000 // dim
    path = write_vectors(tmp_path_factory.mktemp("v"), random.standard_normal((count, dim)).astype(np.float32), kind)
    stored, query = read_with_numpy(path), random.standard_normal(dim).astype(np.float32)
    evict(path)
    with VectorFile.open(path) as file, VectorFile.open(path, reads="advice") as other:
        for _ in range(data.draw(st.integers(1, 6))):
            rows = random.integers(0, count, data.draw(st.integers(1, 300)))
            rows = np.append(rows, count - 1) if data.draw(st.booleans()) else rows
            if data.draw(st.booleans()):
                np.testing.assert_array_equal(file.read(rows), stored[rows])
            else:
                rows[0] = data.draw(st.sampled_from([-1, rows[0]]))
                assert file.score(rows, query).tobytes() == other.score(rows, query).tobytes()
            if data.draw(st.booleans()):
                other._map.madvise(mmap.MADV_DONTNEED)
                evict_mapped(file)


def test_the_short_last_block_is_read_and_verified(cold, stored, states):
    assert cold.stat().st_size % 4_096
    evict(cold)
    with VectorFile.open(cold) as file:
        np.testing.assert_allclose(file.score(np.array([2_999]), QUERY), stored[2_999:] @ QUERY, atol=1e-5)
    assert states == [direct_io.OK]


def test_bytes_beyond_the_end_of_the_file_are_zeros():
    """Checksums include them; some file systems leave arbitrary bytes there."""
    content, span = np.full(8_192, 255, dtype=np.uint8), np.array([7, 7])
    assert direct_io.check_completion(content, 100, span, 4_096, 7 * 4_096 + 100) == direct_io.OK
    assert content[: 4_096 + 100].all()
    assert not content[4_096 + 100 :].any()
    assert direct_io.check_completion(content, 100, span, 4_096, 7 * 4_096 + 101) == direct_io.FAILED


@pytest.mark.parametrize("cache", [None, 0, 1 << 20])
@pytest.mark.parametrize("row", [1_500, 2_999])
def test_damage_is_detected_in_direct_reads(tmp_path, cold, stored, states, cache, row):
    path = write_vectors(tmp_path, clustered(3_000, 250))
    content = bytearray(path.read_bytes())
    content[4_096 + 500 * row + 499] ^= 1
    path.write_bytes(content)
    evict(path)
    with open_vectors(path, cache) as file:
        for _ in range(3):
            with pytest.raises(IndexFolderError, match=r"vectors\.npy: rows .* are damaged"):
                file.score(np.append(np.arange(100, 1_300), row), QUERY)
            evict_mapped(file)
        assert states[0] == direct_io.FAILED
        np.testing.assert_array_equal(file.read(np.array([3])), stored[[3]])


def test_without_o_direct_all_reads_use_the_page_cache(cold, stored, monkeypatch, states):
    real_open = os.open

    def refuse_direct(path, flags, *mode):
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_open(path, flags, *mode)

    monkeypatch.setattr(os, "open", refuse_direct)
    evict(cold)
    with VectorFile.open(cold) as file:
        assert file.reads in ("io_uring", "advice")
        np.testing.assert_array_equal(file.read(np.arange(50)), stored[:50])
    assert not states


@pytest.mark.parametrize(
    ("state", "attempts"), [(direct_io.UNSUPPORTED, 1), (direct_io.SYNCHRONOUS, 8), (direct_io.FAILED, 20)]
)
def test_direct_reads_stop_where_they_are_refused_or_synchronous(cold, stored, monkeypatch, state, attempts):
    states, score = [], ReadBuffer.score

    def replace_state(*arguments):
        states.append(score(*arguments))
        return state

    monkeypatch.setattr(ReadBuffer, "score", replace_state)
    evict(cold)
    with VectorFile.open(cold) as file:
        for row in range(100, 2_100, 100):
            np.testing.assert_allclose(file.score(np.array([row]), QUERY), stored[[row]] @ QUERY, atol=1e-5)
            evict(cold)
        assert len(states) == attempts
        assert file.reads.startswith("direct") == (state == direct_io.FAILED)


def test_synchronous_reads_are_detected(cold, states):
    """tmpfs accepts O_DIRECT and ignores it."""
    folder = Path("/dev/shm")
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        pytest.skip("no tmpfs here")
    with tempfile.TemporaryDirectory(dir=folder) as name:
        with open_vectors(write_vectors(Path(name), clustered(3_000, 250)), 0) as file:
            if file.reads != "direct":
                pytest.skip("this kernel's tmpfs refuses it")
            for _ in range(direct_io.QUEUE_DEPTH):
                file.score(np.arange(0, 3_000, 60), QUERY)
        assert file.reads != "direct"
    assert states == [direct_io.SYNCHRONOUS] * direct_reader.MAX_SYNCHRONOUS_READS


def test_a_stuck_buffer_disables_the_pool(cold, stored, monkeypatch):
    pool = ResourcePool(ReadBuffer, MAX_BUFFERS)
    monkeypatch.setattr(buffers, "read_buffers", pool)
    monkeypatch.setattr(ReadBuffer, "score", lambda *_: direct_io.STUCK)
    evict(cold)
    with VectorFile.open(cold) as file:
        np.testing.assert_allclose(file.score(np.array([50]), QUERY), stored[[50]] @ QUERY, atol=1e-5)
        assert "stopped" in pool.refusal
        assert file.reads in ("io_uring", "advice")
    assert not pool._free


def test_queries_of_many_blocks_are_read_through_the_page_cache(cold, stored, monkeypatch, states):
    monkeypatch.setattr(vector_file, "MAX_DIRECT_BLOCKS", 40)
    evict(cold)
    with VectorFile.open(cold) as file:
        np.testing.assert_allclose(file.score(np.arange(3_000), QUERY), stored @ QUERY, atol=1e-5)
    assert not states


@pytest.mark.parametrize("cache", [None, 0, 50_000, 10 << 20])
def test_more_threads_than_buffers_wait_for_them_and_get_the_same_scores(cold, stored, monkeypatch, cache):
    pool = ResourcePool(ReadBuffer, 2)
    monkeypatch.setattr(buffers, "read_buffers", pool)
    random = np.random.default_rng(5)
    draws = [random.integers(0, 3_000, 150) for _ in range(150)]
    with VectorFile.open(cold, reads="advice") as file:
        expected = [file.score(draw, QUERY).tobytes() for draw in draws]
    evict(cold)
    with open_vectors(cold, cache) as file, ThreadPoolExecutor(12) as threads:
        assert list(threads.map(lambda draw: file.score(draw, QUERY).tobytes(), draws)) == expected
    assert len(pool._free) == pool._created <= 2


def test_a_child_process_creates_its_own_buffers_and_cache(cold, stored):
    with open_vectors(cold, 1 << 20) as file:
        expected = file.score(np.arange(1_000, 1_100), QUERY).tobytes()
        parents, cache = list(read_buffers._free), file.memory.cache
        assert cache.ram_bytes
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = 2 if cache.ram_bytes else 3
                equal = file.score(np.arange(1_000, 1_100), QUERY).tobytes() == expected
                code = 0 if equal and read_buffers._free and not set(parents) & set(read_buffers._free) else code
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert file.score(np.arange(1_000, 1_100), QUERY).tobytes() == expected
