"""Page-cache reads: with io_uring and madvise, from many threads, of damaged and read-only files."""

import mmap
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from sample_index import clustered
from vector_files import evict, find_resident_pages, find_spans, write_vectors

from bidr.errors import ConfigError, IndexFolderError
from bidr.index.vectors import VectorFile, io_uring, page_cache_io
from bidr.index.vectors.io_uring import MAX_RINGS, IoUring, ring_pool
from bidr.index.vectors.resource_pool import ResourcePool
from bidr.index.vectors.row_layout import make_checksum_keys

FORBID = Path(__file__).parents[2] / "helpers" / "without_io_uring.py"
needs_io_uring = pytest.mark.skipif(not ring_pool.is_usable(), reason="io_uring is forbidden here")


def _count_read_blocks(file: VectorFile, monkeypatch) -> list[int]:
    """Record the number of blocks of each later read."""
    counts, read_spans = [], file._read_spans

    def count(spans):
        counts.append(int((spans[:, 1] - spans[:, 0] + 1).sum()))
        read_spans(spans)

    monkeypatch.setattr(file, "_read_spans", count)
    return counts


def test_blocks_are_read_once_and_neighbors_together():
    spans = page_cache_io.coalesce_blocks(np.array([3, 3, 4, 4, 5, 9, 11, *range(100, 132), 131, *range(132, 140)]))
    assert spans.tolist() == [[3, 5], [9, 9], [11, 11], [100, 131], [132, 139]]


@pytest.mark.parametrize("reads", ["advice", pytest.param("io_uring", marks=needs_io_uring)])
def test_only_the_pages_of_the_rows_are_read(tmp_path, reads):
    path = write_vectors(tmp_path, clustered(20_000, 384))
    # Scattered rows and a run of several reads: neither may trigger readahead.
    rows = np.concatenate([np.random.default_rng(0).integers(0, 20_000, 400), np.arange(5_000, 5_400)])
    evict(path)
    with VectorFile.open(path, reads=reads) as file:
        if len(find_resident_pages(file)) > 8:
            pytest.skip("this file system keeps its files in memory")
        pages, spans = find_resident_pages(file), find_spans(file, rows)
        file._read_spans(spans)
        row_pages = np.concatenate([np.arange(first, last + 1) for first, last in spans])
        np.testing.assert_array_equal(find_resident_pages(file), np.union1d(pages, row_pages))


