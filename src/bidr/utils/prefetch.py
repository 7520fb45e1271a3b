"""Overlap work with its consumer: prefetch by one thread, ordered map by several, asynchronous copies to the host."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

Item = TypeVar("Item")
Result = TypeVar("Result")


def prefetch(function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Yield function(item) for every item in order, computing the next result in a thread."""
    if len(items) < 2:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(1, "prefetch") as thread:
        pending = thread.submit(function, items[0])
        for item in items[1:]:
            current, pending = pending, thread.submit(function, item)
            yield current.result()
        yield pending.result()


def map_in_order(function: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Iterator[Result]:
    """Yield function(item) for every item in order, computed by a thread pool."""
    pool, futures = ThreadPoolExecutor(threads, "ordered-map"), deque[Future[Result]]()
    try:
        for item in items:
            futures.append(pool.submit(function, item))
            if len(futures) > 2 * threads:
                yield futures.popleft().result()
        while futures:
            yield futures.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


class AsyncHostCopy:
    """Copy a tensor to the host without blocking on it or on kernels launched later."""

    def __init__(self, values: "Tensor") -> None:
        import torch

        self._values, self._copied = values, None
        if values.is_cuda:
            self._values = torch.empty_like(values, device="cpu", pin_memory=True).copy_(values, non_blocking=True)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()

    def wait(self) -> "Tensor":
        """Block until the copy is complete and return it."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._values
