"""O_DIRECT reads: used for first reads where they work, with the same results as other reads."""

import errno
import gc
import mmap
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_index import clustered
from vector_files import evict, find_resident_pages, find_spans, read_with_numpy, write_vectors

from bidr.errors import IndexFolderError
from bidr.index.vectors import VectorFile, direct_io, direct_reader
from bidr.index.vectors import read_buffers as buffers
from bidr.index.vectors.read_buffers import MAX_BUFFERS, ReadBuffer, read_buffers
from bidr.index.vectors.resource_pool import ResourcePool


@pytest.fixture(scope="module")
def cold(tmp_path_factory):
    """A file of 3,000 rows that can be evicted and read with O_DIRECT; its last block is short.

    Opening it loads the first 24 rows.
    """
    path = write_vectors(tmp_path_factory.mktemp("cold"), clustered(3_000, 250))
    with VectorFile.open(path) as file:
        evict(path)
        if not file.reads.startswith("direct") or file.fetch(np.arange(0, 3_000, 100)).buffer is None:
            pytest.skip("no O_DIRECT here")
    return path


@pytest.fixture(scope="module")
def stored():
    return clustered(3_000, 250).astype(np.float16).astype(np.float32)


@pytest.fixture
def states(monkeypatch):
    """The result of each direct read."""
    results, read = [], ReadBuffer.read

    def record(*arguments):
        results.append(read(*arguments))
        return results[-1]

    monkeypatch.setattr(ReadBuffer, "read", record)
    return results


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
        assert file.fetch(rows) is direct_reader.ALL_MAPPED
        third = file.score(rows, query)
    assert first.tobytes() == second.tobytes() == third.tobytes()
    assert len(states) == 1
    np.testing.assert_allclose(first, stored[rows] @ query, atol=1e-5)


def test_evicted_rows_must_be_read_twice_to_enter_the_page_cache_again(cold, states):
    rows, query = np.arange(0, 2_900, 16), np.ones(250, dtype=np.float32)
    evict(cold)
    with VectorFile.open(cold) as file:
        scores = [file.score(rows, query) for _ in range(3)]
        evict_mapped(file)
        scores.append(file.score(rows, query))
        assert len(states) == 2
        assert len(find_resident_pages(file)) < 40, "only the pages that revealed the eviction"
        scores += [file.score(rows, query) for _ in range(3)]
        assert len(states) == 2
        assert file.fetch(rows) is direct_reader.ALL_MAPPED
    assert len({row.tobytes() for row in scores}) == 1


def test_rows_beside_rows_read_before_enter_the_page_cache(cold, states):
    evict(cold)
    with VectorFile.open(cold) as file:
        file.read(np.arange(1_000, 1_400))
        assert file.fetch(np.arange(1_300, 1_600)) is direct_reader.ALL_MAPPED
        assert file.fetch(np.append(np.arange(2_000, 2_600), 1_050)).buffer is not None
    assert len(states) == 2


def test_resident_rows_are_not_read_from_disk(cold, states):
    cold.read_bytes()
    with VectorFile.open(cold) as file:
        assert file.fetch(np.arange(0, 3_000, 9)) is direct_reader.ALL_MAPPED
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
        np.testing.assert_array_equal(file.read(np.array([2_999])), stored[2_999:])
    assert states == [direct_io.OK]


def test_bytes_beyond_the_end_of_the_file_are_zeros():
    """Checksums include them; some file systems leave arbitrary bytes there."""
    content, iocbs = np.full(8_192, 255, dtype=np.uint8), np.zeros((1, 8), dtype=np.uint64)
    requests = direct_io.AioRequests(0, iocbs, np.zeros(1, dtype=np.int64), np.zeros((1, 4), dtype=np.int64), content)
    event, span = np.array([0, 0, 100, 0]), np.array([7, 7])
    assert direct_io._check_completion(requests, event, span, 1, 7 * 4_096 + 100) == direct_io.OK
    assert content[: 4_096 + 100].all()
    assert not content[4_096 + 100 :].any()
    assert direct_io._check_completion(requests, event, span, 1, 7 * 4_096 + 101) == direct_io.FAILED


