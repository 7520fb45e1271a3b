"""Parquet folders: corpus, queries and qrels, each a file or a folder of shards, as on the Hugging Face hub."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from bidr.data import tabular_source
from bidr.data.column_roles import ColumnOptions, resolve_columns
from bidr.data.parquet_pages import find_largest_page
from bidr.data.readers.arrow import ArrowSource, check_unique_columns, import_pyarrow, iter_dataset_batches
from bidr.data.record_sources import DroppedFieldCounter, Source, SplitTables, Table, parse_score
from bidr.data.remote_path import remote_errors
from bidr.data.tabular_source import BATCH_ROWS, check_same_columns
from bidr.data.types import Document, Qrel, Query
from bidr.data.validation import coerce_id, coerce_text, is_missing
from bidr.errors import DataError

EXPECTED_FILES = "corpus.parquet or corpus/*.parquet"

_IDS = ("_id", "id", "doc_id", "query_id", "query-id", "docid", "qid")
_TEXTS = ("text", "query", "body", "contents")
_QUERY_IDS = ("query-id", "query_id")
_DOCUMENT_IDS = ("corpus-id", "doc_id", "corpus_id", "doc-id")
_SCORES = ("score", "relevance")
_BATCH_BYTES = _MAX_PAGE_BYTES = 256 << 20
"""Maximum bytes of a batch's column, and of a page, in which a single value can fill all."""
_READ_BYTES = 1 << 20

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
    """Yield the documents of the shards; null titles and texts become empty, other columns attributes.

    `dropped` counts cells that cannot become attributes, and titles and texts that are not UTF-8.
    """
    source = ParquetSource("corpus", str(paths[0]), paths)
    roles = resolve_columns(source.columns, ColumnOptions(), str(paths[0]))
    if roles.id is None:
        _find_column(paths[0], source.columns, _IDS)
    return tabular_source.read_documents(source, roles, dropped)


def read_queries(paths: list[Path]) -> Iterator[tuple[int, Query]]:
    """Yield the queries of the shards."""
    for place, number, (identifier, text) in _read_rows(paths, _IDS, _TEXTS):
        yield number, Query(coerce_id(identifier, place), "" if is_missing(text) else coerce_text(text, place))


def read_judgments(paths: list[Path]) -> Iterator[tuple[int, Qrel]]:
    """Yield the judgments of the shards."""
    for place, number, (query, document, score) in _read_rows(paths, _QUERY_IDS, _DOCUMENT_IDS, _SCORES):
        yield number, Qrel(coerce_id(query, place), coerce_id(document, place), parse_score(score, place))


def _read_rows(paths: list[Path], *choices: tuple[str, ...]) -> Iterator[tuple[str, int, tuple[Any, ...]]]:
    """Yield place, number over all shards, and the chosen columns of each row."""
    source = ParquetSource("", str(paths[0]), paths)
    names = [_find_column(paths[0], source.columns, names) for names in choices]
    for number, row in source.read(names):
        yield source.format_place(number), number, tuple(row[name] for name in names)


class ParquetSource(ArrowSource):
    """Parquet files with the same columns, read batch by batch."""

    def __init__(self, name: str, where: str, files: Sequence[Path]) -> None:
        super().__init__(name, where, [], self._iter_batches)
        self.files = tuple(files)

    @cached_property
    def columns(self) -> list[str]:
        with _open_file(self.files[0]) as file:
            columns = list(file.schema_arrow.names)
        check_unique_columns(columns, str(self.files[0]))
        return columns

    def _iter_batches(self, columns: list[str]) -> Iterator[Any]:
        number = 0
        for path in self.files:
            self.starts[str(path)] = number
            with _open_file(path) as file:
                check_same_columns(path, file.schema_arrow.names, self.files[0], self.columns)
                rows = _choose_batch_rows(path, file, columns)
                for batch in file.iter_batches(rows, columns=columns, use_threads=False):
                    number += len(batch)
                    yield batch


class PartitionedSource(ArrowSource):
    """Parquet files in folders named "column=value" (Hive), whose columns are read too."""

    def __init__(self, name: str, where: str, files: Sequence[Path], root: Path) -> None:
        super().__init__(name, where, [], self._iter_batches)
        self.files, self.root = tuple(files), root

    @cached_property
    def columns(self) -> list[str]:
        with _file_errors(self.root):
            return list(self._open_dataset().schema.names)

    def _iter_batches(self, columns: list[str]) -> Iterator[Any]:
        with _file_errors(self.root):
            yield from iter_dataset_batches(self._open_dataset(), columns)

    def _open_dataset(self) -> Any:
        from pyarrow import dataset

        return dataset.dataset(
            [str(file) for file in self.files], partitioning="hive", partition_base_dir=str(self.root)
        )


@contextmanager
def _open_file(path: Path) -> Iterator[Any]:
    """Open a parquet file; errors of opening and of reading it become DataError."""
    with _file_errors(path):
        from pyarrow import parquet

        # By default the columns of a whole row group are in memory: 115 MB of 100,000 rows instead of 50.
        options = {"pre_buffer": False, "buffer_size": _READ_BYTES}
        with path.open("rb") as content, parquet.ParquetFile(content, **options) as file:
            yield file


@contextmanager
def _file_errors(path: Path) -> Iterator[None]:
    pyarrow = import_pyarrow("reading parquet")
    try:
        with remote_errors(path):
            yield
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
    return max(1, min(BATCH_ROWS, _BATCH_BYTES // max(largest, 1)))


def _format_error(error: Exception) -> str:
    return " ".join(str(error).split())


def _find_column(path: Path, names: list[str], choices: tuple[str, ...]) -> str:
    for choice in choices:
        if choice in names:
            return choice
    raise DataError(f"{path}: none of the columns {', '.join(choices)} among {', '.join(names)}; rename one of them")
