"""Parquet folders: corpus, queries and qrels, each one file or a folder of parts, as on the Hugging Face hub."""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from bidr.data.dropped_fields import LeftOut
from bidr.data.sources import Source, SplitTables, Table, score
from bidr.data.types import Document, Qrel, Query
from bidr.data.validation import coerce_id, coerce_text, is_missing
from bidr.errors import DataError, MissingExtraError

LOOKED_FOR = "corpus.parquet or corpus/*.parquet"

_IDS = ("_id", "id", "doc_id", "query_id", "query-id", "docid")
_TEXTS = ("text", "body", "contents")
_QUERY_IDS = ("query-id", "query_id")
_DOCUMENT_IDS = ("corpus-id", "doc_id", "corpus_id", "doc-id")
_SCORES = ("score", "relevance")
_BATCH = 2048

Record = TypeVar("Record", Document, Query, Qrel)


def detect(folder: Path) -> Source | None:
    """The data set in a folder of this layout, or None when there is no corpus."""
    corpus = _parts(folder, "corpus")
    if not corpus:
        return None
    queries = _parts(folder, "queries") or [folder / "queries.parquet"]
    query_table = Table(_where(queries), partial(read_queries, queries), "row", tuple(queries))
    splits = {
        name: SplitTables(query_table, Table(_where(paths), partial(read_judgements, paths), "row", tuple(paths)))
        for name, paths in sorted(_judgement_files(folder).items())
    }
    read = partial(read_documents, corpus)
    documents = Table(_where(corpus), read, "row", tuple(corpus), telling=read)
    return Source(folder.resolve().name, documents, splits)


def _parts(folder: Path, name: str) -> list[Path]:
    whole = folder / f"{name}.parquet"
    return [whole] if whole.is_file() else sorted((folder / name).glob("*.parquet"))


def _where(paths: list[Path]) -> str:
    return str(paths[0] if len(paths) == 1 else paths[0].parent)


def _judgement_files(folder: Path) -> dict[str, list[Path]]:
    """By split: qrels/{split}.parquet, qrels/{split}-00000-of-00002.parquet, qrels.{split}.parquet."""
    found: dict[str, list[Path]] = {}
    for path in [*sorted((folder / "qrels").glob("*.parquet")), *sorted(folder.glob("qrels.*.parquet"))]:
        name = path.name.removesuffix(".parquet").removeprefix("qrels.")
        found.setdefault(re.sub(r"-\d+-of-\d+$", "", name), []).append(path)
    return found


def read_documents(paths: list[Path], left_out: LeftOut | None = None) -> Iterator[tuple[int, Document]]:
    """The documents of these files in turn; a null title or text is an empty one.

    `left_out` counts titles and texts that are no UTF-8.
    """
    left_out = left_out or LeftOut()
    for place, number, (identifier, text, title) in _rows(paths, _IDS, _TEXTS, optional=("title",)):
        yield (
            number,
            Document(
                coerce_id(identifier, place),
                _text(title, "title", place, left_out),
                _text(text, "text", place, left_out),
            ),
        )


def read_queries(paths: list[Path]) -> Iterator[tuple[int, Query]]:
    """The queries of these files in turn."""
    for place, number, (identifier, text, _) in _rows(paths, _IDS, _TEXTS):
        yield number, Query(coerce_id(identifier, place), "" if is_missing(text) else coerce_text(text, place))


def read_judgements(paths: list[Path]) -> Iterator[tuple[int, Qrel]]:
    """The judgements of these files in turn."""
    for place, number, (query, document, given, _) in _rows(paths, _QUERY_IDS, _DOCUMENT_IDS, _SCORES):
        yield number, Qrel(coerce_id(query, place), coerce_id(document, place), score(given, place))


def _text(value: Any, field: str, place: str, left_out: LeftOut) -> str:
    if type(value) is str:
        return value
    if isinstance(value, InvalidUtf8):
        left_out.count_repaired(place, field)
        return value.decode("utf-8", "replace")
    return "" if is_missing(value) else coerce_text(value, place, field)


class InvalidUtf8(bytes):
    """What a column of strings holds that is none."""


def _values(column: Any) -> list[Any]:
    """The values of a column. Arrow does not check that strings are UTF-8 when it reads them."""
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        values = [_decode(value) for value in column.cast("large_binary").to_pylist()]
    return values


def _decode(value: bytes | None) -> str | InvalidUtf8 | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return InvalidUtf8(value or b"")


def _rows(
    paths: list[Path], *wanted: tuple[str, ...], optional: tuple[str, ...] = ()
) -> Iterator[tuple[str, int, tuple[Any, ...]]]:
    """Place, number over all files, and the wanted columns (the optional one last, None when absent) of each row."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError("reading parquet", "pyarrow", extra="data") from error
    number = 0
    for path in paths:
        try:
            with parquet.ParquetFile(path) as file:
                names = [_column(path, file.schema_arrow.names, choices) for choices in wanted]
                extra = next((name for name in optional if name in file.schema_arrow.names), None)
                chosen = [*names, *([extra] if extra else [])]
                row = 0
                for batch in file.iter_batches(_BATCH, columns=chosen):
                    values = [_values(batch.column(name)) for name in chosen]
                    for fields in zip(*values, *([] if extra else [[None] * len(values[0])]), strict=True):
                        row, number = row + 1, number + 1
                        yield f"{path} row {row}", number, fields
        except (pyarrow.ArrowInvalid, pyarrow.ArrowException) as error:
            raise DataError(f"{path} is not a readable parquet file ({_one_line(error)}); copy it again") from error
        except FileNotFoundError as error:
            raise DataError(f"{path} does not exist; check the path") from error
        except OSError as error:
            raise DataError(f"{path} is damaged or cannot be read ({_one_line(error)}); copy it again") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _column(path: Path, names: list[str], choices: tuple[str, ...]) -> str:
    for choice in choices:
        if choice in names:
            return choice
    raise DataError(f"{path}: none of the columns {', '.join(choices)} among {', '.join(names)}; rename one of them")
