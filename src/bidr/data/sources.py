"""What every format offers: tables of documents, queries and judgements that can be read again and again."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from bidr.data import text_files as streams
from bidr.data.dropped_fields import LeftOut
from bidr.data.types import Document, Qrel, Query
from bidr.errors import DataError

Record = TypeVar("Record")


@dataclass(frozen=True)
class Table(Generic[Record]):
    """Records that stream from a file each time the table is iterated, each with its line or row number from 1."""

    where: str
    """The file or folder, as error messages name it."""
    read: Callable[[], Iterator[tuple[int, Record]]]
    """Opens the file anew. A partial of a module's function, so that a table can be sent to another process."""
    unit: str = "line"
    files: tuple[Path, ...] = ()
    """What to look at to learn whether the content has changed."""
    held: Sequence[Record] = ()
    """The content itself, where there are no files."""
    telling: Callable[[LeftOut], Iterator[tuple[int, Record]]] | None = None
    """As `read`, counting what of the records is left out; None: nothing ever is."""

    def __iter__(self) -> Iterator[tuple[int, Record]]:
        return self.read()

    def place(self, number: int) -> str:
        """How an error message names one record."""
        return f"{self.where} {self.unit} {number}"


class SplitTables(NamedTuple):
    """Where the queries and the judgements of one split are read from."""

    queries: Table[Query]
    judgements: Table[Qrel]


class Source(NamedTuple):
    """A data set as its format's reader found it; nothing has been read yet."""

    name: str
    documents: Table[Document]
    splits: dict[str, SplitTables]


def file_table(path: Path, read: Callable[[Path], Iterator[tuple[int, Record]]]) -> Table[Record]:
    """A table over one text file."""
    return Table(str(path), partial(read, path), files=(path,))


def held_table(where: str, records: Iterable[Record]) -> Table[Record]:
    """A table over records in memory."""
    held = tuple(records)
    return Table(where, partial(_numbered, held), "number", held=held)


def _numbered(records: Sequence[Record]) -> Iterator[tuple[int, Record]]:
    return enumerate(records, start=1)


def columns(path: Path, counts: tuple[int, ...], layout: str) -> Iterator[tuple[int, list[str]]]:
    """The tab-separated columns of each line, or DataError when a line has another number of them."""
    for number, line in streams.lines(path):
        fields = line.split("\t")
        if len(fields) not in counts:
            expected = " or ".join(map(str, counts))
            raise DataError(
                f"{path} line {number}: {len(fields)} columns between tabs, expected {expected} ({layout}); fix it"
            )
        yield number, fields


def objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The JSON object on each line."""
    for number, line in streams.lines(path):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path} line {number}: not valid JSON ({error}); expected one object per line") from error
        if not isinstance(value, dict):
            raise DataError(
                f'{path} line {number}: expected an object such as {{"_id": ..., "text": ...}}; fix the line'
            )
        yield number, value


def score(value: Any, place: str) -> int:
    """A relevance score, which must be an integer (a float without fraction counts as one)."""
    try:
        number = int(value)
        if isinstance(value, str) or number == value:
            return number
    except (TypeError, ValueError, OverflowError):
        pass
    raise DataError(f"{place}: score {value!r} is not an integer; expected 0 (not relevant), 1, 2, ...")