@pytest.mark.parametrize("buffer_blocks", [40, 4_096])
@pytest.mark.parametrize("row", [1_500, 2_999])
def test_damage_is_detected_in_direct_reads_and_in_blocks_beyond_the_buffer(
    tmp_path, cold, stored, states, monkeypatch, row, buffer_blocks
):
    monkeypatch.setattr(buffers, "BUFFER_BLOCKS", buffer_blocks)
    monkeypatch.setattr(buffers, "read_buffers", ResourcePool(ReadBuffer, MAX_BUFFERS))
    path = write_vectors(tmp_path, clustered(3_000, 250))
    content = bytearray(path.read_bytes())
    content[4_096 + 500 * row + 499] ^= 1
    path.write_bytes(content)
    evict(path)
    with VectorFile.open(path) as file:
        for _ in range(3):
            with pytest.raises(IndexFolderError, match=r"vectors\.npy: rows .* are damaged"):
                file.score(np.append(np.arange(100, 1_300), row), np.ones(250, dtype=np.float32))
            evict_mapped(file)
        assert states[0] == (direct_io.FAILED if buffer_blocks == 4_096 else direct_io.OK)
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
    states, read = [], ReadBuffer.read

    def replace_state(*arguments):
        states.append(read(*arguments))
        return state

    monkeypatch.setattr(ReadBuffer, "read", replace_state)
    evict(cold)
    with VectorFile.open(cold) as file:
        for row in range(100, 2_100, 100):
            np.testing.assert_array_equal(file.read(np.array([row])), stored[[row]])
            evict(cold)
        assert len(states) == attempts
        assert file.reads.startswith("direct") == (state == direct_io.FAILED)


def test_synchronous_reads_are_detected(cold, monkeypatch):
    """tmpfs accepts O_DIRECT and ignores it."""
    folder = "/dev/shm"
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        pytest.skip("no tmpfs here")
    path = f"{folder}/bidr-test-{os.getpid()}"
    try:
        with open(path, "wb") as out:
            out.write(bytes(100 * 8_192))
        try:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECT)
        except OSError:
            pytest.skip("this kernel's tmpfs refuses it")
        buffer = read_buffers.borrow()
        verified, no_checksums = np.zeros(100, dtype=np.uint8), np.frombuffer(b"", dtype="<u4")
        assert buffer.read(handle, 100 * 8_192, np.arange(0, 200, 2), no_checksums, verified) == direct_io.SYNCHRONOUS
        buffer.release()
        os.close(handle)
    finally:
        os.unlink(path)


def test_a_stuck_buffer_disables_the_pool(cold, stored, monkeypatch):
    pool = ResourcePool(ReadBuffer, MAX_BUFFERS)
    monkeypatch.setattr(buffers, "read_buffers", pool)
    monkeypatch.setattr(ReadBuffer, "read", lambda *_: direct_io.STUCK)
    evict(cold)
    with VectorFile.open(cold) as file:
        np.testing.assert_array_equal(file.read(np.array([50])), stored[[50]])
        assert "stopped" in pool.refusal
        assert file.reads in ("io_uring", "advice")
    assert not pool._free


def test_blocks_beyond_the_buffer_are_read_through_the_page_cache(cold, stored, monkeypatch, states):
    monkeypatch.setattr(buffers, "BUFFER_BLOCKS", 40)
    monkeypatch.setattr(buffers, "read_buffers", ResourcePool(ReadBuffer, MAX_BUFFERS))
    evict(cold)
    with VectorFile.open(cold) as file:
        fetched = file.fetch(np.arange(3_000))
        assert 200 < (fetched.offsets >= 0).sum() < 400
        np.testing.assert_array_equal(file.read(np.arange(3_000)), stored)


def test_old_reads_count_as_first_reads_again(cold, states):
    evict(cold)
    with VectorFile.open(cold) as file:
        file._direct_reader._history_blocks = file._direct_reader._blocks_until_reset = 30
        for start in (100, 1_000, 2_000, 100):
            file.read(np.arange(start, start + 100))  # 13 blocks
        assert len(states) == 4
        file.read(np.arange(100, 200))
        assert len(states) == 4


def test_buffers_are_limited_and_always_return_to_the_pool(cold, stored):
    random, query = np.random.default_rng(5), np.ones(250, dtype=np.float32)
    evict(cold)
    with VectorFile.open(cold) as file, ThreadPoolExecutor(3 * MAX_BUFFERS) as threads:

        def score_cold(rows):
            evict(cold)
            return file.score(rows, query)

        draws = [random.integers(0, 3_000, 150) for _ in range(150)]
        for draw, scores in zip(draws, threads.map(score_cold, draws), strict=True):
            np.testing.assert_allclose(scores, stored[draw] @ query, atol=1e-5)
        fetched = [file.fetch(random.integers(0, 3_000, 3)) for _ in range(30)]
        assert sum(rows.buffer is not None for rows in fetched) <= MAX_BUFFERS
        del fetched
    gc.collect()  # compilation may have kept a reference
    assert len(read_buffers._free) == read_buffers._created <= MAX_BUFFERS


def test_a_child_process_creates_its_own_buffers(cold, stored):
    evict(cold)
    with VectorFile.open(cold) as file:
        file.read(np.arange(10))
        parents = list(read_buffers._free)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                equal = np.array_equal(file.read(np.arange(1_000, 1_100)), stored[1_000:1_100])
                code = 0 if equal and read_buffers._free and not set(parents) & set(read_buffers._free) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        np.testing.assert_array_equal(file.read(np.arange(2_000, 2_100)), stored[2_000:2_100])
