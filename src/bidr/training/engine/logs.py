"""What a stage shows of itself while it runs: lines of JSON, and TensorBoard's files where that is installed."""

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

from bidr.errors import MissingExtraError
from bidr.utils.files import storage_errors, write_atomically

LOG = "log.jsonl"
STEPS_BETWEEN_LINES = 10


class StageLogger:
    """Nowhere: for a process whose peer logs."""

    def step(self, number: int, queries: int, values: Mapping[str, float]) -> None:
        """A step's values; one in STEPS_BETWEEN_LINES is written, with the speed since the last."""

    def epoch(self, number: int, epoch: int, values: Mapping[str, float]) -> None:
        """What is known after an epoch whose last step had this number."""

    def measured(self, number: int, times: int, values: Mapping[str, float]) -> None:
        """The same of a stage without epochs, which measures itself for the so manieth time."""

    def close(self) -> None:
        pass


class FolderLogger(StageLogger):
    """A stage's folder, from a step on: what was written of later ones, before a run was cut off, is dropped.

    epochs:      how many were closed by then, or how often it was measured.
    tensorboard: None writes its files where the package is installed; True insists on it.
    """

    def __init__(self, folder: Path, number: int, epochs: int, tensorboard: bool | None) -> None:
        path = folder / LOG
        kept = [line for line in read_lines(path) if line["step"] <= number and _closed(line) <= epochs]
        write_atomically(path, "".join(map(_as_line, kept)).encode())
        self._path = path
        self._file: TextIO = path.open("a", encoding="utf-8", buffering=1)
        self._board = _board(folder, number, tensorboard)
        self._queries, self._since = 0, time.monotonic()

    def step(self, number: int, queries: int, values: Mapping[str, float]) -> None:
        self._queries += queries
        if number % STEPS_BETWEEN_LINES:
            return
        now = time.monotonic()
        speed = self._queries / max(now - self._since, 1e-9)
        self._queries, self._since = 0, now
        self._write(number, {**values, "triples_per_second": round(speed, 1)})

    def epoch(self, number: int, epoch: int, values: Mapping[str, float]) -> None:
        self._close(number, {"epoch": epoch, **values})

    def measured(self, number: int, times: int, values: Mapping[str, float]) -> None:
        self._close(number, {"measured": times, **values})

    def _close(self, number: int, values: Mapping[str, float]) -> None:
        self._write(number, values)
        # Validation is no training: the next line's speed begins after it.
        self._queries, self._since = 0, time.monotonic()

    def close(self) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()

    def _write(self, number: int, values: Mapping[str, float]) -> None:
        with storage_errors(self._path):
            self._file.write(_as_line({"step": number, **values}))
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(name, value, number)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Whole lines; one that was cut off in the writing is left out."""
    if not path.exists():
        return []
    whole = [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("}\n")]
    with suppress(ValueError):  # what is damaged is lost, not the run
        return [json.loads(line) for line in whole]
    return []


def _closed(line: Mapping[str, Any]) -> int:
    """The epoch or measurement that a line closes; 0: a step's line."""
    return int(line.get("epoch", line.get("measured", 0)))


def _as_line(values: Mapping[str, Any]) -> str:
    return json.dumps(values) + "\n"


def check_tensorboard(wanted: bool | None) -> bool:
    """Whether TensorBoard's files are to be written; MissingExtraError where they are asked for and cannot be."""
    there = find_spec("tensorboard") is not None
    if wanted and not there:
        raise MissingExtraError("logs = true", "tensorboard", "logs")
    return there and wanted is not False


def _board(folder: Path, number: int, wanted: bool | None) -> Any:
    if not check_tensorboard(wanted):
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=number + 1)
