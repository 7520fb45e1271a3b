"""MS MARCO as distributed: passages (collection.tsv) and documents (msmarco-docs.tsv), plain or compressed."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from bidr.data import text_files as streams
from bidr.data.readers import trec
from bidr.data.sources import Source, SplitTables, columns, file_table
from bidr.data.types import Document, Query
from bidr.errors import DataError

_COLLECTIONS = ("collection.tsv", "msmarco-docs.tsv")
LOOKED_FOR = " or ".join(map(streams.variants, _COLLECTIONS)) + " (MS MARCO)"

_QUERY_NAMES = (r"queries\.(.+)\.tsv", r"msmarco-(.+)-queries\.tsv")
_QREL_NAMES = (r"qrels\.(.+)\.tsv", r"msmarco-(.+)-qrels\.tsv")
_TRACK_QRELS = r"(\d{4})qrels-(?:pass|docs)\.txt"


def detect(folder: Path) -> Source | None:
    """The data set in a folder with a collection, or None when there is none.

    A split is named as in its files ("train", "dev", "dev.small", "test2019"; "doctrain" and "docdev" are "train" and
    "dev"). When a split has judgements but no queries of its own, those of the larger split are taken ("dev" for
    "dev.small").
    """
    found = (streams.find(folder, name) for name in _COLLECTIONS)
    collection = next((path for path in found if path is not None), None)
    if collection is None:
        return None
    queries = _by_split(folder, _QUERY_NAMES, str)
    judgements = _by_split(folder, _QREL_NAMES, str) | _by_split(folder, (_TRACK_QRELS,), "test{}".format)
    splits = {
        name: SplitTables(
            file_table(_queries_of(name, queries, folder), read_queries), file_table(path, trec.read_judgements)
        )
        for name, path in sorted(judgements.items())
    }
    return Source(folder.resolve().name, file_table(collection, read_documents), splits)


def _by_split(folder: Path, patterns: tuple[str, ...], rename: Callable[[str], str]) -> dict[str, Path]:
    found = {}
    for path in sorted(folder.iterdir()):
        for pattern in patterns:
            match = re.fullmatch(pattern, streams.plain_name(path))
            if match:
                found[re.sub(r"^doc(?=train|dev|eval)", "", rename(match[1]))] = path
    return found


def _queries_of(split: str, queries: dict[str, Path], folder: Path) -> Path:
    larger = split
    while larger not in queries and "." in larger:
        larger = larger.rpartition(".")[0]
    return queries.get(larger, folder / f"queries.{split}.tsv")


def read_documents(path: Path) -> Iterator[tuple[int, Document]]:
    """Passages (id, text) or documents (id, url, title, body); the first line decides which the file holds."""
    count = 0
    for number, fields in columns(path, (2, 4), "id, text or id, url, title, body"):
        count = count or len(fields)
        if len(fields) != count:
            raise DataError(f"{path} line {number}: {len(fields)} columns but {count} above; fix the line")
        title = fields[2] if count == 4 else ""
        yield number, Document(_identifier(fields[0], path, number), title, fields[-1])


def read_queries(path: Path) -> Iterator[tuple[int, Query]]:
    """The queries of a file with the columns id and text."""
    for number, (identifier, text) in columns(path, (2,), "id, text"):
        yield number, Query(_identifier(identifier, path, number), text)


def _identifier(given: str, path: Path, number: int) -> str:
    if not given:
        raise DataError(f"{path} line {number}: the id in the first column is empty; give every line an id")
    return given
