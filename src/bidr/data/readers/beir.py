"""BEIR folders: corpus.jsonl, queries.jsonl and qrels/{split}.tsv, each plain or compressed."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bidr.data.line_reader import find_file, format_file_variants, strip_compression_suffix
from bidr.data.record_sources import (
    DroppedFieldCounter,
    Source,
    SplitTables,
    Table,
    make_file_table,
    parse_score,
    read_columns,
    read_json_objects,
)
from bidr.data.tabular_source import make_attributes
from bidr.data.types import Attributes, Document, Qrel, Query
from bidr.data.validation import check_unicode, format_value, is_unicode
from bidr.errors import DataError
from bidr.utils.files import storage_errors

EXPECTED_FILES = f"{format_file_variants('corpus.jsonl')} (BEIR)"
_FIELDS = {"_id", "title", "text", "metadata"}
_HEADER = ["query-id", "corpus-id", "score"]
_HEADER_SCORES = ("score", "relevance", "label", "rel")


def detect(folder: Path) -> Source | None:
    """Open a BEIR folder; None when it has no corpus.jsonl."""
    corpus = find_file(folder, "corpus.jsonl")
    if corpus is None:
        return None
    queries = make_file_table(find_file(folder, "queries.jsonl") or folder / "queries.jsonl", read_queries)
    splits = {name: SplitTables(queries, table) for name, table in _find_qrels(folder / "qrels")}
    documents = replace(make_file_table(corpus, read_documents), read_counting=partial(read_documents, corpus))
    return Source(folder.resolve().name, documents, splits)


def _find_qrels(folder: Path) -> Iterator[tuple[str, Table[Qrel]]]:
    for path in sorted(folder.glob("*.tsv*")):
        name = strip_compression_suffix(path)
        if name.endswith(".tsv"):
            yield name.removesuffix(".tsv"), make_file_table(path, read_judgments)


def read_documents(path: Path, dropped: DroppedFieldCounter | None = None) -> Iterator[tuple[int, Document]]:
    """Yield the documents of a corpus.jsonl; `title` may be absent or null, `_id` and `text` may not.

    Flat values of `metadata` (strings, numbers, booleans, lists of strings) and of other fields become attributes.
    `dropped` counts other values that are not empty, and titles and texts with half of a surrogate pair.
    """
    dropped = dropped or DroppedFieldCounter()
    for number, value in read_json_objects(path):
        place = f"{path} line {number}"
        title = "" if value.get("title") is None else dropped.repair(_get_string(value, "title", place), place, "title")
        text = dropped.repair(_get_string(value, "text", place), place, "text")
        metadata = value.get("metadata")
        attributes = selected = _select_attributes(metadata, place)
        others = value.keys() - _FIELDS
        if others:
            cells = {field: item for field, item in value.items() if field in others}
            attributes = {**make_attributes(cells, partial(_format_place, path, number), dropped), **(attributes or {})}
        if metadata and len(selected or {}) < len(metadata):
            for name, item in metadata.items():
                if not (_is_flat(item) and is_unicode(name)) and item not in (None, [], {}):
                    dropped.count_dropped(place, name)
        yield number, Document(_get_id(value, place), title, text, attributes or None)


def _format_place(path: Path, number: int) -> str:
    return f"{path} line {number}"


def read_queries(path: Path) -> Iterator[tuple[int, Query]]:
    """Yield the queries of a queries.jsonl."""
    for number, value in read_json_objects(path):
        place = f"{path} line {number}"
        yield number, Query(_get_id(value, place), check_unicode(_get_string(value, "text", place), "text", place))


def read_judgments(path: Path) -> Iterator[tuple[int, Qrel]]:
    """Yield the judgments of a qrels .tsv, with or without a header line."""
    for number, (query, document, score) in read_columns(path, (3,), "query-id, corpus-id, score"):
        if number == 1 and score.lower() in _HEADER_SCORES:
            continue
        yield number, Qrel(query, document, parse_score(score, f"{path} line {number}"))


def _select_attributes(metadata: Any, place: str) -> Attributes | None:
    """Select the metadata values that can be attributes: flat ones that are not empty."""
    if metadata is None:
        return None
    if not isinstance(metadata, dict):
        raise DataError(f"{place}: field 'metadata' is {type(metadata).__name__}, expected an object of attributes")
    return {name: value for name, value in metadata.items() if _is_flat(value) and is_unicode(name)} or None


def _is_flat(value: Any) -> bool:
    if isinstance(value, str):
        return is_unicode(value)
    if isinstance(value, list):
        return bool(value) and all(isinstance(item, str) and is_unicode(item) for item in value)
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))


def _get_id(value: dict[str, Any], place: str) -> str:
    identifier = value.get("_id")
    # Some datasets have integer ids.
    if isinstance(identifier, int) and not isinstance(identifier, bool):
        return str(identifier)
    if not isinstance(identifier, str) or not identifier:
        problem = f"is {format_value(identifier)}" if "_id" in value else "is missing"
        raise DataError(f"{place}: field '_id' {problem}, expected a string that is not empty; give every record an id")
    return check_unicode(identifier, "field '_id'", place)


def _get_string(value: dict[str, Any], field: str, place: str) -> str:
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
    """Write a BEIR folder. The corpus is written last, so that an incomplete folder is not recognized."""
    with storage_errors(folder):
        (folder / "qrels").mkdir(parents=True, exist_ok=True)
        for split, qrels in qrels_by_split.items():
            rows = [_HEADER, *([q, d, str(s)] for q, scores in qrels.items() for d, s in scores.items())]
            _write_lines(folder / "qrels" / f"{split}.tsv", ("\t".join(row) for row in rows))
        _write_lines(folder / "queries.jsonl", (_to_json({"_id": query.id, "text": query.text}) for query in queries))
        corpus = ({"_id": document.id, "title": document.title, "text": document.text} for document in documents)
        _write_lines(folder / "corpus.jsonl", map(_to_json, corpus))


def _to_json(value: dict[str, str]) -> str:
    return json.dumps(value, ensure_ascii=False)


def _write_lines(path: Path, content: Iterable[str]) -> None:
    temporary = path.with_name(f".{path.name}.new")
    with temporary.open("w", encoding="utf-8", newline="\n") as out:
        out.writelines(f"{line}\n" for line in content)
    temporary.replace(path)
