"""A stage's state on disk, whole or not at all, and stopping at a step's end when asked to."""

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
    """Replace the checkpoint; a crash leaves the one before."""
    aside = path.with_name(f".{path.name}.new")
    with storage_errors(path):
        try:
            torch.save(state, aside)
            sync_file(aside)
            os.replace(aside, path)
            sync_folder(path.parent)
        finally:
            aside.unlink(missing_ok=True)


def load(path: Path) -> dict[str, Any] | None:
    """The checkpoint, or None where there is none. Only tensors and plain values are read."""
    if not path.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ModelError(
            f"{path}: the checkpoint cannot be read ({type(error).__name__}); delete it to begin the stage anew"
        ) from error
    return state


class StopSignal:
    """Whether a stop was asked for since the block began."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


@contextmanager
def catch_stop_signals() -> Iterator[StopSignal]:
    """Ctrl-C and SIGTERM wait for the step's end; a second one does not wait."""
    asked = StopSignal()
    try:
        before = {number: signal.signal(number, asked) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: whoever runs it there stops it
        before = {}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def hold_stop_signals() -> Iterator[StopSignal]:
    """The same for a process that waits for another, unless it is within such a block: then that one is told."""
    if isinstance(signal.getsignal(signal.SIGTERM), StopSignal):
        yield StopSignal()
        return
    with catch_stop_signals() as asked:
        yield asked
