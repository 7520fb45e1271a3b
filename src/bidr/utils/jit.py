"""Compile functions with numba on first use and cache the machine code on disk where possible."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])


def njit_cached(*, reorder_sums: bool = False) -> Callable[[Function], Function]:
    """Return a decorator that compiles a function with numba, without the GIL, and caches the result on disk.

    Args:
        reorder_sums: allow the compiler to reassociate floating-point sums, so that loops vectorize. The order depends
            on the shape of the input only.
    """
    from numba import njit

    options = {"nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "contract"} if reorder_sums else False}

    def decorate(function: Function) -> Function:
        try:
            kernel: Any = njit(cache=True, **options)(function)
            cache_file = kernel._cache._cache_file
            cache_file._source_stamp = (cache_file._source_stamp, hash_source())
        except (RuntimeError, AttributeError):
            # No writable cache folder beside the source or in the home folder, a numba version without this
            # attribute, or NUMBA_DISABLE_JIT=1: compile in every process, or not at all.
            kernel = njit(**options)(function)
        return cast(Function, kernel)

    return decorate


@contextmanager
def call_on_compilation(callback: Callable[[], None]) -> Iterator[None]:
    """Call back once if a kernel is compiled within the block, rather than loaded from the cache."""
    from numba.core.event import Event, Listener, install_listener

    class FirstCompilation(Listener):  # type: ignore[misc]  # numba has no types
        is_first = True

        def on_start(self, event: Event) -> None:
            if self.is_first:
                self.is_first = False
                callback()

        def on_end(self, event: Event) -> None:
            pass

    with install_listener("numba:compile", FirstCompilation()):
        yield


@cache
def hash_source(folder: Path = Path(__file__).parents[1]) -> tuple[tuple[float, int], ...]:
    """Return modification time and size of every module that uses this one or numba.

    A kernel inlines the functions it calls, also from other modules. Numba invalidates its cache by the kernel's own
    source alone and would keep stale callees after an update.
    """
    markers = (b"bidr.utils.jit", b"numba")
    modules = (path for path in sorted(folder.rglob("*.py")) if any(marker in path.read_bytes() for marker in markers))
    return tuple((stat.st_mtime, stat.st_size) for stat in (path.stat() for path in modules))
