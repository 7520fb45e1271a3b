"""Answers depend neither on the cache for vectors nor on threads; RAM counts the cache."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from sample_index import clustered, small_index
from sample_live_index import some, writer

from bidr.index.live.live_reader import LiveIndex
from bidr.search.searcher import Searcher
from bidr.search.types import QueryVectors

CACHES = (None, 0, 30_000, "1GiB")


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """An index of two segments, a log, and deleted documents in each."""
    folder = tmp_path_factory.mktemp("cache") / "i"
    small_index(folder, 5_000)
    with writer(folder) as open_writer:
        for start in (0, 300, 600):
            open_writer.add(*some(range(start, start + 300)))
            open_writer.delete([f"doc-{number}" for number in range(start, start + 100, 7)])
            if not start:
                open_writer.compact()
    return folder


def search_all(folder, cache, threads, filter=None):
    queries = clustered(60, 16, seed=9)
    with LiveIndex.open(folder, cache=cache) as reader, ThreadPoolExecutor(threads) as pool:
        searcher = Searcher(reader)

        def search(number):
            query = queries[number : number + 1]
            batch = searcher.search_vectors(QueryVectors(query, query), 10, 150, filter=filter)
            return batch.rows.tobytes(), batch.scores.tobytes(), batch.candidate_ranks.tobytes()

        results = [list(pool.map(search, range(60))) for _ in range(2)]
        assert results[0] == results[1]
        return results[0], reader.ram_usage.parts.get("row cache", 0)


@pytest.mark.parametrize("filter", [None, {"even": True}])
def test_answers_are_the_same_with_any_cache_and_threads(index, filter):
    expected, in_page_cache = search_all(index, "1GiB", 1, filter)
    assert in_page_cache == 0
    for cache in CACHES:
        answers, ram = search_all(index, cache, 8, filter)
        assert answers == expected, cache
        assert ram <= (cache if isinstance(cache, int) else 0)


def test_reads_of_a_search_are_counted(index):
    query = clustered(1, 16)
    for cache in CACHES:
        with LiveIndex.open(index, cache=cache) as reader:
            stats = Searcher(reader).search_vectors(QueryVectors(query, query), 10, 150).read_stats
        assert 0 < stats.rows <= 150, "documents of the log are in memory"
        assert stats.hits <= stats.rows
        assert (stats.reads > 0) == (stats.bytes > 0)
        assert stats.bytes % 4_096 == 0


def test_evaluation_reports_reads_and_inspection_the_policy(index):
    with LiveIndex.open(index, cache=0) as reader:
        assert reader.describe()["vectors"]["memory"] == "row cache"
        assert reader.describe()["vectors"]["cache_bytes"] == 0
    with LiveIndex.open(index) as reader:
        assert reader.describe()["vectors"]["memory"] == "page cache"
    assert np.isfinite(reader.ram_bytes_per_doc)
