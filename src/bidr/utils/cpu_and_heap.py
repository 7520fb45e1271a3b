"""CPU affinity and the heap of the C library."""

import ctypes
import os
from contextlib import suppress


def count_available_cpus() -> int:
    """Return the number of CPUs this process may run on, or all of them where affinity is unknown (macOS)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def trim_heap() -> None:
    """Return free heap memory to the system (`malloc_trim`), where the C library can.

    Freeing a large array raises glibc's mmap threshold to its size (32 MiB at most). Later arrays up to that size come
    from the heap and leave holes that the next ones do not fit into.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
