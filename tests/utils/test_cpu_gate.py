"""The gate bounds computing threads, serves them in order, and survives errors, deadlines and forks."""

import os
import threading
import time

import pytest

from bidr.errors import SearchTimeoutError
from bidr.utils.cpu_gate import CpuGate
from bidr.utils.deadline import deadline_scope


def test_at_most_as_many_threads_as_permits_compute():
    gate, lock, counts = CpuGate(2), threading.Lock(), [0, 0]

    def compute() -> None:
        for _ in range(20):
            with gate:
                with lock:
                    counts[0] += 1
                    counts[1] = max(counts)
                time.sleep(0.0005)
                with lock:
                    counts[0] -= 1

    threads = [threading.Thread(target=compute) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert counts == [0, 2]
    assert gate._free == 2


def test_threads_are_served_in_order_and_a_reading_thread_lets_others_in():
    gate, order = CpuGate(1), []

    def enter(number: int) -> None:
        with gate:
            order.append(number)

    threads = [threading.Thread(target=enter, args=(number,)) for number in range(5)]
    with gate:
        for number, thread in enumerate(threads, 1):
            thread.start()
            while len(gate._waiting) < number:
                time.sleep(0.001)
        assert not order
        with gate.leave():
            for thread in threads:
                thread.join(30)
        assert order == list(range(5))
    assert gate._free == 1


def test_errors_and_deadlines_return_the_permit():
    gate = CpuGate(1)
    with pytest.raises(ZeroDivisionError), gate:
        _ = 1 / 0
    results = []

    def wait() -> None:
        with deadline_scope(time.monotonic()):
            try:
                with gate:
                    results.append("entered")
            except SearchTimeoutError:
                results.append("late")

    with gate:
        thread = threading.Thread(target=wait)
        thread.start()
        while not gate._waiting:
            time.sleep(0.001)
    thread.join(30)
    assert results == ["late"]
    assert gate._free == 1


def test_a_forked_child_has_all_permits():
    gate = CpuGate(1)
    with gate:
        child = os.fork()
        if child == 0:
            with gate:
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
