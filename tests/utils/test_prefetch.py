"""A parallel map keeps the order of its items, reads few of them early, and raises where the function raised."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from bidr.utils.prefetch import map_in_order


def test_results_keep_the_order_of_the_items():
    def square(item):
        time.sleep(0.02 if item % 5 == 0 else 0)
        return item * item

    assert list(map_in_order(square, range(40), 3)) == [item * item for item in range(40)]


def test_few_items_are_read_ahead_of_the_consumer():
    read = []

    def iter_items():
        for item in range(1_000):
            read.append(item)
            yield item

    results = map_in_order(str, iter_items(), 2)
    assert next(results) == "0"
    assert len(read) <= 6
    results.close()


def test_an_exception_is_raised_at_the_position_of_its_item():
    results = map_in_order(lambda item: 1 // item, [2, 1, 0, 1], 2)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_closing_cancels_the_items_that_have_not_started(monkeypatch):
    """At most two items are being computed when the iterator is closed."""
    computed, is_closing = [], threading.Event()

    class Pool(ThreadPoolExecutor):
        def shutdown(self, **options):
            super().shutdown(wait=False, **options)
            is_closing.set()
            super().shutdown()

    def compute(item):
        assert item == 0 or is_closing.wait(60)
        computed.append(item)

    monkeypatch.setattr("bidr.utils.prefetch.ThreadPoolExecutor", Pool)
    results = map_in_order(compute, range(100), 2)
    next(results)
    results.close()
    assert set(computed) <= {0, 1, 2}