@needs_io_uring
def test_io_uring_and_madvise_agree_and_evicted_rows_are_read_together(tmp_path, monkeypatch):
    vectors, query = clustered(20_000, 384), clustered(1, 384)[0]
    path = write_vectors(tmp_path, vectors)
    rows = np.random.default_rng(1).integers(0, 20_000, 3_000)
    scores = []
    for reads in ("io_uring", "advice"):
        evict(path)
        with VectorFile.open(path, reads=reads) as file:
            assert file.reads == reads
            scores.append(file.score(rows, query))
            file._map.madvise(mmap.MADV_DONTNEED)
            evict(path)
            counts = _count_read_blocks(file, monkeypatch)
            scores.append(file.score(rows, query))
            assert sum(counts) > 0.9 * len(np.unique(rows * 768 // 4_096))
            scores.append(file.score(rows, query))
            assert len(counts) == 1
    assert len({row.tobytes() for row in scores}) == 1
    np.testing.assert_allclose(scores[0], vectors[rows].astype(np.float16).astype(np.float32) @ query, atol=1e-6)


@pytest.mark.parametrize("kind", ["fp16", "int8"])
@pytest.mark.parametrize("reads", ["auto", "advice", pytest.param("io_uring", marks=needs_io_uring)])
def test_a_damaged_block_raises_only_when_it_is_read(tmp_path, kind, reads):
    path = write_vectors(tmp_path, clustered(3_000, 48), kind)
    size, row_bytes = path.stat().st_size, 96 if kind == "fp16" else 52
    for offset in (4_096 + 1_500 * row_bytes, size - 1, 4_096):
        content = bytearray(path.read_bytes())
        content[offset] ^= 1
        path.write_bytes(content)
        row = (offset - 4_096) // row_bytes
        others = [number for number in range(3_000) if abs(number - row) * row_bytes > 8_192]
        evict(path)
        with VectorFile.open(path, reads=reads) as file:
            file.read(np.array(others))
            for read in (file.read, lambda rows: file.score(rows, np.ones(48, dtype=np.float32))):
                with pytest.raises(IndexFolderError, match=r"vectors\.npy: rows .* are damaged") as caught:
                    read(np.array([row]))
            low, high = (int(word.replace(",", "")) for word in str(caught.value).split() if word[0].isdigit())
            assert low <= row <= high < low + 4_096 // row_bytes + 2
        content[offset] ^= 1
        path.write_bytes(content)
    with VectorFile.open(path, reads=reads) as file:
        file.read(np.arange(3_000))


def test_a_row_in_two_blocks_is_verified_in_both(tmp_path):
    path = write_vectors(tmp_path, clustered(100, 48))
    content = bytearray(path.read_bytes())
    content[4_096 + 43 * 96 - 1] ^= 1  # the last byte of row 42, which starts in the previous block
    path.write_bytes(content)
    with VectorFile.open(path) as file:
        file.read(np.arange(42))
        with pytest.raises(IndexFolderError, match="rows 42 to 85 are damaged"):
            file.read(np.array([42]))


def test_every_flipped_bit_of_a_block_changes_its_checksum():
    random, keys = np.random.default_rng(0), make_checksum_keys()
    for words in (random.integers(0, 2**63, 512, dtype=np.uint64), np.zeros(512, dtype=np.uint64)):
        empty = np.empty(0, dtype=np.uint8)
        checksum = page_cache_io.compute_checksum(words, empty, 0, keys)
        for bit in range(0, 512 * 64, 31):
            words[bit // 64] ^= np.uint64(1 << (bit % 64))
            assert page_cache_io.compute_checksum(words, empty, 0, keys) != checksum
            words[bit // 64] ^= np.uint64(1 << (bit % 64))


@pytest.mark.parametrize("reads", ["auto", "advice", pytest.param("io_uring", marks=needs_io_uring)])
@pytest.mark.parametrize("detected_by", ["its size", "a read"])
def test_a_file_truncated_while_open_raises_an_error_not_a_signal(tmp_path, monkeypatch, reads, detected_by):
    path, message = write_vectors(tmp_path, clustered(2_000, 64)), r"truncated while open \(100,000 bytes, 260,096"
    if detected_by == "a read":  # within CHECK_INTERVAL
        message = r"rows 1,8.* cannot be read \(the file ends before them\)"
        monkeypatch.setattr("bidr.index.vectors.mmap_guard.MmapGuard.check_sizes", lambda self: None)
    with VectorFile.open(path, reads=reads) as file:
        os.truncate(path, 100_000)
        evict(path)
        with pytest.raises(IndexFolderError, match=message):
            file.read(np.array([1_900]))


def test_threads_share_a_file(tmp_path):
    vectors = clustered(10_000, 64)
    path, random = write_vectors(tmp_path, vectors), np.random.default_rng(3)
    stored = vectors.astype(np.float16).astype(np.float32)
    draws = [random.integers(0, 10_000, 400) for _ in range(200)]
    evict(path)
    with VectorFile.open(path) as file, ThreadPoolExecutor(2 * MAX_RINGS) as threads:
        for draw, scores in zip(draws, threads.map(lambda draw: file.score(draw, vectors[0]), draws), strict=True):
            np.testing.assert_allclose(scores, stored[draw] @ vectors[0], atol=1e-6)


def test_a_child_process_creates_its_own_rings(tmp_path):
    """Two processes on one ring would take each other's completions."""
    path = write_vectors(tmp_path, clustered(500, 64))
    with VectorFile.open(path) as file:
        file.read(np.arange(10))
        parents = list(ring_pool._free)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = 0 if len(file.read(np.arange(500))) == 500 and not set(parents) & set(ring_pool._free) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(file.read(np.arange(500))) == 500


@pytest.mark.parametrize("arguments", [[], ["all"]])
def test_where_io_uring_is_forbidden_madvise_is_used(tmp_path, arguments):
    """In a subprocess with a seccomp filter as containers have it."""
    path = write_vectors(tmp_path, clustered(500, 64))
    evict(path)
    process = subprocess.run(
        [sys.executable, str(FORBID), str(path), *arguments], capture_output=True, text=True, check=True
    )
    assert process.stdout.split()[-3:] == ["advice", "500", "refused"]
    assert process.stdout.startswith("advice") or not arguments


@needs_io_uring
def test_a_broken_ring_disables_the_pool(tmp_path, monkeypatch):
    pool = ResourcePool(io_uring.open_ring, MAX_RINGS)
    assert pool.is_usable()
    monkeypatch.setattr(io_uring, "ring_pool", pool)
    monkeypatch.setattr(IoUring, "read", lambda *_: (page_cache_io.BROKEN, 0, -1))
    assert io_uring.read_spans(0, np.zeros((1, 2), dtype=np.int64), None) is None
    assert not pool.is_usable()
    assert "stopped" in pool.refusal


def test_io_uring_mode_raises_where_it_is_refused(tmp_path, monkeypatch):
    path = write_vectors(tmp_path, clustered(5, 8))
    monkeypatch.setattr(ring_pool, "refusal", "not permitted")
    with VectorFile.open(path, reads="io_uring") as file, pytest.raises(ConfigError, match="not permitted"):
        file.fetch(np.array([0]), np.ones(8, dtype=np.float32))
    with VectorFile.open(path) as file:
        assert file.reads.endswith("advice")
        assert len(file.read(np.arange(5))) == 5


def test_reading_needs_no_write_permission_and_writes_nothing(tmp_path):
    path = write_vectors(tmp_path, clustered(500, 64))
    for file in tmp_path.iterdir():
        file.chmod(0o444)
    tmp_path.chmod(0o555)
    times = sorted((file.name, file.stat().st_mtime_ns) for file in tmp_path.iterdir())
    with VectorFile.open(path) as file:
        assert len(file.read(np.arange(500))) == 500
    assert sorted((file.name, file.stat().st_mtime_ns) for file in tmp_path.iterdir()) == times
    tmp_path.chmod(0o755)
