"""The C library's heap."""

import ctypes
from contextlib import suppress


def trim_heap() -> None:
    """Give free memory back to the system, where the C library can (`malloc_trim`).

    Without it glibc keeps what large arrays leave: once one was freed, others of up to its size (32 MiB at most) come
    from the heap instead of mappings of their own, and leave holes there that do not fit the next ones.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
