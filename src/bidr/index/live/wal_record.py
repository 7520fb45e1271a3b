"""Encode and decode records of the write-ahead log: documents added and deleted, or attributes changed, by one commit.

A record of attributes has a header without "documents": versions that do not know it refuse it.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bidr.data.attribute_validation import check_attributes
from bidr.data.types import Attributes, Document, validate_documents
from bidr.errors import REBUILD, DataError, IndexFolderError, to_short_json
from bidr.index.storage.manifest import PARSE_ERRORS, is_count
from bidr.index.vectors import Fp16Vectors
from bidr.utils.array_types import Codes, Floats

FP16_INFINITY_BITS = 0x7C00
SCALAR_TYPES = frozenset((str, int, float, bool))
MAX_RECORD_BYTES = (1 << 32) - 1
"""The length of a record is stored in 4 bytes."""


class WalRecord(NamedTuple):
    """One commit. A replaced document is deleted and added.

    has_text:     whether documents have titles or texts, besides ids and attributes.
    errors:       quantization error of each vector (see `drift`).
    deleted_rows: rows by segment name.
    removed_ids:  ids of documents that earlier records of the same log added.
    changed_rows: new attributes by segment name and row; such a record adds and deletes nothing.
    changed_ids:  new attributes of documents that earlier records of the same log added.
    """

    documents: Sequence[Document]
    has_text: bool
    codes: Codes
    vectors: Fp16Vectors
    errors: Floats
    deleted_rows: Mapping[str, Sequence[int]]
    removed_ids: Sequence[str]
    changed_rows: Mapping[str, Mapping[int, Attributes | None]] = {}
    changed_ids: Mapping[str, Attributes | None] = {}


def encode_record(record: WalRecord) -> bytes:
    """Encode a record: a JSON header, then the arrays."""
    if record.changed_rows or record.changed_ids:
        return _encode_changes(record)
    header = {
        "documents": [list(document) for document in record.documents],
        "texts": record.has_text,
        "deleted": record.deleted_rows,
        "forgotten": list(record.removed_ids),
        "shape": [len(record.documents), record.codes.shape[1], record.vectors.shape[1]],
    }
    content = json.dumps(header).encode()
    arrays = (record.codes, record.vectors.astype("<f2"), record.errors.astype("<f4"))
    size = 4 + len(content) + sum(array.nbytes for array in arrays)
    if size > MAX_RECORD_BYTES:
        raise DataError(
            f"{len(record.documents):,} documents take {size:,} bytes in the log, at most {MAX_RECORD_BYTES:,} are "
            "allowed in one commit; add fewer documents at a time"
        )
    return b"".join(
        [len(content).to_bytes(4, "little"), content, *(np.ascontiguousarray(array).tobytes() for array in arrays)]
    )


def _encode_changes(record: WalRecord) -> bytes:
    """Encode a record of changed attributes."""
    changes = {name: [list(change) for change in rows.items()] for name, rows in record.changed_rows.items()}
    shape = [0, record.codes.shape[1], record.vectors.shape[1]]
    header = {"attributes": changes, "added": list(record.changed_ids.items()), "shape": shape}
    content = json.dumps(header).encode()
    if len(content) > MAX_RECORD_BYTES - 4:
        raise DataError(
            f"attributes take {len(content):,} bytes in the log, at most {MAX_RECORD_BYTES:,} are allowed in one "
            "commit; change fewer documents at a time"
        )
    return len(content).to_bytes(4, "little") + content


def _decode_changes(header: dict[str, Any], size: int, end: int) -> WalRecord:
    """Decode a record of changed attributes."""
    count, books, dim = header["shape"]
    if count or size != end or not all(map(is_count, (books, dim))):
        raise ValueError(f"{size} bytes and shape {header['shape']}, expected {end} and no documents")
    changed_rows = {
        name: {row: _parse_attributes(attributes, row) for row, attributes in changes}
        for name, changes in header["attributes"].items()
    }
    if not all(map(is_count, chain.from_iterable(changed_rows.values()))):
        raise ValueError("changed rows that are not numbers")
    changed_ids = {name: _parse_attributes(attributes, name) for name, attributes in header["added"]}
    if not all(map(is_text, changed_ids)):
        raise ValueError("changed ids that are not strings")
    arrays = np.zeros((0, books), np.uint8), np.zeros((0, dim), np.float16), np.zeros(0, np.float32)
    return WalRecord([], False, *arrays, {}, [], changed_rows, changed_ids)


def decode_record(content: bytes, path: Path) -> WalRecord:
    """Decode and validate a record whose checksum is right; `path` is that of the log, for errors."""
    try:
        end = 4 + int.from_bytes(content[:4], "little")
        header = json.loads(content[4:end])
        if "attributes" in header:
            return _decode_changes(header, len(content), end)
        count, books, dim = header["shape"]
        if not all(map(is_count, (count, books, dim))) or count != len(header["documents"]):
            raise ValueError(f"arrays of shape {header['shape']} for {len(header['documents'])} documents")
        ends = list(accumulate([end, count * books, 2 * count * dim, 4 * count]))
        if ends[-1] != len(content):
            raise ValueError(f"{len(content)} bytes, expected {ends[-1]}")
        codes = np.frombuffer(content, np.uint8, count * books, end).reshape(count, books)
        vectors = np.frombuffer(content, "<f2", count * dim, ends[1]).reshape(count, dim)
        errors = np.frombuffer(content, "<f4", count, ends[2])
        documents = [_parse_document(fields) for fields in header["documents"]]
        has_text, deleted_rows, removed_ids = header["texts"], header["deleted"], header["forgotten"]
        if not all(map(is_count, chain.from_iterable(deleted_rows.values()))):
            raise ValueError("deleted rows that are not numbers")
        if not isinstance(has_text, bool):
            raise ValueError(f"texts {to_short_json(has_text)}, expected true or false")
        if not isinstance(removed_ids, list) or not all(map(is_text, removed_ids)):
            raise ValueError(f"forgotten {to_short_json(removed_ids)}, expected ids")
        # Without the sign bit, infinities and NaNs have the largest fp16 bits: 17 times as fast as np.isfinite.
        if (vectors.view("<u2") & 0x7FFF).max(initial=0) >= FP16_INFINITY_BITS or not np.isfinite(errors).all():
            raise ValueError("vectors or errors that are not finite")
        return WalRecord(documents, has_text, codes, vectors, errors, deleted_rows, removed_ids)
    except (*PARSE_ERRORS, DataError) as error:
        raise IndexFolderError(f"{path}: invalid record ({error}); {REBUILD}") from error


def is_text(value: object) -> bool:
    return isinstance(value, str)


def _parse_document(fields: list[Any]) -> Document:
    """Parse a document of a record. Attribute values are validated further when a segment is written."""
    document_id, title, text, attributes = fields
    if not (type(document_id) is type(title) is type(text) is str and document_id):
        raise ValueError(f"a document {to_short_json(fields)}, expected an id, a title and a text")
    return Document(document_id, title, text, _parse_attributes(attributes, document_id))


def _parse_attributes(attributes: Any, document: str | int) -> Attributes | None:
    for value in attributes.values() if attributes is not None else ():
        if type(value) not in SCALAR_TYPES and not (type(value) is list and all(map(is_text, value))):
            raise ValueError(f"an attribute {to_short_json(value)} of document {to_short_json(document)}")
    parsed: Attributes | None = attributes
    return parsed


def normalize_documents(documents: Sequence[Document]) -> list[Document]:
    """Return documents with attributes as they are stored; raise DataError for invalid and repeated ones."""
    by_id: dict[str, Document] = {}
    for document in validate_documents(documents):
        if document.id in by_id:
            raise DataError(f"documents: {document.id!r} is given twice in one call; leave one out")
        attributes = document.attributes
        if attributes is not None:
            attributes = check_attributes(attributes, f"document {document.id!r}") or None
        by_id[document.id] = document if attributes is document.attributes else document._replace(attributes=attributes)
    return list(by_id.values())
