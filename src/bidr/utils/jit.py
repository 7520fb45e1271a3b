"""Functions compiled on first use: by numba, and kept on disk for the next process where that is allowed."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(*, loose_sums: bool = False) -> Callable[[Function], Function]:
    """Decorator: run without Python and without its lock.

    loose_sums: sums may be taken in another order, the same for all inputs of a shape, so that they can be vectorised.
    """
    from numba import njit

    options = {"nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "contract"} if loose_sums else False}

    def decorate(function: Function) -> Function:
        try:
            made: Any = njit(cache=True, **options)(function)
            kept = made._cache._cache_file
            kept._source_stamp = (kept._source_stamp, sources())
        except (RuntimeError, AttributeError):
            # Compiled again in every process: it can be kept neither beside the source nor in a home folder, or this
            # numba keeps it otherwise. Or not compiled at all (NUMBA_DISABLE_JIT=1).
            made = njit(**options)(function)
        return cast(Function, made)

    return decorate


@cache
def sources(folder: Path = Path(__file__).parents[1]) -> tuple[tuple[float, int], ...]:
    """When each source with compiled functions was changed, and its size.

    A compiled function holds what it calls, also from other modules; numba looks at its own source alone, and would
    go on with what a module said before an update.
    """
    marks = (b"bidr.utils.jit", b"numba")
    texts = (path for path in sorted(folder.rglob("*.py")) if any(mark in path.read_bytes() for mark in marks))
    return tuple((found.st_mtime, found.st_size) for found in (path.stat() for path in texts))
