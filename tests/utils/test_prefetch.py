"""Work by several threads comes back in order, is taken a few items ahead, and fails where it failed."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from bidr.utils.prefetch import together


def test_results_keep_the_order_of_the_items():
    def slow_first(item):
        time.sleep(0.02 if item % 5 == 0 else 0)
        return item * item

    assert list(together(slow_first, range(40), 3)) == [item * item for item in range(40)]


def test_items_are_taken_only_a_few_ahead():
    taken = []

    def items():
        for item in range(1_000):
            taken.append(item)
            yield item

    found = together(str, items(), 2)
    assert next(found) == "0"
    assert len(taken) <= 6
    found.close()


def test_what_fails_fails_at_its_place():
    found = together(lambda item: 1 // item, [2, 1, 0, 1], 2)
    assert [next(found), next(found)] == [0, 1]
    with pytest.raises(ZeroDivisionError):
        next(found)


def test_what_nobody_waits_for_any_more_is_not_made(monkeypatch):
    """Two at most are being made when it is closed; those that wait are given up."""
    made, closing = [], threading.Event()

    class Pool(ThreadPoolExecutor):
        def shutdown(self, **given):
            super().shutdown(wait=False, **given)
            closing.set()
            super().shutdown()

    def make(item):
        assert item == 0 or closing.wait(60)
        made.append(item)

    monkeypatch.setattr("bidr.utils.prefetch.ThreadPoolExecutor", Pool)
    found = together(make, range(100), 2)
    next(found)
    found.close()
    assert set(made) <= {0, 1, 2}
