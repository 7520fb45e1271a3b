"""Work that goes on while one waits: the next item made in another thread, results on their way from a device."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

Given = TypeVar("Given")
Made = TypeVar("Made")


def ahead(make: Callable[[Given], Made], items: Sequence[Given]) -> Iterator[Made]:
    """make(item) for every item in order, each while the caller is busy with the one before."""
    if len(items) < 2:
        yield from map(make, items)
        return
    with ThreadPoolExecutor(1, "ahead") as thread:
        following = thread.submit(make, items[0])
        for item in items[1:]:
            ready, following = following, thread.submit(make, item)
            yield ready.result()
        yield following.result()


def together(make: Callable[[Given], Made], items: Iterable[Given], threads: int) -> Iterator[Made]:
    """make(item) for every item in order, by several threads; items are taken a few ahead of the caller."""
    pool, making = ThreadPoolExecutor(threads, "together"), deque[Future[Made]]()
    try:
        for item in items:
            making.append(pool.submit(make, item))
            if len(making) > 2 * threads:
                yield making.popleft().result()
        while making:
            yield making.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


class OnItsWay:
    """A tensor being copied to the host, without waiting for it or for what is launched after it."""

    def __init__(self, values: "Tensor") -> None:
        import torch

        self._values, self._arrived = values, None
        if values.is_cuda:
            self._values = torch.empty_like(values, device="cpu", pin_memory=True).copy_(values, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()

    def wait(self) -> "Tensor":
        """The values, once they are here."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._values
