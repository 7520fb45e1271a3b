"""Report progress on standard error: a bar on a terminal, a line from time to time elsewhere."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 15.0

console = Console(stderr=True, highlight=False)


class ProgressCallback(Protocol):
    """Callback with the units of work just completed and a note to show beside them (a loss, say)."""

    def __call__(self, count: int = 1, note: str = "") -> None: ...


def format_rate(rate: float) -> str:
    """Format a rate, with a decimal if it is below 10."""
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"


def ignore_progress(count: int = 1, note: str = "") -> None:
    """Do nothing: the callback of a job that nobody watches."""


class _LineReporter:
    """Progress for logs: one line every few seconds and one at the end."""

    def __init__(self, label: str, total: int, unit: str, initial: int = 0) -> None:
        self.label, self.total, self.unit = label, total, unit
        self.completed, self.initial, self.note = initial, initial, ""
        self.start = self.last_print = time.monotonic()
        # After the first call, which may include compilation of kernels: the time left is estimated from here on.
        self.warm_start: tuple[float, int] | None = None

    def __call__(self, count: int = 1, note: str = "") -> None:
        self.completed += count
        self.note = note or self.note
        self.warm_start = self.warm_start or (time.monotonic(), self.completed)
        if time.monotonic() - self.last_print > SECONDS_BETWEEN_LINES:
            self.print_line()

    def print_line(self) -> None:
        self.last_print = time.monotonic()
        if console.quiet:
            return
        seconds = self.last_print - self.start
        rate = (self.completed - self.initial) / max(seconds, 1e-9)
        print(
            f"{self.label}: {self.completed:,}/{self.total:,} {self.unit} in {seconds:.1f} s, {format_rate(rate)}/s"
            + self._format_remaining()
            + (f", {self.note}" if self.note else ""),
            file=sys.stderr,
            flush=True,
        )

    def _format_remaining(self) -> str:
        if self.warm_start is None or self.completed >= self.total:
            return ""
        first_time, first_completed = self.warm_start
        if self.completed == first_completed:
            return ""
        seconds_per_unit = (self.last_print - first_time) / (self.completed - first_completed)
        return f", {seconds_per_unit * (self.total - self.completed):.0f} s left"


@contextmanager
def show_progress(label: str, total: int, unit: str = "steps", initial: int = 0) -> Iterator[ProgressCallback]:
    """Show the progress of a job: units done, rate, time left, and a note.

    Args:
        label: the name of the job.
        total: units of work in all.
        unit: plural name of a unit.
        initial: units that an earlier run of the same job has done.
    """
    if not console.is_terminal:
        reporter = _LineReporter(label, total, unit, initial)
        yield reporter
        if reporter.completed > initial:  # otherwise an earlier run printed it
            reporter.print_line()
        return
    columns = (
        TextColumn("{task.description:<28}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TaskProgressColumn(show_speed=True),
        TimeRemainingColumn(),
        TextColumn("{task.fields[speed]} {task.fields[note]}"),
    )
    start = time.monotonic()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(label, total=total, completed=initial, note="", speed="")
        completed = 0

        def advance(count: int = 1, note: str = "") -> None:
            nonlocal completed
            completed += count
            speed = f"{format_rate(completed / max(time.monotonic() - start, 1e-9))} {unit}/s"
            text = note or progress.tasks[0].fields["note"]
            progress.update(task, advance=count, speed=speed, note=text)

        yield advance


def say(message: str) -> None:
    """Print a line on standard error."""
    console.print(message, markup=False, soft_wrap=True)


def is_peer_process() -> bool:
    """Return whether torchrun started this process with a rank other than 0, which does not print."""
    return os.environ.get("WORLD_SIZE", "1") != "1" and os.environ.get("RANK", "0") != "0"


@contextmanager
def hide_progress() -> Iterator[None]:
    """Suppress progress and messages in the block."""
    previous, console.quiet = console.quiet, True
    try:
        yield
    finally:
        console.quiet = previous
