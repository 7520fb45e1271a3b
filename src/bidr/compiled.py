"""Functions compiled on first use: by numba, and kept on disk for the next process where that is allowed."""

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(*, loose_sums: bool = False) -> Callable[[Function], Function]:
    """Decorator: run without Python and without its lock.

    loose_sums: sums may be taken in another order, the same for all inputs of a shape, so that they can be vectorised.
    """
    from numba import njit

    options = {"nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "contract"} if loose_sums else False}

    def decorate(function: Function) -> Function:
        try:
            made: Function = njit(cache=True, **options)(function)
        except RuntimeError:  # neither beside the source nor in a home folder: compiled again in every process
            made = njit(**options)(function)
        return made

    return decorate
