"""Flags that say how tables and text files of --data and --vectors are read."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from bidr.cli.base import Command, OptionalNumber
from bidr.errors import ConfigError

if TYPE_CHECKING:
    from bidr.data.dataset import Dataset

OptionalColumn = Annotated[str | None, tyro.conf.arg(metavar="COLUMN", help_behavior_hint="(optional)")]
OptionalColumns = Annotated[str | None, tyro.conf.arg(metavar="COLUMN,...", help_behavior_hint="(optional)")]
COLUMN_FLAGS = ("text-column", "id-column", "title-column", "vector-column", "metadata", "chunk-size", "chunk-overlap")
"""Names of the flags, for the groups of the help."""


@dataclass(frozen=True, kw_only=True)
class TableCommand(Command):
    """Base of verbs that read tables and text files."""

    text_column: OptionalColumn = None
    """Column of the texts in a table; by default recognized by its name: text, body, content, passage."""
    id_column: OptionalColumn = None
    """Column of the ids: id, _id, docid. Without one, row numbers are the ids."""
    title_column: OptionalColumn = None
    """Column of the titles: title."""
    vector_column: OptionalColumn = None
    """Column of the vectors: vector, embedding, emb."""
    metadata: OptionalColumns = None
    """Columns that become attributes, separated by commas; by default all others. '' for none."""
    chunk_size: OptionalNumber = None
    """Characters of a chunk of a text file (.txt, .md, .html), by default 1,000; 0: whole sections."""
    chunk_overlap: OptionalNumber = None
    """Characters that a chunk repeats of the one before, by default 100."""

    def load_table(self, source: str, *, only: "tuple[str, ...] | None" = None) -> "Dataset":
        """Open a dataset with these flags. only: the flags to use, by the names of options; None: all."""
        from bidr.data.dataset import load

        names = [name.strip() for name in self.metadata.split(",")] if self.metadata else []
        options = {
            "text_column": self.text_column,
            "id_column": self.id_column,
            "title_column": self.title_column,
            "vector_column": self.vector_column,
            "metadata": None if self.metadata is None else names,
            "chunk_size": self.chunk_size,
            "chunk_overlap": self.chunk_overlap,
        }
        used = {name: value for name, value in options.items() if only is None or name in only}
        return load(source, **used)  # type: ignore[arg-type]

    def refuse_table_flags(self, reason: str) -> None:
        """Refuse flags where nothing is read as a table."""
        given_flags = [name for name in COLUMN_FLAGS if getattr(self, name.replace("-", "_")) is not None]
        if given_flags:
            raise ConfigError(f"--{given_flags[0]}: given {reason}; leave it out")
