"""How rows come from disk: by io_uring or without it, by many threads, from damaged and from read-only files."""

import mmap
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from sample_index import clustered
from vector_files import evict, resident, spans_of, written

from bidr.errors import ConfigError, IndexFolderError
from bidr.index.vectors import VectorFile
from bidr.index.vectors import page_cache_io as fetching
from bidr.index.vectors.io_uring import MAX_RINGS, IoUringPool, ring_pool
from bidr.index.vectors.row_layout import make_checksum_keys

FORBID = Path(__file__).parents[2] / "helpers" / "without_io_uring.py"
needs_rings = pytest.mark.skipif(not ring_pool.usable(), reason="io_uring is forbidden here")


def _counted(file: VectorFile, monkeypatch) -> list[int]:
    """How many blocks each later call brings."""
    brought, bring = [], file._bring

    def count(spans):
        brought.append(int((spans[:, 1] - spans[:, 0] + 1).sum()))
        bring(spans)

    monkeypatch.setattr(file, "_bring", count)
    return brought


def test_blocks_are_each_read_once_and_neighbours_together():
    spans = fetching.coalesce_blocks(np.array([3, 3, 4, 4, 5, 9, 11, *range(100, 132), 131, *range(132, 140)]))
    assert spans.tolist() == [[3, 5], [9, 9], [11, 11], [100, 131], [132, 139]]


@pytest.mark.parametrize("reads", ["advice", pytest.param("io_uring", marks=needs_rings)])
def test_just_the_pages_of_the_rows_are_read(tmp_path, reads):
    path = written(tmp_path, clustered(20_000, 384))
    # Some far apart, some in a run that takes several reads: none may make the system read ahead.
    rows = np.concatenate([np.random.default_rng(0).integers(0, 20_000, 400), np.arange(5_000, 5_400)])
    evict(path)
    with VectorFile.open(path, reads=reads) as file:
        if len(resident(file)) > 8:
            pytest.skip("this file system keeps its files in memory")
        before, spans = resident(file), spans_of(file, rows)
        file._bring(spans)
        wanted = np.concatenate([np.arange(first, last + 1) for first, last in spans])
        np.testing.assert_array_equal(resident(file), np.union1d(before, wanted))


