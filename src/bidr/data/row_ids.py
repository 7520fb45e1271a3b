"""Names of rows, and judgements that refer to them: what goes with vectors that come without text."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from bidr.data import text_files as streams
from bidr.data.id_map import Ids, pass_by
from bidr.data.readers import beir, trec
from bidr.data.readers.trec import Qrels
from bidr.data.validation import coerce_ids, format_value
from bidr.errors import ConfigError, DataError

TREC_COLUMNS = 4


class RowNumbers(Sequence[str]):
    """The ids of rows that have no other: "0", "1", ..."""

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

    def row(self, identifier: str) -> int | None:
        number = int(identifier) if identifier.isascii() and identifier.isdigit() else -1
        return number if 0 <= number < self.rows and str(number) == identifier else None


Names = Ids | RowNumbers


def read_ids(source: Path | str | Iterable[str] | None, count: int, what: str) -> Names:
    """Ids of `count` rows: a text file with one a line, an .npy of strings or numbers, or any strings.

    None: row numbers. `what` is how errors call the rows.
    """
    if source is None:
        return RowNumbers(count)
    ids = Ids(_given(source))
    _check(source, len(ids), count, what)
    repeated = ids.repeated()
    if repeated:
        _refuse(source, ids[repeated[0]], *repeated)
    return ids


class ListedIds(Iterable[str]):
    """Ids of rows, read anew each time they are asked for."""

    def __init__(self, source: Path | str | Sequence[str], fingerprint: str) -> None:
        self.source, self.fingerprint = source, fingerprint

    def __iter__(self) -> Iterator[str]:
        return iter(_given(self.source))


def list_ids(source: Path | str | Sequence[str], count: int, what: str, near: Path) -> ListedIds:
    """The same as `read_ids` for whom never looks one up: not held in memory. `near`: see `pass_by`."""
    if isinstance(source, Iterator):
        raise ConfigError("ids: given an iterator, which can be read once; expected a list or a file: list(ids)")
    found = pass_by(lambda: _given(source), near)
    _check(source, found.rows, count, what)
    if found.repeated:
        _refuse(source, next(islice(_given(source), found.repeated[0], None)), *found.repeated)
    return ListedIds(source, found.fingerprint)


def read_judgements(path: Path | str) -> Qrels:
    """Judgements from a .tsv (query, document, score; with or without a header) or TREC's four columns."""
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path} does not exist; give a file of judgements: query id, document id, score")
    first = next((line for _, line in streams.lines(path)), "")
    read = trec.read_judgements if len(first.split()) == TREC_COLUMNS and "\t" not in first else beir.read_judgements
    qrels: Qrels = {}
    for _, judgement in read(path):
        qrels.setdefault(judgement.query_id, {})[judgement.doc_id] = judgement.score
    if not qrels:
        raise DataError(f"{path} has no judgements; expected at least one")
    return qrels


def label_rows(qrels: Qrels, queries: Names, documents: Names, where: str) -> dict[int, list[int]]:
    """Judgements above 0 by row; one of an unknown query or document is refused."""
    labels: dict[int, list[int]] = {}
    for query, judged in qrels.items():
        row = _known(queries, query, "query", where)
        found = [_known(documents, name, "document", where) for name, score in judged.items() if score > 0]
        if found:
            labels[row] = found
    return labels


def _known(names: Names, identifier: str, what: str, where: str) -> int:
    row = names.row(identifier)
    if row is None:
        kind = "row numbers" if isinstance(names, RowNumbers) else "ids given"
        raise DataError(
            f"{where}: {what} {identifier!r} is not among the {len(names):,} {kind}; complete the ids or the judgements"
        )
    return row


def _given(source: Path | str | Iterable[str]) -> Iterable[str]:
    if isinstance(source, Path | str):
        return coerce_ids(_read(Path(source)), str(source))
    if isinstance(source, bytes | bytearray) or not isinstance(source, Iterable):
        raise DataError(f"ids: given {format_value(source)}, expected a file of ids, or a list of strings")
    return coerce_ids(source, "ids")


def _check(source: object, given: int, count: int, what: str) -> None:
    if given != count:
        raise DataError(f"{_where(source)} has {given:,} ids for {count:,} {what}: expected one for every row")


def _refuse(source: object, name: str, first: int, second: int) -> None:
    raise DataError(f"{_where(source)}: id {name!r} is that of rows {first:,} and {second:,}; make the ids unique")


def _where(source: object) -> str:
    return str(source) if isinstance(source, Path | str) else "ids"


def _read(path: Path) -> Iterable[str]:
    if not path.is_file():
        raise DataError(f"{path} does not exist; give a text file with one id a line, or an .npy of ids")
    if path.suffix == ".npy":
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{path} cannot be read as .npy ({error}); save strings or numbers") from error
        if array.ndim != 1 or array.dtype.kind not in "iuU":
            raise DataError(f"{path}: {array.dtype} of shape {array.shape}, expected one string or number a row")
        return (str(one) for one in array)
    return (line for _, line in streams.lines(path))
