"""What one record of the log says: documents that came, documents that went, in one commit."""

import json
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bidr.data.attributes import check_attributes
from bidr.data.types import Document, validate_documents
from bidr.errors import REBUILD, DataError, IndexFolderError, to_short_json
from bidr.index.storage.manifest import UNREADABLE, is_count
from bidr.index.vectors import Fp16Vectors
from bidr.utils.array_types import Codes, Floats

INFINITE = 0x7C00
SCALARS = frozenset((str, int, float, bool))
MOST_BYTES = (1 << 32) - 1
"""What a record may hold: its length is written in 4 bytes."""


class Change(NamedTuple):
    """One commit. Documents that it replaces are among those that it deletes.

    texts:    whether the documents have texts, or only ids and attributes.
    errors:   how far each vector is from what its code says (see `drift`).
    deleted:  rows by the name of their segment.
    forgotten: ids of documents that an earlier record of the same log added.
    """

    documents: Sequence[Document]
    texts: bool
    codes: Codes
    vectors: Fp16Vectors
    errors: Floats
    deleted: Mapping[str, Sequence[int]]
    forgotten: Sequence[str]


def to_bytes(change: Change) -> bytes:
    """A change as a record holds it: what JSON can say, then the arrays."""
    about = {
        "documents": [list(document) for document in change.documents],
        "texts": change.texts,
        "deleted": change.deleted,
        "forgotten": list(change.forgotten),
        "shape": [len(change.documents), change.codes.shape[1], change.vectors.shape[1]],
    }
    words = json.dumps(about).encode()
    arrays = (change.codes, change.vectors.astype("<f2"), change.errors.astype("<f4"))
    size = 4 + len(words) + sum(each.nbytes for each in arrays)
    if size > MOST_BYTES:
        raise DataError(
            f"{len(change.documents):,} documents take {size:,} bytes in the log, expected at most {MOST_BYTES:,} in "
            "one commit; give fewer at a time"
        )
    return len(words).to_bytes(4, "little") + words + b"".join(np.ascontiguousarray(each).tobytes() for each in arrays)


def from_bytes(content: bytes, path: Path) -> Change:
    """The change that a record holds. Its checksum was right, so what cannot be read was not written by us."""
    try:
        end = 4 + int.from_bytes(content[:4], "little")
        about = json.loads(content[4:end])
        count, books, dim = about["shape"]
        if not all(map(is_count, (count, books, dim))) or count != len(about["documents"]):
            raise ValueError(f"arrays of shape {about['shape']} for {len(about['documents'])} documents")
        sizes = list(accumulate([end, count * books, 2 * count * dim, 4 * count]))
        if sizes[-1] != len(content):
            raise ValueError(f"{len(content)} bytes, expected {sizes[-1]}")
        codes = np.frombuffer(content, np.uint8, count * books, end).reshape(count, books)
        vectors = np.frombuffer(content, "<f2", count * dim, sizes[1]).reshape(count, dim)
        errors = np.frombuffer(content, "<f4", count, sizes[2])
        documents = [_document(fields) for fields in about["documents"]]
        deleted, forgotten = about["deleted"], about["forgotten"]
        if not all(map(is_count, chain.from_iterable(deleted.values()))):
            raise ValueError("deleted rows that are no numbers")
        if not isinstance(about["texts"], bool) or not isinstance(forgotten, list) or not all(map(is_text, forgotten)):
            raise ValueError("texts, expected true or false; or forgotten, expected ids")
        # Of a half without its sign: what is not finite is the largest. Seventeen times as fast as numpy's isfinite.
        if (vectors.view("<u2") & 0x7FFF).max(initial=0) >= INFINITE or not np.isfinite(errors).all():
            raise ValueError("vectors or errors that are not finite")
        return Change(documents, about["texts"], codes, vectors, errors, deleted, forgotten)
    except (*UNREADABLE, DataError) as error:
        raise IndexFolderError(f"{path}: a record that bidr did not write ({error}); {REBUILD}") from error


def is_text(value: object) -> bool:
    return isinstance(value, str)


def _document(fields: list[Any]) -> Document:
    """A document as a record holds it. Whoever writes a segment of them checks the rest of their attributes."""
    name, title, text, attributes = fields
    if not (type(name) is type(title) is type(text) is str and name):
        raise ValueError(f"a document {to_short_json(fields)}, expected an id, a title and a text")
    for value in attributes.values() if attributes is not None else ():
        if type(value) not in SCALARS and not (type(value) is list and all(map(is_text, value))):
            raise ValueError(f"an attribute {to_short_json(value)} of document {to_short_json(name)}")
    return Document(name, title, text, attributes)


def checked_documents(documents: Sequence[Document]) -> list[Document]:
    """Documents as they are stored; DataError names the first that cannot be."""
    found: dict[str, Document] = {}
    for document in validate_documents(documents):
        if document.id in found:
            raise DataError(f"documents: {document.id!r} is given twice in one call; leave one out")
        attributes = document.attributes
        if attributes is not None:
            attributes = check_attributes(attributes, f"document {document.id!r}") or None
        found[document.id] = document if attributes is document.attributes else document._replace(attributes=attributes)
    return list(found.values())
