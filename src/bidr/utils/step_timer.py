"""Which steps time is spent on: CPU time of all threads, and time that passes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple


class Seconds(NamedTuple):
    """What a step took: of the processor, all cores together, and by the clock."""

    cpu: float = 0.0
    clock: float = 0.0

    def __add__(self, other: "Seconds") -> "Seconds":  # type: ignore[override]
        return Seconds(self.cpu + other.cpu, self.clock + other.clock)

    def __sub__(self, other: "Seconds") -> "Seconds":
        return Seconds(self.cpu - other.cpu, self.clock - other.clock)


Spent = dict[str, Seconds]
_counting: ContextVar[Spent | None] = ContextVar("counting", default=None)


def now() -> Seconds:
    return Seconds(time.process_time(), time.perf_counter())


@contextmanager
def counted() -> Iterator[Spent]:
    """What the steps within take, by their names in the order in which they began."""
    spent: Spent = {}
    token = _counting.set(spent)
    try:
        yield spent
    finally:
        _counting.reset(token)


@contextmanager
def spending(step: str) -> Iterator[None]:
    """What is done within is counted for a step, and not for one around it."""
    spent = _counting.get()
    if spent is None:
        yield
        return
    before = sum(spent.values(), Seconds())
    spent.setdefault(step, Seconds())
    started = now()
    try:
        yield
    finally:
        within = sum(spent.values(), Seconds()) - before
        spent[step] += now() - started - within
