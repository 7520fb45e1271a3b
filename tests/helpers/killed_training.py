"""A run that kills itself: python killed.py FOLDER PLACE NUMBER.

PLACE is 'step' (after so many steps), 'save' (in the midst of so many checkpoints: written, not yet in place) or 'log'
(after half of so many lines); 'never' runs to the end.
"""

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from sample_training import dataset, with_settings

from bidr.training.engine import checkpoint
from bidr.training.engine.logs import FolderLogger
from bidr.training.engine.loop import StageTrainer
from bidr.training.train import train

EPOCHS = {stage: {"epochs": 5} for stage in ("warmup", "sparse", "dense", "unify")}
SETTINGS = replace(with_settings(**EPOCHS), batch_size=4, checkpoint_minutes=0.02 / 60)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def at(number: int, deed: Callable[..., Any], *, before: bool = False) -> Callable[..., Any]:
    """A function whose call of that number, counted from 1, is the last thing that happens."""
    calls = count(1)

    def watched(*given: Any) -> Any:
        last = next(calls) == number
        if last and before:
            die()
        value = deed(*given)
        if last:
            die()
        return value

    return watched


def cut_line(number: int) -> Callable[..., None]:
    real, calls = FolderLogger._write, count(1)

    def watched(self: FolderLogger, *given: Any) -> None:
        if next(calls) == number:
            self._file.write('{"step": 1')
            self._file.flush()
            die()
        real(self, *given)

    return watched


if __name__ == "__main__":
    folder, place, number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    if place == "step":
        StageTrainer.train_step = at(number, StageTrainer.train_step)  # type: ignore[method-assign]
    elif place == "save":
        checkpoint.sync_file = at(number, checkpoint.sync_file)
    elif place == "log":
        FolderLogger._write = cut_line(number)  # type: ignore[method-assign]
    train(dataset(), SETTINGS, folder)
