"""Rows read past the page cache: the first time, and only where that works; the answers are those of other ways."""

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
from vector_files import by_numpy, evict, resident, spans_of, written

from bidr.errors import IndexFolderError
from bidr.index.vectors import VectorFile
from bidr.index.vectors import direct_io as direct
from bidr.index.vectors import direct_reader as past
from bidr.index.vectors import read_buffers as module
from bidr.index.vectors.read_buffers import MAX_BUFFERS, ReadBufferPool, read_buffers


@pytest.fixture(scope="module")
def cold(tmp_path_factory):
    """A file that can be taken out of memory and be read directly, 3,000 rows, the last block of it short.

    Opening it brings the first 24 rows along.
    """
    path = written(tmp_path_factory.mktemp("cold"), clustered(3_000, 250))
    with VectorFile.open(path) as file:
        evict(path)
        if not file.reads.startswith("direct") or file.fetch(np.arange(0, 3_000, 100)).lane is None:
            pytest.skip("nothing is read past the page cache here")
    return path


@pytest.fixture(scope="module")
def stored():
    return clustered(3_000, 250).astype(np.float16).astype(np.float32)


@pytest.fixture
def states(monkeypatch):
    """What each read past the page cache came to."""
    found, read = [], module.ReadBuffer.read

    def noted(*given):
        found.append(read(*given))
        return found[-1]

    monkeypatch.setattr(module.ReadBuffer, "read", noted)
    return found


def forget(file: VectorFile) -> None:
    file._map.madvise(mmap.MADV_DONTNEED)
    evict(file.path)


def test_what_is_asked_for_a_second_time_enters_the_page_cache(cold, stored, states):
    rows, query = np.arange(100, 2_900, 70), np.ones(250, dtype=np.float32)
    evict(cold)
    with VectorFile.open(cold) as file:
        before = resident(file)
        wanted = np.concatenate([np.arange(first, last + 1) for first, last in spans_of(file, rows)])
        first = file.score(rows, query)
        np.testing.assert_array_equal(resident(file), before)
        assert len(states) == 1
        again = file.score(rows, query)
        np.testing.assert_array_equal(resident(file), np.union1d(before, wanted))
        assert file.fetch(rows) is past.ALL_MAPPED
        third = file.score(rows, query)
    assert first.tobytes() == again.tobytes() == third.tobytes()
    assert len(states) == 1
    np.testing.assert_allclose(first, stored[rows] @ query, atol=1e-5)


def test_what_was_evicted_must_be_asked_for_twice_again(cold, states):
    rows, query = np.arange(0, 2_900, 16), np.ones(250, dtype=np.float32)
    evict(cold)
    with VectorFile.open(cold) as file:
        scores = [file.score(rows, query) for _ in range(3)]
        forget(file)
        scores.append(file.score(rows, query))
        assert len(states) == 2
        assert len(resident(file)) < 40, "those it was noticed by"
        scores += [file.score(rows, query) for _ in range(3)]
        assert len(states) == 2
        assert file.fetch(rows) is past.ALL_MAPPED
    assert len({one.tobytes() for one in scores}) == 1


def test_what_lies_near_what_was_read_before_enters_the_page_cache_with_it(cold, states):
    evict(cold)
    with VectorFile.open(cold) as file:
        file.read(np.arange(1_000, 1_400))
        assert file.fetch(np.arange(1_300, 1_600)) is past.ALL_MAPPED
        assert file.fetch(np.append(np.arange(2_000, 2_600), 1_050)).lane is not None
    assert len(states) == 2


def test_what_is_in_memory_already_is_not_read_from_disk(cold, states):
    cold.read_bytes()
    with VectorFile.open(cold) as file:
        assert file.fetch(np.arange(0, 3_000, 9)) is past.ALL_MAPPED
    assert not states


@given(st.sampled_from(["fp16", "int8"]), st.sampled_from([7, 250, 384, 2_048, 2_500]), st.data())
@settings(max_examples=25, deadline=None)
def test_any_rows_in_any_order_are_those_of_numpy(tmp_path_factory, kind, dim, data):
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    count = 400_000 // dim
    path = written(tmp_path_factory.mktemp("v"), random.standard_normal((count, dim)).astype(np.float32), kind)
    stored, query = by_numpy(path), random.standard_normal(dim).astype(np.float32)
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
                forget(file)


def test_the_short_block_at_the_end_is_read_and_checked(cold, stored, states):
    assert cold.stat().st_size % 4_096
    evict(cold)
    with VectorFile.open(cold) as file:
        np.testing.assert_array_equal(file.read(np.array([2_999])), stored[2_999:])
    assert states == [direct.OK]


def test_behind_the_end_of_the_file_come_zeros_whatever_was_there():
    """Checksums count them; some file systems leave there what they like."""
    content, none = np.full(8_192, 255, dtype=np.uint8), np.zeros((1, 8), dtype=np.uint64)
    requests = direct.AioRequests(0, none, np.zeros(1, dtype=np.int64), np.zeros((1, 4), dtype=np.int64), content)
    event, span = np.array([0, 0, 100, 0]), np.array([7, 7])
    assert direct._check_completion(requests, event, span, 1, 7 * 4_096 + 100) == direct.OK
    assert content[: 4_096 + 100].all()
    assert not content[4_096 + 100 :].any()
    assert direct._check_completion(requests, event, span, 1, 7 * 4_096 + 101) == direct.FAILED


