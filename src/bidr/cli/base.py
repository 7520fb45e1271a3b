"""Base class of commands, and their result: one content for people and for programs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import tyro

from bidr.errors import StorageError

_NONE = "(optional)"
Engine = Literal["auto", "flat", "ivf", "graph", "scan", "lists", "hnsw"]
OptionalFile = Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint=_NONE)]
OptionalFolder = Annotated[Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint=_NONE)]
OptionalNumber = Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint=_NONE)]
OptionalSize = Annotated[str | None, tyro.conf.arg(metavar="SIZE", help_behavior_hint=_NONE)]
OptionalFilter = Annotated[str | None, tyro.conf.arg(metavar="JSON", help_behavior_hint=_NONE)]
Folder = Annotated[Path, tyro.conf.arg(metavar="FOLDER")]
Data = Annotated[str, tyro.conf.arg(metavar="FOLDER")]
OptionalData = Annotated[str | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint=_NONE)]


class CommandResult(NamedTuple):
    """A result: `text` goes to standard output, `value` to the file that --json names; `code` is the exit code."""

    text: str
    value: Any
    code: int = 0


@dataclass(frozen=True, kw_only=True)
class Command:
    """One verb of the command line. Its fields are its flags; `help_groups` names those that --help shows, by title."""

    help_groups: ClassVar[dict[str, tuple[str, ...]]]

    json: OptionalFile = None
    """Also write the result to this file, as JSON."""

    @classmethod
    def make_defaults(cls, flags: Sequence[str]) -> Self | None:
        """What holds where no flag says otherwise, if that depends on the flags; None: the fields' own defaults."""
        return None

    def list_outputs(self) -> list[Path]:
        """Files that are written at the end, and so must be known to be writable at the start."""
        return [self.json] if self.json else []

    def run(self) -> CommandResult:
        raise NotImplementedError


def check_outputs(paths: list[Path]) -> None:
    """Refuse what could not be written later, before any work is done for it."""
    for path in paths:
        if path.is_dir():
            raise StorageError(f"cannot write {path}: it is a folder; give the name of a file")
        if not path.parent.is_dir():
            raise StorageError(f"cannot write {path}: the folder {path.parent} does not exist; create it first")


def format_count(count: int, noun: str) -> str:
    """Format a count with its noun: 1 document, 2,000 documents."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def format_columns(rows: list[tuple[str, str]]) -> str:
    """Names and values, one pair a line, the values under each other."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)
