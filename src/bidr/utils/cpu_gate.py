"""Limit on threads that compute at the same time, first come, first served.

More computing threads than CPUs only take turns on them and on the GIL, in no order: with 16 threads on 2 CPUs the gate
lowered p99 of warm searches from 123 to 45 ms (docs/reports/larger-than-memory.md).
"""

import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from bidr.utils.cpu_and_heap import count_available_cpus
from bidr.utils.deadline import check_deadline


class CpuGate:
    """Context manager that lets at most `permits` threads compute; others wait in order."""

    def __init__(self, permits: int) -> None:
        self._permits = permits
        self._reset()

    def _reset(self) -> None:
        self._process, self._free = os.getpid(), self._permits
        self._lock, self._waiting = threading.Lock(), deque[threading.Lock]()

    def __enter__(self) -> None:
        if self._process != os.getpid():  # a forked child: the threads that hold permits are the parent's
            self._reset()
        if self._wait():
            try:
                check_deadline()
            except BaseException:
                self.__exit__()
                raise

    def _wait(self) -> bool:
        """Take a permit; returns whether that took waiting."""
        with self._lock:
            if self._free:
                self._free -= 1
                return False
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        turn.acquire()
        return True

    def __exit__(self, *error: object) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()  # the permit goes on to that thread
            else:
                self._free = min(self._free + 1, self._permits)

    @contextmanager
    def leave(self) -> Iterator[None]:
        """Return the permit for the block, in which this thread waits for the disk."""
        self.__exit__()
        try:
            yield
        finally:
            self._wait()


cpu_gate = CpuGate(count_available_cpus() + 1)
