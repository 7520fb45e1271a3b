"""Tables of any kind as documents: rows of named values, whose columns get roles."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from bidr.data.attribute_conversion import Unsupported, convert_attribute, is_attribute_name
from bidr.data.column_roles import ColumnOptions, ColumnRoles, make_no_content_error, resolve_columns
from bidr.data.record_sources import DroppedFieldCounter, Source, Table
from bidr.data.types import Document, Value
from bidr.data.validation import coerce_id, coerce_text, format_value, is_missing, is_unicode
from bidr.errors import DataError
from bidr.utils.array_types import Floats

BATCH_ROWS = 1_024
NESTED_ATTRIBUTES = "metadata"
"""A field of this name may hold an object of attributes, as in BEIR and LangChain."""
_ABSENT = object()
GetPlace = Callable[[], str]
"""Formats the place of a row; called for messages only."""


class InvalidUtf8(bytes):
    """A value of a string column that is not UTF-8."""


class RecordSource:
    """Rows of named values that can be read any number of times.

    name:    of the dataset.
    where:   the source in messages.
    unit:    what a row is called in messages.
    files:   files whose state tells whether the content has changed; none for objects in memory.
    count:   number of rows, if it is known without reading.
    varying: whether rows may have fields that `columns` does not list.
    """

    unit, varying = "row", False
    files: tuple[Path, ...] = ()
    count: int | None = None

    def __init__(self, name: str, where: str) -> None:
        self.name, self.where = name, where
        self.starts: dict[str, int] = {}
        """Number of rows before each file, as far as they have been read."""

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        raise NotImplementedError

    def read(self, columns: Sequence[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield number (from 1) and values of each row; a source with varying fields yields all of them."""
        raise NotImplementedError

    def format_place(self, number: int) -> str:
        """Format the place of a row for messages."""
        name, start = max(
            ((name, start) for name, start in self.starts.items() if start < number),
            key=lambda file: file[1],
            default=(self.where, 0),
        )
        return f"{name} {self.unit} {number - start}"

    def read_vectors(self, column: str) -> Iterator[Floats]:
        """Yield the vectors of a column in blocks of up to BATCH_ROWS rows."""
        vectors: list[npt.NDArray[Any]] = []
        dim = None
        for number, row in self.read([column]):
            vector = parse_vector(row.get(column), partial(self.format_place, number), column)
            dim = dim or len(vector)
            if len(vector) != dim:
                raise DataError(
                    f"{self.format_place(number)}: {column!r} has {len(vector)} dimensions, {dim} in the rows above: "
                    "expected as many; encode it again"
                )
            vectors.append(vector)
            if len(vectors) == BATCH_ROWS:
                yield np.array(vectors, dtype=np.float32)
                vectors = []
        if vectors:
            yield np.array(vectors, dtype=np.float32)

    def has_vectors(self, column: str) -> bool:
        """Return whether a column holds vectors, as far as the first value tells."""
        for _, row in islice(self.read([column]), BATCH_ROWS):
            if not is_missing(value := row.get(column)):
                try:
                    parse_vector(value, lambda: self.where, column)
                except DataError:
                    return False
                return True
        return False


def find_roles(source: RecordSource, options: ColumnOptions, *, needs_content: bool = True) -> ColumnRoles:
    """Find the roles of the columns of a source; a column that only looks like vectors by its name has none."""
    columns, where = source.columns, source.where
    roles = resolve_columns(columns, options, where, varying=source.varying)
    if roles.vector is not None and options.vector is None and not source.has_vectors(roles.vector):
        roles = resolve_columns(columns, options, where, varying=source.varying, has_vectors=False)
    if needs_content and roles.text is None and roles.vector is None:
        raise make_no_content_error(columns, where)
    return roles


def check_same_columns(path: Path, columns: Sequence[str], first: Path, expected: Sequence[str]) -> None:
    """Refuse a file of several whose columns are not those of the first."""
    missing = [name for name in expected if name not in columns]
    added = [name for name in columns if name not in expected]
    if missing or added:
        problem = (
            f"no column {missing[0]!r}, which {first} has"
            if missing
            else f"the column {added[0]!r}, which {first} lacks"
        )
        raise DataError(f"{path}: {problem}; give files of the same columns, each kind by a pattern of its own")


