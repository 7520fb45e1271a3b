"""Base class of commands, and their result as text and as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import tyro

from bidr.errors import StorageError

_NONE = "(optional)"
Engine = Literal["auto", "flat", "ivf", "graph", "scan", "lists", "hnsw"]
OptionalFile = Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint=_NONE)]
OptionalSource = Annotated[str | None, tyro.conf.arg(metavar="FILE", help_behavior_hint=_NONE)]
OptionalFolder = Annotated[Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint=_NONE)]
OptionalNumber = Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint=_NONE)]
OptionalWeight = Annotated[float | None, tyro.conf.arg(metavar="W", help_behavior_hint=_NONE)]
OptionalSize = Annotated[str | None, tyro.conf.arg(metavar="SIZE", help_behavior_hint=_NONE)]
OptionalFilter = Annotated[str | None, tyro.conf.arg(metavar="JSON", help_behavior_hint=_NONE)]
OptionalText = Annotated[str | None, tyro.conf.arg(metavar="TEXT", help_behavior_hint=_NONE)]
OptionalEncoder = Annotated[str | None, tyro.conf.arg(metavar="ENCODER", help_behavior_hint=_NONE)]
Folder = Annotated[Path, tyro.conf.arg(metavar="FOLDER")]
Data = Annotated[str, tyro.conf.arg(metavar="FOLDER")]
OptionalData = Annotated[str | None, tyro.conf.arg(metavar="DATA", help_behavior_hint=_NONE)]


class CommandResult(NamedTuple):
    """Result of a command: `text` for standard output, `value` for the file of --json, and the exit code."""

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
        """Return defaults that depend on other flags; None: the defaults of the fields."""
        return None

    def list_outputs(self) -> list[Path]:
        """List the output files that must be writable before work starts."""
        return [self.json] if self.json else []

    def run(self) -> CommandResult:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class SearchCommand(Command):
    """A command that searches an index."""

    index: OptionalFolder = None
    """Index folder; by default the one built last."""
    model: OptionalFolder = None
    """Model folder, if it has moved since the index was built."""
    encoder: OptionalEncoder = None
    """Encoder of an index of vectors: that which made them (see bidr build), or where it is now. By default that which
    the index was built with."""
    candidates: OptionalNumber = None
    """Candidates per query, ranked by full vectors; by default the model's setting."""
    cache: OptionalSize = None
    """Memory for vectors, such as 2GiB; 0: none. By default the page cache if all vectors fit in the available memory,
    otherwise a cache of half of it."""
    fuse: float = 0.0
    """Weight of the code score in the final score; 0: rank by vectors alone. With codes trained on labels, 1 is a
    good weight."""
    lexical: OptionalNumber = None
    """BM25 candidates per query, beside those of the codes; by default as the model recommends. 0: none. Needs an index
    built with --lexical."""
    lexical_weight: OptionalWeight = None
    """Weight of the BM25 score (relative to the query's best) in the final score; by default as the model recommends.
    0: rank by vectors alone."""


def check_outputs(paths: list[Path]) -> None:
    """Raise ConfigError for output files that cannot be written, before any work."""
    for path in paths:
        if path.is_dir():
            raise StorageError(f"cannot write {path}: it is a folder; give the name of a file")
        if not path.parent.is_dir():
            raise StorageError(f"cannot write {path}: the folder {path.parent} does not exist; create it first")


def format_count(count: int, noun: str, plural: str = "") -> str:
    """Format a count with its noun: 1 document, 2,000 documents."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def format_columns(rows: list[tuple[str, str]]) -> str:
    """Format names and values, one pair per line, with aligned values."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)
