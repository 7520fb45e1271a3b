"""Atomic checkpoints, and signal handlers that stop training at the end of a step."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from bidr.errors import ModelError
from bidr.utils.files import storage_errors, sync_file, sync_folder


def save(path: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint atomically; a crash leaves the previous one."""
    temporary = path.with_name(f".{path.name}.new")
    with storage_errors(path):
        try:
            torch.save(state, temporary)
            sync_file(temporary)
            os.replace(temporary, path)
            sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def load(path: Path) -> dict[str, Any] | None:
    """Load a checkpoint (tensors and plain values only), or return None if there is none."""
    if not path.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ModelError(
            f"{path}: the checkpoint cannot be read ({type(error).__name__}); delete it to restart the stage"
        ) from error
    return state


class StopSignal:
    """Signal handler that records a stop request; a second signal raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.is_requested = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.is_requested:
            raise KeyboardInterrupt
        self.is_requested = True


@contextmanager
def catch_stop_signals() -> Iterator[StopSignal]:
    """Defer Ctrl-C and SIGTERM to the end of the step; a second one interrupts at once."""
    stop = StopSignal()
    try:
        previous_handlers = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread, where signals cannot be handled
        previous_handlers = {}
    try:
        yield stop
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


@contextmanager
def hold_stop_signals() -> Iterator[StopSignal]:
    """Do the same while waiting for another process, unless an outer block already does."""
    if isinstance(signal.getsignal(signal.SIGTERM), StopSignal):
        yield StopSignal()
        return
    with catch_stop_signals() as stop:
        yield stop
