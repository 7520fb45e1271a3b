"""Look documents up in one state of the index, by row or by id."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bidr.data.types import Document
from bidr.index.documents.document_store import DocumentStore
from bidr.index.documents.id_index import IdIndex
from bidr.index.live.segment import Segment
from bidr.index.live.view import LiveView
from bidr.utils.array_types import Rows

Fields = dict[str, Any]
Values = list[Any]
DocumentColumns = tuple[Values, Values | None, Values | None, Values | None]
"""Ids, titles, texts and attributes of several documents; None where none has any."""
SegmentKey = tuple[str, str]
FIELDS = ("id", "title", "text", "attributes")


class DocumentLookup:
    """Looks documents up in one state of the index. Id indexes are opened by the first lookup by id."""

    def __init__(self, view: LiveView, id_indexes: dict[SegmentKey, IdIndex] | None = None) -> None:
        self.view, self._id_indexes = view, id_indexes if id_indexes is not None else {}

    def switch_view(self, view: LiveView) -> "DocumentLookup":
        """Return a lookup for a newer state that shares the id indexes of unchanged segments."""
        keys = {_make_key(segment) for segment in view.segments}
        opened = self._id_indexes.copy()  # atomic: lookups on other threads insert meanwhile
        return DocumentLookup(view, {key: id_index for key, id_index in opened.items() if key in keys})

    def get_fields(self, rows: Rows, *, texts: bool) -> list[Fields]:
        """Return id, title, text and attributes of rows, in their order; None for absent fields."""
        columns = (column or [None] * len(rows) for column in self.get_columns(rows, texts=texts))
        return [dict(zip(FIELDS, values, strict=True)) for values in zip(*columns, strict=True)]

    def get_columns(self, rows: Rows, *, texts: bool) -> DocumentColumns:
        """Return the same fields as columns."""
        if self.view.single_segment is not None:
            return _read_columns(self.view.single_segment.reader.documents, rows, texts=texts)
        columns: tuple[Values, Values, Values, Values]
        columns = ([None] * len(rows), [None] * len(rows), [None] * len(rows), [None] * len(rows))
        for segment, places, segment_rows in self.view.split(rows):
            if segment is None:
                documents = [self.view.memtable.documents[row] for row in segment_rows.tolist()]
                segment_columns = _to_columns(documents, texts=texts and self.view.memtable.has_text)
            else:
                segment_columns = _read_columns(segment.reader.documents, segment_rows, texts=texts)
            for column, values in zip(columns, segment_columns, strict=True):
                for place, value in zip(places.tolist(), values or (), strict=values is not None):
                    column[place] = value
        return columns

    def find_rows(self, ids: Iterable[str]) -> dict[str, int]:
        """Return the rows of those ids that the index has."""
        rows: dict[str, int] = {}
        for doc_id in ids:
            if (row := self.view.memtable.rows.get(doc_id)) is not None:
                rows[doc_id] = self.view.memtable_start + row
                continue
            for segment in self.view.segments:
                segment_row = self._get_id_index(segment).find(doc_id)
                if segment_row is not None and not segment.is_deleted(segment_row):
                    rows[doc_id] = segment.start + segment_row
        return rows

    def get_documents(self, ids: Sequence[str]) -> tuple[list[Fields], list[str]]:
        """Return documents by id, and the ids that do not exist."""
        rows_by_id = self.find_rows(ids)
        rows = np.array(list(rows_by_id.values()), dtype=np.int64)
        fields = self.get_fields(rows, texts=True) if len(rows) else []
        return fields, [doc_id for doc_id in ids if doc_id not in rows_by_id]

    def _get_id_index(self, segment: Segment) -> IdIndex:
        if (key := _make_key(segment)) not in self._id_indexes:
            reader = segment.reader
            self._id_indexes[key] = IdIndex(reader.generation, reader.manifest, segment.count)
        return self._id_indexes[key]


def _make_key(segment: Segment) -> SegmentKey:
    """Identify a segment by name and checksum: a rebuild of the same content has other files."""
    return segment.entry.name, segment.entry.xxh3


def _read_columns(store: DocumentStore, rows: Rows, *, texts: bool) -> DocumentColumns:
    if texts and store.has_text:
        documents = (store.document(row) for row in rows.tolist())
        return _to_columns([document for document in documents if document is not None], texts=True)
    columns = store.columns
    attributes = [columns.get(row) or None for row in rows.tolist()] if columns.exists else None
    return store.ids(rows), None, None, attributes


def _to_columns(documents: list[Document], *, texts: bool) -> DocumentColumns:
    return (
        [document.id for document in documents],
        [document.title if texts else None for document in documents],
        [document.text if texts else None for document in documents],
        [document.attributes or None for document in documents],
    )
