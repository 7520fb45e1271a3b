"""Parquet folders: corpus, queries and qrels, each a file or a folder of shards, as on the Hugging Face hub."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from bidr.data.parquet_pages import find_largest_page
from bidr.data.record_sources import DroppedFieldCounter, Source, SplitTables, Table, parse_score
from bidr.data.types import Document, Qrel, Query
from bidr.data.validation import coerce_id, coerce_text, is_missing
from bidr.errors import DataError, MissingExtraError

EXPECTED_FILES = "corpus.parquet or corpus/*.parquet"

_IDS = ("_id", "id", "doc_id", "query_id", "query-id", "docid")
_TEXTS = ("text", "body", "contents")
_QUERY_IDS = ("query-id", "query_id")
_DOCUMENT_IDS = ("corpus-id", "doc_id", "corpus_id", "doc-id")
_SCORES = ("score", "relevance")
_BATCH_ROWS = 2_048
_BATCH_BYTES = _MAX_PAGE_BYTES = 256 << 20
"""Maximum bytes of a batch's column, and of a page, in which a single value can fill all."""

Record = TypeVar("Record", Document, Query, Qrel)


def detect(folder: Path) -> Source | None:
    """Open a folder of this layout; None when it has no corpus."""
    corpus = _find_shards(folder, "corpus")
    if not corpus:
        return None
    queries = _find_shards(folder, "queries") or [folder / "queries.parquet"]
    query_table = _make_table(queries, partial(read_queries, queries))
    splits = {
        name: SplitTables(query_table, _make_table(paths, partial(read_judgments, paths)))
        for name, paths in sorted(_find_qrels(folder).items())
    }
    read = partial(read_documents, corpus)
    return Source(folder.resolve().name, replace(_make_table(corpus, read), read_counting=read), splits)


def _find_shards(folder: Path, name: str) -> list[Path]:
    single = folder / f"{name}.parquet"
    return [single] if single.is_file() else sorted((folder / name).glob("*.parquet"))


def _make_table(paths: list[Path], read: Callable[[], Iterator[tuple[int, Record]]]) -> Table[Record]:
    return Table(str(paths[0] if len(paths) == 1 else paths[0].parent), read, "row", tuple(paths))


def _find_qrels(folder: Path) -> dict[str, list[Path]]:
    """Find the files by split: qrels/{split}.parquet, qrels/{split}-00000-of-00002.parquet or qrels.{split}.parquet."""
    files: dict[str, list[Path]] = {}
    for path in [*sorted((folder / "qrels").glob("*.parquet")), *sorted(folder.glob("qrels.*.parquet"))]:
        name = path.name.removesuffix(".parquet").removeprefix("qrels.")
        files.setdefault(re.sub(r"-\d+-of-\d+$", "", name), []).append(path)
    return files


def read_documents(paths: list[Path], dropped: DroppedFieldCounter | None = None) -> Iterator[tuple[int, Document]]:
    """Yield the documents of the shards; null titles and texts become empty.

    `dropped` counts titles and texts that are not UTF-8.
    """
    dropped = dropped or DroppedFieldCounter()
    for place, number, (identifier, text, title) in _read_rows(paths, _IDS, _TEXTS, optional=("title",)):
        yield (
            number,
            Document(
                coerce_id(identifier, place),
                _convert_text(title, "title", place, dropped),
                _convert_text(text, "text", place, dropped),
            ),
        )


def read_queries(paths: list[Path]) -> Iterator[tuple[int, Query]]:
    """Yield the queries of the shards."""
    for place, number, (identifier, text, _) in _read_rows(paths, _IDS, _TEXTS):
        yield number, Query(coerce_id(identifier, place), "" if is_missing(text) else coerce_text(text, place))


def read_judgments(paths: list[Path]) -> Iterator[tuple[int, Qrel]]:
    """Yield the judgments of the shards."""
    for place, number, (query, document, score, _) in _read_rows(paths, _QUERY_IDS, _DOCUMENT_IDS, _SCORES):
        yield number, Qrel(coerce_id(query, place), coerce_id(document, place), parse_score(score, place))


def _convert_text(value: Any, field: str, place: str, dropped: DroppedFieldCounter) -> str:
    if type(value) is str:
        return value
    if isinstance(value, InvalidUtf8):
        dropped.count_repaired(place, field)
        return value.decode("utf-8", "replace")
    return "" if is_missing(value) else coerce_text(value, place, field)


class InvalidUtf8(bytes):
    """A value of a string column that is not UTF-8."""


def _read_values(column: Any) -> list[Any]:
    """Read a column. Arrow does not check on reading that strings are UTF-8."""
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


def _read_rows(
    paths: list[Path], *required: tuple[str, ...], optional: tuple[str, ...] = ()
) -> Iterator[tuple[str, int, tuple[Any, ...]]]:
    """Yield place, number over all shards, and columns of each row (the optional one last, None if absent)."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError("reading parquet", "pyarrow", extra="data") from error
    number = 0
    for path in paths:
        try:
            with parquet.ParquetFile(path) as file:
                names = [_find_column(path, file.schema_arrow.names, choices) for choices in required]
                extra = next((name for name in optional if name in file.schema_arrow.names), None)
                chosen = [*names, *([extra] if extra else [])]
                row = 0
                for batch in file.iter_batches(_choose_batch_rows(path, file, chosen), columns=chosen):
                    values = [_read_values(batch.column(name)) for name in chosen]
                    for fields in zip(*values, *([] if extra else [[None] * len(values[0])]), strict=True):
                        row, number = row + 1, number + 1
                        yield f"{path} row {row}", number, fields
        except (pyarrow.ArrowInvalid, pyarrow.ArrowException) as error:
            raise DataError(f"{path} is not a readable parquet file ({_format_error(error)}); copy it again") from error
        except FileNotFoundError as error:
            raise DataError(f"{path} does not exist; check the path") from error
        except OSError as error:
            raise DataError(f"{path} is damaged or cannot be read ({_format_error(error)}); copy it again") from error


def _choose_batch_rows(path: Path, file: Any, columns: list[str]) -> int:
    """Return how many rows fit the memory of a batch, if each value is as large as the largest page."""
    try:
        largest = find_largest_page(path, file.metadata, columns)
    except ValueError as error:
        raise DataError(f"{path} is not a readable parquet file ({error}); copy it again") from error
    if largest > _MAX_PAGE_BYTES:
        raise DataError(
            f"{path}: a page of {largest:,} bytes, expected {_MAX_PAGE_BYTES:,} at most; write the file with smaller "
            "pages, such as pyarrow's default of 1 MiB"
        )
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(largest, 1)))


def _format_error(error: Exception) -> str:
    return " ".join(str(error).split())


def _find_column(path: Path, names: list[str], choices: tuple[str, ...]) -> str:
    for choice in choices:
        if choice in names:
            return choice
    raise DataError(f"{path}: none of the columns {', '.join(choices)} among {', '.join(names)}; rename one of them")
