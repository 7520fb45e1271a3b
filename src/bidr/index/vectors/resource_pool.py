"""Per-process pool of kernel resources: io_uring rings and buffers for direct reads."""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar


class ProcessResource(Protocol):
    """A resource that only the process with this id may use."""

    process: int


ResourceT = TypeVar("ResourceT", bound=ProcessResource)


class ResourcePool(Generic[ResourceT]):
    """Lend each resource to one thread at a time; a forked child creates its own.

    Args:
        create: Opens a resource. An OSError disables the pool; `refusal` then holds its text.
        limit: Maximum number of resources in a process.
    """

    def __init__(self, create: Callable[[], ResourceT], limit: int) -> None:
        self._create, self._limit, self.refusal = create, limit, ""
        self._reset()

    def _reset(self) -> None:
        self._process, self._created = os.getpid(), 0
        self._free, self._retired = list[ResourceT](), list[ResourceT]()
        self._returned, self._waiting = threading.Condition(), 0

    def borrow(self, *, wait: bool = False) -> ResourceT | None:
        """Take a resource; None where the system refuses it, or all are in use unless `wait`."""
        if self._process != os.getpid():
            self._reset()
        if self.refusal:
            return None
        try:
            return self._free.pop()
        except IndexError:  # contextlib.suppress costs a microsecond of each query
            pass
        if self._created >= self._limit:
            return self._wait() if wait else None
        self._created += 1
        try:
            return self._create()
        except OSError as error:
            self.refusal = self.refusal or str(error.strerror or error)
            return None

    def _wait(self) -> ResourceT | None:
        """Wait until a resource returns; None if the pool is disabled meanwhile."""
        with self._returned:
            self._waiting += 1
            try:
                while not self.refusal:
                    with suppress(IndexError):  # other threads take resources without the lock
                        return self._free.pop()
                    self._returned.wait()
            finally:
                self._waiting -= 1
        return None

    def release(self, resource: ResourceT) -> None:
        """Return a resource; one that was borrowed before a fork is dropped."""
        if resource.process == os.getpid() == self._process:
            self._free.append(resource)
            if self._waiting:
                with self._returned:
                    self._returned.notify()

    def retire(self, resource: ResourceT, reason: str) -> None:
        """Disable the pool after a hang. The resource stays referenced: the kernel may still write to its memory."""
        self._retired.append(resource)
        self.refusal = reason
        with self._returned:
            self._returned.notify_all()

    def is_usable(self) -> bool:
        """Tell whether this process may use the resource; `refusal` says why not."""
        resource = self.borrow()
        if resource is not None:
            self.release(resource)
        return not self.refusal
