"""Record sources: re-readable tables of documents, queries and judgments, which every dataset format provides."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from bidr.data.line_reader import read_lines
from bidr.data.types import Document, Qrel, Query
from bidr.data.validation import is_unicode, replace_surrogates
from bidr.errors import DataError
from bidr.utils.array_types import Floats
from bidr.utils.progress import say

Record = TypeVar("Record")
MAX_COUNTED_FIELDS, MAX_REPORTED_FIELDS = 1_000, 5


class DroppedFieldCounter:
    """Counts metadata values that cannot become attributes, by field, and texts whose invalid Unicode was repaired."""

    def __init__(self) -> None:
        self.count, self.first = 0, ""
        self.fields = Counter[str]()
        self.repaired, self.first_repaired = 0, ""

    def repair(self, text: str, place: str, field: str) -> str:
        """Replace each half of a surrogate pair with U+FFFD."""
        if is_unicode(text):
            return text
        self.count_repaired(place, field)
        return replace_surrogates(text)

    def count_repaired(self, place: str, field: str) -> None:
        """Count one repaired text."""
        self.first_repaired = self.first_repaired or f"{field!r} of {place}"
        self.repaired += 1

    def count_dropped(self, place: str, name: str) -> None:
        """Count one dropped value of the metadata field `name`."""
        name = replace_surrogates(name)
        self.first = self.first or f"{name!r} of {place}"
        self.count += 1
        if name in self.fields or len(self.fields) < MAX_COUNTED_FIELDS:
            self.fields[name] += 1

    def to_json(self) -> dict[str, Any]:
        """Return the counts for `--json` output."""
        return {"left_out": self.count, "left_out_fields": dict(self.fields), "repaired_texts": self.repaired}

    def report(self, where: str) -> None:
        """Print the counts unless all are zero."""
        if self.repaired:
            say(
                f"{where}: {self.repaired:,} titles and texts are not valid Unicode (half of a surrogate pair), the "
                f"first {self.first_repaired}; the invalid characters were replaced with U+FFFD"
            )
        if not self.count:
            return
        frequent = self.fields.most_common(MAX_REPORTED_FIELDS)
        description = ", ".join(f"{name!r} ({count:,})" for name, count in frequent)
        more = f" and {len(self.fields) - len(frequent):,} more fields" if len(self.fields) > len(frequent) else ""
        say(
            f"{where}: {self.count:,} values of metadata were left out, of {description}{more}, the first "
            f"{self.first}; attributes are strings (valid Unicode), finite numbers, truth values "
            "and lists of strings"
        )


@dataclass(frozen=True)
class Table(Generic[Record]):
    """Records that stream from a file on each iteration, as pairs of line or row number (from 1) and record."""

    where: str
    """The file or folder, for error messages."""
    read: Callable[[], Iterator[tuple[int, Record]]]
    """Reopens the file. A partial of a module-level function, so that a table can be pickled."""
    unit: str = "line"
    files: tuple[Path, ...] = ()
    """Files whose state tells whether the content has changed."""
    records: Sequence[Record] = ()
    """The content of an in-memory table, which has no files."""
    read_counting: Callable[[DroppedFieldCounter], Iterator[tuple[int, Record]]] | None = None
    """Like `read`, counting dropped fields; None for formats that never drop any."""
    stamp: Callable[[], str] | None = None
    """Returns a hash of the content of a table without files."""
    count: int | None = None
    """Number of records, if it is known without reading."""
    settings: str = ""
    """How the files are read: part of the fingerprint."""

    def __iter__(self) -> Iterator[tuple[int, Record]]:
        return self.read()

    def format_place(self, number: int) -> str:
        """Format the place of a record for error messages."""
        return f"{self.where} {self.unit} {number}"


class SplitTables(NamedTuple):
    """Tables of one split."""

    queries: Table[Query]
    judgments: Table[Qrel]


class Source(NamedTuple):
    """An opened but unread dataset."""

    name: str
    documents: Table[Document]
    splits: dict[str, SplitTables]
    vectors: Callable[[], Iterator[Floats]] | None = None
    """Reads the vectors of the documents in blocks, if the source has some."""
    has_row_numbers: bool = False
    """Whether ids are row numbers, as the source has none."""


def make_file_table(path: Path, read: Callable[[Path], Iterator[tuple[int, Record]]]) -> Table[Record]:
    """Create a table over one text file."""
    return Table(str(path), partial(read, path), files=(path,))


def make_memory_table(where: str, records: Iterable[Record]) -> Table[Record]:
    """Create a table over records in memory."""
    records = tuple(records)
    return Table(where, partial(_enumerate_records, records), "number", records=records)


def _enumerate_records(records: Sequence[Record]) -> Iterator[tuple[int, Record]]:
    return enumerate(records, start=1)


def read_columns(path: Path, counts: tuple[int, ...], layout: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the tab-separated columns of each line; DataError unless their number is one of `counts`."""
    for number, line in read_lines(path):
        fields = line.split("\t")
        if len(fields) not in counts:
            expected = " or ".join(map(str, counts))
            raise DataError(
                f"{path} line {number}: {len(fields)} columns between tabs, expected {expected} ({layout}); fix it"
            )
        yield number, fields


def read_json_objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the JSON object of each line."""
    for number, line in read_lines(path):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path} line {number}: not valid JSON ({error}); expected one object per line") from error
        if not isinstance(value, dict):
            raise DataError(
                f'{path} line {number}: expected an object such as {{"_id": ..., "text": ...}}; fix the line'
            )
        yield number, value


def parse_score(value: Any, place: str) -> int:
    """Parse a relevance score: an integer, or a float without fraction."""
    try:
        number = int(value)
        if isinstance(value, str) or number == value:
            return number
    except (TypeError, ValueError, OverflowError):
        pass
    raise DataError(f"{place}: score {value!r} is not an integer; expected 0 (not relevant), 1, 2, ...")
