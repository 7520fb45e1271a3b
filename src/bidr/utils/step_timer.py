"""Record CPU and wall time by step, in a ContextVar."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple


class StepTime(NamedTuple):
    """Seconds of a step: CPU time of all threads, and wall-clock time."""

    cpu: float = 0.0
    clock: float = 0.0

    def __add__(self, other: "StepTime") -> "StepTime":  # type: ignore[override]
        return StepTime(self.cpu + other.cpu, self.clock + other.clock)

    def __sub__(self, other: "StepTime") -> "StepTime":
        return StepTime(self.cpu - other.cpu, self.clock - other.clock)


StepTimes = dict[str, StepTime]
_recording: ContextVar[StepTimes | None] = ContextVar("recording", default=None)


def read_clocks() -> StepTime:
    """Return the current CPU and monotonic time; the difference of two is a duration."""
    return StepTime(time.process_time(), time.perf_counter())


@contextmanager
def record_steps() -> Iterator[StepTimes]:
    """Record the time of every step inside the block, by name in the order in which they start."""
    times: StepTimes = {}
    token = _recording.set(times)
    try:
        yield times
    finally:
        _recording.reset(token)


@contextmanager
def time_step(step: str) -> Iterator[None]:
    """Add the time of the block to a step; the time of nested steps is not added to the enclosing one."""
    times = _recording.get()
    if times is None:
        yield
        return
    total_before = sum(times.values(), StepTime())
    times.setdefault(step, StepTime())
    start = read_clocks()
    try:
        yield
    finally:
        nested = sum(times.values(), StepTime()) - total_before
        times[step] += read_clocks() - start - nested
