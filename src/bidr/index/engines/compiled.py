"""Compiling with numba: the first call of a function takes seconds, later processes read what that one kept."""

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """The function as machine code that lets other threads run meanwhile."""
    try:
        made: Function = njit(cache=True, nogil=True, boundscheck=False)(function)
    except RuntimeError:  # neither beside the source nor in a home folder: compiled again in every process
        made = njit(nogil=True, boundscheck=False)(function)
    return made
