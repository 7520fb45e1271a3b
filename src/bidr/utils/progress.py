"""Progress a person can watch: a bar on a terminal, a line now and then elsewhere. All of it goes to standard error."""

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


class Advance(Protocol):
    """Call it with how much was done, and what to show beside the bar (a loss, say)."""

    def __call__(self, done: int = 1, note: str = "") -> None: ...


class _Lines:
    """Progress for logs: one line at the end of the job and one every few seconds before that."""

    def __init__(self, label: str, total: int, unit: str, before: int = 0) -> None:
        self.label, self.total, self.unit = label, total, unit
        self.done, self.before, self.note = before, before, ""
        self.started = self.spoke = time.monotonic()

    def __call__(self, done: int = 1, note: str = "") -> None:
        self.done += done
        self.note = note or self.note
        if time.monotonic() - self.spoke > SECONDS_BETWEEN_LINES:
            self.say()

    def say(self) -> None:
        self.spoke = time.monotonic()
        if console.quiet:
            return
        seconds = self.spoke - self.started
        rate = (self.done - self.before) / max(seconds, 1e-9)
        left = (self.total - self.done) / max(rate, 1e-9)
        tail = f", {left:.0f} s left" if self.done < self.total else ""
        print(
            f"{self.label}: {self.done:,}/{self.total:,} {self.unit} in {seconds:.1f} s, {rate:,.0f}/s{tail}"
            + (f", {self.note}" if self.note else ""),
            file=sys.stderr,
            flush=True,
        )


@contextmanager
def bar(label: str, total: int, unit: str = "steps", before: int = 0) -> Iterator[Advance]:
    """Show a job of known length while it runs: how far, how fast, how long still, and a note.

    before: how much of it an earlier run did.
    """
    if not console.is_terminal:
        lines = _Lines(label, total, unit, before)
        yield lines
        if lines.done > before:  # else an earlier run said it
            lines.say()
        return
    columns = (
        TextColumn("{task.description:<28}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TaskProgressColumn(show_speed=True),
        TimeRemainingColumn(),
        TextColumn("{task.fields[speed]} {task.fields[note]}"),
    )
    started = time.monotonic()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(label, total=total, completed=before, note="", speed="")
        count = 0

        def advance(done: int = 1, note: str = "") -> None:
            nonlocal count
            count += done
            speed = f"{count / max(time.monotonic() - started, 1e-9):,.0f} {unit}/s"
            shown = note or progress.tasks[0].fields["note"]
            progress.update(task, advance=done, speed=speed, note=shown)

        yield advance


def say(message: str) -> None:
    """One line for the person who waits."""
    console.print(message, markup=False, soft_wrap=True)


def peer() -> bool:
    """Whether torchrun started this process beside a first one, which says what there is to say."""
    return os.environ.get("WORLD_SIZE", "1") != "1" and os.environ.get("RANK", "0") != "0"


@contextmanager
def silent() -> Iterator[None]:
    """Show nothing within: another process shows the same."""
    before, console.quiet = console.quiet, True
    try:
        yield
    finally:
        console.quiet = before
