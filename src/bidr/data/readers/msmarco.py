"""MS MARCO as distributed: passages (collection.tsv) and documents (msmarco-docs.tsv), plain or compressed."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from bidr.data.line_reader import find_file, format_file_variants, strip_compression_suffix
from bidr.data.readers import trec
from bidr.data.record_sources import Source, SplitTables, make_file_table, read_columns
from bidr.data.types import Document, Query
from bidr.errors import DataError

_COLLECTIONS = ("collection.tsv", "msmarco-docs.tsv")
EXPECTED_FILES = " or ".join(map(format_file_variants, _COLLECTIONS)) + " (MS MARCO)"

_QUERY_NAMES = (r"queries\.(.+)\.tsv", r"msmarco-(.+)-queries\.tsv")
_QREL_NAMES = (r"qrels\.(.+)\.tsv", r"msmarco-(.+)-qrels\.tsv")
_TRACK_QRELS = r"(\d{4})qrels-(?:pass|docs)\.txt"


def detect(folder: Path) -> Source | None:
    """Open a folder with a collection file; None when there is none.

    Splits are named as in the files ("train", "dev", "dev.small", "test2019"; "doctrain" and "docdev" are "train" and
    "dev"). A split without a query file takes the queries of the larger split ("dev" for "dev.small").
    """
    paths = (find_file(folder, name) for name in _COLLECTIONS)
    collection = next((path for path in paths if path is not None), None)
    if collection is None:
        return None
    queries = _find_splits(folder, _QUERY_NAMES, str)
    judgments = _find_splits(folder, _QREL_NAMES, str) | _find_splits(folder, (_TRACK_QRELS,), "test{}".format)
    splits = {
        name: SplitTables(
            make_file_table(_find_queries(name, queries, folder), read_queries),
            make_file_table(path, trec.read_judgments),
        )
        for name, path in sorted(judgments.items())
    }
    return Source(folder.resolve().name, make_file_table(collection, read_documents), splits)


def _find_splits(folder: Path, patterns: tuple[str, ...], rename: Callable[[str], str]) -> dict[str, Path]:
    splits = {}
    for path in sorted(folder.iterdir()):
        for pattern in patterns:
            match = re.fullmatch(pattern, strip_compression_suffix(path))
            if match:
                splits[re.sub(r"^doc(?=train|dev|eval)", "", rename(match[1]))] = path
    return splits


def _find_queries(split: str, queries: dict[str, Path], folder: Path) -> Path:
    larger = split
    while larger not in queries and "." in larger:
        larger = larger.rpartition(".")[0]
    return queries.get(larger, folder / f"queries.{split}.tsv")


def read_documents(path: Path) -> Iterator[tuple[int, Document]]:
    """Yield passages (id, text) or documents (id, url, title, body); the first line decides which."""
    count = 0
    for number, fields in read_columns(path, (2, 4), "id, text or id, url, title, body"):
        count = count or len(fields)
        if len(fields) != count:
            raise DataError(f"{path} line {number}: {len(fields)} columns but {count} above; fix the line")
        title = fields[2] if count == 4 else ""
        yield number, Document(_check_id(fields[0], path, number), title, fields[-1])


def read_queries(path: Path) -> Iterator[tuple[int, Query]]:
    """Yield the queries of a file with the columns id and text."""
    for number, (identifier, text) in read_columns(path, (2,), "id, text"):
        yield number, Query(_check_id(identifier, path, number), text)


def _check_id(identifier: str, path: Path, number: int) -> str:
    if not identifier:
        raise DataError(f"{path} line {number}: the id in the first column is empty; give every line an id")
    return identifier
