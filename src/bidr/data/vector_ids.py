"""Row ids and judgments of bare vectors."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from bidr.data.id_map import IdMap, scan_ids
from bidr.data.line_reader import read_lines
from bidr.data.readers import beir, trec
from bidr.data.readers.trec import Qrels
from bidr.data.validation import coerce_ids, format_value
from bidr.errors import ConfigError, DataError

TREC_COLUMNS = 4


class RowNumbers(Sequence[str]):
    """Default ids of rows: "0", "1", ..."""

    def __init__(self, count: int) -> None:
        self.rows = count

    def __len__(self) -> int:
        return self.rows

    def fingerprint(self) -> str:
        return f"rows {self.rows}"

    def __getitem__(self, row: int) -> str:  # type: ignore[override]
        if not 0 <= row < self.rows:
            raise IndexError(row)
        return str(row)

    def find_row(self, identifier: str) -> int | None:
        """Return the row with this id, or None."""
        number = int(identifier) if identifier.isascii() and identifier.isdigit() else -1
        return number if 0 <= number < self.rows and str(number) == identifier else None


RowIds = IdMap | RowNumbers


def read_ids(source: Path | str | Iterable[str] | None, count: int, what: str) -> RowIds:
    """Read the ids of `count` rows into memory; DataError for another number of ids or a duplicate.

    Args:
        source: A text file with one id a line, an .npy of strings or numbers, or strings. None: row numbers.
        count: Number of rows.
        what: Name of the rows in error messages.
    """
    if source is None:
        return RowNumbers(count)
    ids = IdMap(_iter_ids(source))
    _check_count(source, len(ids), count, what)
    duplicate = ids.find_duplicate()
    if duplicate:
        _refuse_duplicate(source, ids[duplicate[0]], *duplicate)
    return ids


class IdSource(Iterable[str]):
    """Row ids that every iteration reads from their source."""

    def __init__(self, source: Path | str | Sequence[str], fingerprint: str) -> None:
        self.source, self.fingerprint = source, fingerprint

    def __iter__(self) -> Iterator[str]:
        return iter(_iter_ids(self.source))


def open_id_source(source: Path | str | Sequence[str], count: int, what: str, scratch_parent: Path) -> IdSource:
    """Like `read_ids`, without holding the ids in memory. `near`: see `scan_ids`."""
    if isinstance(source, Iterator):
        raise ConfigError("ids: given an iterator, which can be read once; expected a list or a file: list(ids)")
    scan = scan_ids(lambda: _iter_ids(source), scratch_parent)
    _check_count(source, scan.rows, count, what)
    if scan.duplicate_rows:
        name = next(islice(_iter_ids(source), scan.duplicate_rows[0], None))
        _refuse_duplicate(source, name, *scan.duplicate_rows)
    return IdSource(source, scan.fingerprint)


def read_judgments(path: Path | str) -> Qrels:
    """Read judgments from a .tsv (query, document, score; with or without a header) or a TREC qrels file."""
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path} does not exist; give a file of judgments: query id, document id, score")
    first = next((line for _, line in read_lines(path)), "")
    read = trec.read_judgments if len(first.split()) == TREC_COLUMNS and "\t" not in first else beir.read_judgments
    qrels: Qrels = {}
    for _, judgment in read(path):
        qrels.setdefault(judgment.query_id, {})[judgment.doc_id] = judgment.score
    if not qrels:
        raise DataError(f"{path} has no judgments; expected at least one")
    return qrels


def label_rows(qrels: Qrels, queries: RowIds, documents: RowIds, where: str) -> dict[int, list[int]]:
    """Map each query row to its relevant document rows; DataError for an unknown query or document."""
    labels: dict[int, list[int]] = {}
    for query, scores in qrels.items():
        row = _find_row(queries, query, "query", where)
        relevant = [_find_row(documents, name, "document", where) for name, score in scores.items() if score > 0]
        if relevant:
            labels[row] = relevant
    return labels


def _find_row(ids: RowIds, identifier: str, what: str, where: str) -> int:
    row = ids.find_row(identifier)
    if row is None:
        kind = "row numbers" if isinstance(ids, RowNumbers) else "ids given"
        raise DataError(
            f"{where}: {what} {identifier!r} is not among the {len(ids):,} {kind}; complete the ids or the judgments"
        )
    return row


def _iter_ids(source: Path | str | Iterable[str]) -> Iterable[str]:
    if isinstance(source, Path | str):
        return coerce_ids(_read_file(Path(source)), str(source))
    if isinstance(source, bytes | bytearray) or not isinstance(source, Iterable):
        raise DataError(f"ids: given {format_value(source)}, expected a file of ids, or a list of strings")
    return coerce_ids(source, "ids")


def _check_count(source: object, ids: int, count: int, what: str) -> None:
    if ids != count:
        raise DataError(f"{_format_source(source)} has {ids:,} ids for {count:,} {what}: expected one for every row")


def _refuse_duplicate(source: object, name: str, first: int, second: int) -> None:
    raise DataError(
        f"{_format_source(source)}: id {name!r} is that of rows {first:,} and {second:,}; make the ids unique"
    )


def _format_source(source: object) -> str:
    return str(source) if isinstance(source, Path | str) else "ids"


def _read_file(path: Path) -> Iterable[str]:
    if not path.is_file():
        raise DataError(f"{path} does not exist; give a text file with one id a line, or an .npy of ids")
    if path.suffix == ".npy":
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{path} cannot be read as .npy ({error}); save strings or numbers") from error
        if array.ndim != 1 or array.dtype.kind not in "iuU":
            raise DataError(f"{path}: {array.dtype} of shape {array.shape}, expected one string or number a row")
        return (str(value) for value in array)
    return (line for _, line in read_lines(path))