@needs_rings
def test_both_ways_answer_the_same_and_what_was_evicted_is_read_together_again(tmp_path, monkeypatch):
    vectors, query = clustered(20_000, 384), clustered(1, 384)[0]
    path = written(tmp_path, vectors)
    rows = np.random.default_rng(1).integers(0, 20_000, 3_000)
    found = []
    for reads in ("io_uring", "advice"):
        evict(path)
        with VectorFile.open(path, reads=reads) as file:
            assert file.reads == reads
            found.append(file.score(rows, query))
            file._map.madvise(mmap.MADV_DONTNEED)
            evict(path)
            brought = _counted(file, monkeypatch)
            found.append(file.score(rows, query))
            assert sum(brought) > 0.9 * len(np.unique(rows * 768 // 4_096))
            found.append(file.score(rows, query))
            assert len(brought) == 1
    assert all(scores.tobytes() == found[0].tobytes() for scores in found)
    np.testing.assert_allclose(found[0], vectors[rows].astype(np.float16).astype(np.float32) @ query, atol=1e-6)


@pytest.mark.parametrize("kind", ["fp16", "int8"])
@pytest.mark.parametrize("reads", ["auto", "advice", pytest.param("io_uring", marks=needs_rings)])
def test_a_damaged_block_is_found_when_it_is_read_and_only_then(tmp_path, kind, reads):
    path = written(tmp_path, clustered(3_000, 48), kind)
    size, row_bytes = path.stat().st_size, 96 if kind == "fp16" else 52
    for offset in (4_096 + 1_500 * row_bytes, size - 1, 4_096):
        content = bytearray(path.read_bytes())
        content[offset] ^= 1
        path.write_bytes(content)
        row = (offset - 4_096) // row_bytes
        far = [number for number in range(3_000) if abs(number - row) * row_bytes > 8_192]
        evict(path)
        with VectorFile.open(path, reads=reads) as file:
            file.read(np.array(far))
            for ask in (file.read, file.fetch, lambda rows: file.score(rows, np.ones(48, dtype=np.float32))):
                with pytest.raises(IndexFolderError, match=r"vectors\.npy: rows .* are damaged") as caught:
                    ask(np.array([row]))
            low, high = (int(word.replace(",", "")) for word in str(caught.value).split() if word[0].isdigit())
            assert low <= row <= high < low + 4_096 // row_bytes + 2
        content[offset] ^= 1
        path.write_bytes(content)
    with VectorFile.open(path, reads=reads) as file:
        file.read(np.arange(3_000))


def test_a_row_in_two_blocks_is_checked_in_both(tmp_path):
    path = written(tmp_path, clustered(100, 48))
    content = bytearray(path.read_bytes())
    content[4_096 + 43 * 96 - 1] ^= 1  # the last byte of row 42, which begins in the block before
    path.write_bytes(content)
    with VectorFile.open(path) as file:
        file.read(np.arange(42))
        with pytest.raises(IndexFolderError, match="rows 42 to 85 are damaged"):
            file.read(np.array([42]))


def test_every_flipped_bit_of_a_block_changes_its_checksum():
    random, keys = np.random.default_rng(0), make_checksum_keys()
    for words in (random.integers(0, 2**63, 512, dtype=np.uint64), np.zeros(512, dtype=np.uint64)):
        nothing = np.empty(0, dtype=np.uint8)
        whole = fetching.compute_checksum(words, nothing, 0, keys)
        for bit in range(0, 512 * 64, 31):
            words[bit // 64] ^= np.uint64(1 << (bit % 64))
            assert fetching.compute_checksum(words, nothing, 0, keys) != whole
            words[bit // 64] ^= np.uint64(1 << (bit % 64))


@pytest.mark.parametrize("reads", ["auto", "advice", pytest.param("io_uring", marks=needs_rings)])
@pytest.mark.parametrize("seen_by", ["its size", "a read"])
def test_a_file_that_was_cut_off_while_open_is_an_error_not_a_signal(tmp_path, monkeypatch, reads, seen_by):
    path, said = written(tmp_path, clustered(2_000, 64)), "260,096 when it was opened: cut off since"
    if seen_by == "a read":  # within the moment between two looks at the size
        said = r"rows 1,8.* cannot be read \(the file ends before them\)"
        monkeypatch.setattr("bidr.index.vectors.mmap_guard.MmapGuard.look", lambda self: None)
    with VectorFile.open(path, reads=reads) as file:
        os.truncate(path, 100_000)
        evict(path)
        with pytest.raises(IndexFolderError, match=said):
            file.read(np.array([1_900]))


def test_many_threads_share_one_file(tmp_path):
    vectors = clustered(10_000, 64)
    path, random = written(tmp_path, vectors), np.random.default_rng(3)
    stored = vectors.astype(np.float16).astype(np.float32)
    draws = [random.integers(0, 10_000, 400) for _ in range(200)]
    evict(path)
    with VectorFile.open(path) as file, ThreadPoolExecutor(2 * MAX_RINGS) as threads:
        for draw, scores in zip(draws, threads.map(lambda draw: file.score(draw, vectors[0]), draws), strict=True):
            np.testing.assert_allclose(scores, stored[draw] @ vectors[0], atol=1e-6)


def test_a_child_process_makes_its_own_rings(tmp_path):
    """Two processes on one ring would take each other's answers."""
    path = written(tmp_path, clustered(500, 64))
    with VectorFile.open(path) as file:
        file.read(np.arange(10))
        ours = list(ring_pool._free)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = 0 if len(file.read(np.arange(500))) == 500 and not set(ours) & set(ring_pool._free) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(file.read(np.arange(500))) == 500


@pytest.mark.parametrize("more", [[], ["all"]])
def test_where_io_uring_is_forbidden_the_other_way_is_taken(tmp_path, more):
    """The kernel's own refusal, as containers have it, in a process of its own."""
    path = written(tmp_path, clustered(500, 64))
    evict(path)
    done = subprocess.run([sys.executable, str(FORBID), str(path), *more], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-3:] == ["advice", "500", "refused"]
    assert done.stdout.startswith("advice") or not more


@needs_rings
def test_a_ring_that_stops_answering_is_not_used_again(tmp_path, monkeypatch):
    from bidr.index.vectors import io_uring as module

    own = IoUringPool()
    assert own.usable()
    monkeypatch.setattr(module.IoUring, "read", lambda *_: (fetching.BROKEN, 0, -1))
    assert own.read(0, np.zeros((1, 2), dtype=np.int64), None) is None
    assert not own.usable()
    assert "stopped" in own.refused


def test_an_impossible_choice_is_refused(tmp_path, monkeypatch):
    path = written(tmp_path, clustered(5, 8))
    monkeypatch.setattr(ring_pool, "refused", "not permitted")
    with VectorFile.open(path, reads="io_uring") as file, pytest.raises(ConfigError, match="not permitted"):
        file.fetch(np.array([0]))
    with VectorFile.open(path) as file:
        assert file.reads.endswith("advice")
        assert len(file.read(np.arange(5))) == 5


def test_nothing_is_written_and_no_right_to_write_is_needed(tmp_path):
    path = written(tmp_path, clustered(500, 64))
    for one in tmp_path.iterdir():
        one.chmod(0o444)
    tmp_path.chmod(0o555)
    before = sorted((one.name, one.stat().st_mtime_ns) for one in tmp_path.iterdir())
    with VectorFile.open(path) as file:
        assert len(file.read(np.arange(500))) == 500
    assert sorted((one.name, one.stat().st_mtime_ns) for one in tmp_path.iterdir()) == before
    tmp_path.chmod(0o755)
