"""Training logs: JSON lines, and TensorBoard files if it is installed."""

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
    """Discards all logs: for ranks other than zero."""

    def log_step(self, number: int, queries: int, values: Mapping[str, float]) -> None:
        """Log a step; every STEPS_BETWEEN_LINES-th is written, with the speed since the last."""

    def log_epoch(self, number: int, epoch: int, values: Mapping[str, float]) -> None:
        """Log the metrics of an epoch; number: its last step."""

    def log_measurement(self, number: int, times: int, values: Mapping[str, float]) -> None:
        """Log the `times`-th measurement of a stage without epochs."""

    def close(self) -> None:
        pass


class FolderLogger(StageLogger):
    """Writes logs into a stage's folder. Lines of steps after `number`, from an interrupted run, are dropped.

    Args:
        epochs: Epochs (or measurements) logged until then.
        tensorboard: None: write TensorBoard files if it is installed; True: require it.
    """

    def __init__(self, folder: Path, number: int, epochs: int, tensorboard: bool | None) -> None:
        path = folder / LOG
        lines = [line for line in read_lines(path) if line["step"] <= number and _get_closed_epoch(line) <= epochs]
        write_atomically(path, "".join(map(_format_line, lines)).encode())
        self._path = path
        self._file: TextIO = path.open("a", encoding="utf-8", buffering=1)
        self._board = _open_tensorboard(folder, number, tensorboard)
        self._queries, self._since = 0, time.monotonic()

    def log_step(self, number: int, queries: int, values: Mapping[str, float]) -> None:
        self._queries += queries
        if number % STEPS_BETWEEN_LINES:
            return
        now = time.monotonic()
        speed = self._queries / max(now - self._since, 1e-9)
        self._queries, self._since = 0, now
        self._write(number, {**values, "triples_per_second": round(speed, 1)})

    def log_epoch(self, number: int, epoch: int, values: Mapping[str, float]) -> None:
        self._close(number, {"epoch": epoch, **values})

    def log_measurement(self, number: int, times: int, values: Mapping[str, float]) -> None:
        self._close(number, {"measured": times, **values})

    def _close(self, number: int, values: Mapping[str, float]) -> None:
        self._write(number, values)
        # Exclude validation from the next line's speed.
        self._queries, self._since = 0, time.monotonic()

    def close(self) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()

    def _write(self, number: int, values: Mapping[str, float]) -> None:
        with storage_errors(self._path):
            self._file.write(_format_line({"step": number, **values}))
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(name, value, number)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read complete lines; a truncated last line is skipped."""
    if not path.exists():
        return []
    lines = [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("}\n")]
    with suppress(ValueError):  # a damaged log must not end the run
        return [json.loads(line) for line in lines]
    return []


def _get_closed_epoch(line: Mapping[str, Any]) -> int:
    """Return the epoch or measurement that a line closes; 0 for a step's line."""
    return int(line.get("epoch", line.get("measured", 0)))


def _format_line(values: Mapping[str, Any]) -> str:
    return json.dumps(values) + "\n"


def check_tensorboard(requested: bool | None) -> bool:
    """Return whether to write TensorBoard files; MissingExtraError if required but not installed."""
    is_installed = find_spec("tensorboard") is not None
    if requested and not is_installed:
        raise MissingExtraError("logs = true", "tensorboard", "logs")
    return is_installed and requested is not False


def _open_tensorboard(folder: Path, number: int, requested: bool | None) -> Any:
    if not check_tensorboard(requested):
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=number + 1)
