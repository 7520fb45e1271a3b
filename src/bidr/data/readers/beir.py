"""The BEIR layout: corpus.jsonl, queries.jsonl and qrels/{split}.tsv, each plain or compressed."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bidr.data import text_files as streams
from bidr.data.dropped_fields import LeftOut
from bidr.data.sources import Source, SplitTables, Table, columns, file_table, objects, score
from bidr.data.types import Attributes, Document, Qrel, Query
from bidr.data.validation import check_unicode, format_value, is_unicode
from bidr.errors import DataError
from bidr.utils.files import storage_errors

LOOKED_FOR = f"{streams.variants('corpus.jsonl')} (BEIR)"
_HEADER = ["query-id", "corpus-id", "score"]
_HEADER_SCORES = ("score", "relevance", "label", "rel")


def detect(folder: Path) -> Source | None:
    """The data set in a folder of this layout, or None when there is no corpus.jsonl."""
    corpus = streams.find(folder, "corpus.jsonl")
    if corpus is None:
        return None
    queries = file_table(streams.find(folder, "queries.jsonl") or folder / "queries.jsonl", read_queries)
    splits = {name: SplitTables(queries, table) for name, table in _judgement_files(folder / "qrels")}
    documents = replace(file_table(corpus, read_documents), telling=partial(read_documents, corpus))
    return Source(folder.resolve().name, documents, splits)


def _judgement_files(folder: Path) -> Iterator[tuple[str, Table[Qrel]]]:
    for path in sorted(folder.glob("*.tsv*")):
        name = streams.plain_name(path)
        if name.endswith(".tsv"):
            yield name.removesuffix(".tsv"), file_table(path, read_judgements)


def read_documents(path: Path, left_out: LeftOut | None = None) -> Iterator[tuple[int, Document]]:
    """The documents of a corpus.jsonl; `title` may be absent or null, `_id` and `text` may not.

    What of `metadata` is flat (strings, numbers, truth values, lists of strings) becomes the document's attributes;
    `left_out` counts what else has a value, and titles and texts that JSON spelled with half of a surrogate pair.
    """
    left_out = left_out or LeftOut()
    for number, value in objects(path):
        place = f"{path} line {number}"
        title = "" if value.get("title") is None else left_out.repair(_string(value, "title", place), place, "title")
        text = left_out.repair(_string(value, "text", place), place, "text")
        metadata = value.get("metadata")
        attributes = attributes_of(metadata, place)
        if metadata and len(attributes or {}) < len(metadata):
            for name, each in metadata.items():
                if not (_flat(each) and is_unicode(name)) and each not in (None, [], {}):
                    left_out(place, name)
        yield number, Document(_identifier(value, place), title, text, attributes)


def read_queries(path: Path) -> Iterator[tuple[int, Query]]:
    """The queries of a queries.jsonl."""
    for number, value in objects(path):
        place = f"{path} line {number}"
        yield number, Query(_identifier(value, place), check_unicode(_string(value, "text", place), "text", place))


def read_judgements(path: Path) -> Iterator[tuple[int, Qrel]]:
    """The judgements of a qrels .tsv, with or without its header line."""
    for number, (query, document, given) in columns(path, (3,), "query-id, corpus-id, score"):
        if number == 1 and given.lower() in _HEADER_SCORES:
            continue
        yield number, Qrel(query, document, score(given, f"{path} line {number}"))


def attributes_of(metadata: Any, place: str) -> Attributes | None:
    """The attributes among a record's metadata; what is nested or empty says nothing that a filter could ask for."""
    if metadata is None:
        return None
    if not isinstance(metadata, dict):
        raise DataError(f"{place}: field 'metadata' is {type(metadata).__name__}, expected an object of attributes")
    return {name: value for name, value in metadata.items() if _flat(value) and is_unicode(name)} or None


def _flat(value: Any) -> bool:
    if isinstance(value, str):
        return is_unicode(value)
    if isinstance(value, list):
        return bool(value) and all(isinstance(each, str) and is_unicode(each) for each in value)
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))


def _identifier(value: dict[str, Any], place: str) -> str:
    identifier = value.get("_id")
    # Some data sets number their documents without quotes.
    if isinstance(identifier, int) and not isinstance(identifier, bool):
        return str(identifier)
    if not isinstance(identifier, str) or not identifier:
        problem = f"is {format_value(identifier)}" if "_id" in value else "is missing"
        raise DataError(f"{place}: field '_id' {problem}, expected a string that is not empty; give every record an id")
    return check_unicode(identifier, "field '_id'", place)


def _string(value: dict[str, Any], field: str, place: str) -> str:
    text = value.get(field)
    if not isinstance(text, str):
        problem = f"is {format_value(text)}" if field in value else "is missing"
        raise DataError(f"{place}: field '{field}' {problem}, expected a string, which may be empty; fix the record")
    return text


def write_beir(
    folder: Path,
    documents: Iterable[Document],
    queries: Iterable[Query],
    qrels_by_split: Mapping[str, Mapping[str, Mapping[str, int]]],
) -> None:
    """Write a data set in this layout. The corpus is written last, so a folder is either whole or not recognised."""
    with storage_errors(folder):
        (folder / "qrels").mkdir(parents=True, exist_ok=True)
        for split, qrels in qrels_by_split.items():
            rows = [_HEADER, *([q, d, str(s)] for q, found in qrels.items() for d, s in found.items())]
            _write_lines(folder / "qrels" / f"{split}.tsv", ("\t".join(row) for row in rows))
        _write_lines(folder / "queries.jsonl", (_json({"_id": query.id, "text": query.text}) for query in queries))
        corpus = ({"_id": document.id, "title": document.title, "text": document.text} for document in documents)
        _write_lines(folder / "corpus.jsonl", map(_json, corpus))


def _json(value: dict[str, str]) -> str:
    return json.dumps(value, ensure_ascii=False)


def _write_lines(path: Path, content: Iterable[str]) -> None:
    aside = path.with_name(f".{path.name}.new")
    with aside.open("w", encoding="utf-8", newline="\n") as out:
        out.writelines(f"{line}\n" for line in content)
    aside.replace(path)