@pytest.mark.parametrize("held", [40, 4_096])
@pytest.mark.parametrize("row", [1_500, 2_999])
def test_damage_is_found_past_the_cache_and_in_what_had_no_room_there(
    tmp_path, cold, stored, states, monkeypatch, row, held
):
    monkeypatch.setattr(module, "BUFFER_BLOCKS", held)
    monkeypatch.setattr(module, "read_buffers", ReadBufferPool())
    path = written(tmp_path, clustered(3_000, 250))
    content = bytearray(path.read_bytes())
    content[4_096 + 500 * row + 499] ^= 1
    path.write_bytes(content)
    evict(path)
    with VectorFile.open(path) as file:
        for _ in range(3):
            with pytest.raises(IndexFolderError, match=r"vectors\.npy: rows .* are damaged"):
                file.score(np.append(np.arange(100, 1_300), row), np.ones(250, dtype=np.float32))
            forget(file)
        assert states[0] == (direct.FAILED if held == 4_096 else direct.OK)
        np.testing.assert_array_equal(file.read(np.array([3])), stored[[3]])


def test_where_the_file_system_refuses_all_goes_through_the_page_cache(cold, stored, monkeypatch, states):
    real = os.open

    def refusing(path, flags, *more):
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(path, flags, *more)

    monkeypatch.setattr(os, "open", refusing)
    evict(cold)
    with VectorFile.open(cold) as file:
        assert file.reads in ("io_uring", "advice")
        np.testing.assert_array_equal(file.read(np.arange(50)), stored[:50])
    assert not states


@pytest.mark.parametrize(("state", "tried"), [(direct.UNSUPPORTED, 1), (direct.SYNCHRONOUS, 8), (direct.FAILED, 20)])
def test_a_file_that_does_not_gain_by_it_is_read_through_the_page_cache(cold, stored, monkeypatch, state, tried):
    states, read = [], module.ReadBuffer.read

    def told(*given):
        states.append(read(*given))
        return state

    monkeypatch.setattr(module.ReadBuffer, "read", told)
    evict(cold)
    with VectorFile.open(cold) as file:
        for row in range(100, 2_100, 100):
            np.testing.assert_array_equal(file.read(np.array([row])), stored[[row]])
            evict(cold)
        assert len(states) == tried
        assert file.reads.startswith("direct") == (state == direct.FAILED)


def test_each_read_that_is_waited_for_is_noticed(cold, monkeypatch):
    """tmpfs takes O_DIRECT for a hint."""
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
        lane = read_buffers.borrow()
        bits, none = np.zeros(100, dtype=np.uint8), np.frombuffer(b"", dtype="<u4")
        assert lane.read(handle, 100 * 8_192, np.arange(0, 200, 2), none, bits) == direct.SYNCHRONOUS
        lane.give_back()
        os.close(handle)
    finally:
        os.unlink(path)


def test_a_lane_that_gets_stuck_is_not_used_again(cold, stored, monkeypatch):
    own = ReadBufferPool()
    monkeypatch.setattr(module, "read_buffers", own)
    monkeypatch.setattr(module.ReadBuffer, "read", lambda *_: direct.STUCK)
    evict(cold)
    with VectorFile.open(cold) as file:
        np.testing.assert_array_equal(file.read(np.array([50])), stored[[50]])
        assert "stopped" in own.refused
        assert file.reads in ("io_uring", "advice")
    assert not own._free


def test_more_blocks_than_a_lane_holds_are_brought_by_both_ways(cold, stored, monkeypatch, states):
    monkeypatch.setattr(module, "BUFFER_BLOCKS", 40)
    monkeypatch.setattr(module, "read_buffers", ReadBufferPool())
    evict(cold)
    with VectorFile.open(cold) as file:
        fetched = file.fetch(np.arange(3_000))
        assert 200 < (fetched.places >= 0).sum() < 400
        np.testing.assert_array_equal(file.read(np.arange(3_000)), stored)


def test_what_was_read_long_ago_counts_as_new(cold, states):
    evict(cold)
    with VectorFile.open(cold) as file:
        file._past._remembered = file._past._left = 30
        for start in (100, 1_000, 2_000, 100):
            file.read(np.arange(start, start + 100))  # 13 blocks
        assert len(states) == 4
        file.read(np.arange(100, 200))
        assert len(states) == 4


def test_lanes_are_few_and_come_back_whatever_happens(cold, stored):
    random, query = np.random.default_rng(5), np.ones(250, dtype=np.float32)
    evict(cold)
    with VectorFile.open(cold) as file, ThreadPoolExecutor(3 * MAX_BUFFERS) as threads:

        def asked(rows):
            evict(cold)
            return file.score(rows, query)

        draws = [random.integers(0, 3_000, 150) for _ in range(150)]
        for draw, scores in zip(draws, threads.map(asked, draws), strict=True):
            np.testing.assert_allclose(scores, stored[draw] @ query, atol=1e-5)
        kept = [file.fetch(random.integers(0, 3_000, 3)) for _ in range(30)]
        assert sum(one.lane is not None for one in kept) <= MAX_BUFFERS
        del kept
    gc.collect()  # what was compiled on the way may have kept one
    assert len(read_buffers._free) == read_buffers._made <= MAX_BUFFERS


def test_a_child_process_makes_its_own_lanes(cold, stored):
    evict(cold)
    with VectorFile.open(cold) as file:
        file.read(np.arange(10))
        ours = list(read_buffers._free)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                right = np.array_equal(file.read(np.arange(1_000, 1_100)), stored[1_000:1_100])
                code = 0 if right and read_buffers._free and not set(ours) & set(read_buffers._free) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        np.testing.assert_array_equal(file.read(np.arange(2_000, 2_100)), stored[2_000:2_100])