def parse_vector(value: Any, get_place: GetPlace, column: str = "value") -> npt.NDArray[Any]:
    """Convert a cell to a vector: an array, a list of numbers, or text such as "[0.1, 0.2]"."""
    try:
        if isinstance(value, str):
            value = [float(number) for number in value.strip().strip("[]()").replace(",", " ").split()]
        if not isinstance(value, list | tuple | np.ndarray):
            raise TypeError
        vector = np.asarray(value)
        if vector.ndim != 1 or not len(vector) or vector.dtype.kind not in "fiu":
            raise ValueError
    except (ValueError, TypeError):
        cell = "missing" if value is _ABSENT or is_missing(value) else format_value(value)
        raise DataError(
            f"{get_place()}: {column!r} is {cell}, expected a vector: a list of numbers; encode the row, or leave "
            "it out"
        ) from None
    with np.errstate(over="ignore"):
        return vector.astype(np.float32)


def make_document_source(source: RecordSource, roles: ColumnRoles) -> Source:
    """Make a dataset without queries of a table."""
    read = partial(read_documents, source, roles)
    stamp = None if source.files else partial(hash_documents, source, roles)
    table = Table(
        source.where,
        read,
        source.unit,
        source.files,
        read_counting=read,
        stamp=stamp,
        count=source.count,
        settings=repr(roles),
    )
    vectors = None if roles.vector is None else partial(source.read_vectors, roles.vector)
    return Source(source.name, table, {}, vectors, roles.id is None)


def hash_documents(source: RecordSource, roles: ColumnRoles) -> str:
    """Hash the content of all documents."""
    digest = xxhash.xxh3_128()
    for _, document in read_documents(source, roles):
        digest.update(repr(document).encode("utf-8", "backslashreplace"))
    return digest.hexdigest()


def read_documents(
    source: RecordSource, roles: ColumnRoles, dropped: DroppedFieldCounter | None = None
) -> Iterator[tuple[int, Document]]:
    """Yield the documents of a table. `dropped` counts cells that cannot become attributes, and repaired texts."""
    dropped = dropped or DroppedFieldCounter()
    role_columns, attributes = roles.role_columns, roles.attributes
    for number, row in source.read(roles.list_document_columns()):
        place = partial(source.format_place, number)
        identifier = str(number - 1) if roles.id is None else _get_id(row, roles.id, place)
        title = "" if roles.title is None else _get_text(row.get(roles.title), roles.title, place, dropped)
        text = "" if roles.text is None else _get_text(row.get(roles.text, _ABSENT), roles.text, place, dropped)
        if attributes is None:
            cells = {name: value for name, value in row.items() if name not in role_columns}
        else:
            cells = {name: row.get(name) for name in attributes}
        yield number, Document(identifier, title, text, make_attributes(cells, place, dropped) or None)


def make_attributes(cells: Mapping[str, Any], get_place: GetPlace, dropped: DroppedFieldCounter) -> dict[str, Value]:
    """Convert cells to attributes; missing ones are left out, and those that cannot be stored are counted."""
    attributes: dict[str, Value] = {}
    for name, cell in cells.items():
        value = convert_attribute(cell)
        if value is None:
            continue
        if name == NESTED_ATTRIBUTES and isinstance(cell, Mapping):
            attributes |= make_attributes({str(key): item for key, item in cell.items()}, get_place, dropped)
        elif isinstance(value, Unsupported) or not is_attribute_name(name):
            dropped.count_dropped(get_place(), name)
        else:
            attributes[name] = value
    return attributes


def _get_id(row: Mapping[str, Any], column: str, get_place: GetPlace) -> str:
    value = row.get(column, _ABSENT)
    if type(value) is str and value.isascii() and value:
        return value
    if value is _ABSENT:
        raise DataError(f"{get_place()}: field {column!r} is missing; give every record an id")
    return coerce_id(value, get_place())


def _get_text(value: Any, column: str, get_place: GetPlace, dropped: DroppedFieldCounter) -> str:
    if type(value) is str:
        return value if is_unicode(value) else dropped.repair(value, get_place(), column)
    if value is _ABSENT:
        raise DataError(f"{get_place()}: field {column!r} is missing, expected a string, which may be empty; fix it")
    if isinstance(value, InvalidUtf8):
        dropped.count_repaired(get_place(), column)
        return value.decode("utf-8", "replace")
    if isinstance(value, str):
        return dropped.repair(str(value), get_place(), column)
    return "" if is_missing(value) else coerce_text(value, get_place(), column)
