"""Look documents up in one state of the index, by row or by id."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bidr.data.types import Document
from bidr.index.live.segment import Segment
from bidr.index.live.view import LiveView
from bidr.utils.array_types import Rows

Fields = dict[str, Any]
Values = list[Any]
DocumentColumns = tuple[Values, Values | None, Values | None, Values | None]
"""Ids, titles, texts and attributes of several documents; None where none has any."""
FIELDS = ("id", "title", "text", "attributes")


class DocumentLookup:
    """Looks documents up in one state of the index."""

    def __init__(self, view: LiveView) -> None:
        self.view = view

    def get_fields(self, rows: Rows, *, texts: bool) -> list[Fields]:
        """Return id, title, text and attributes of rows, in their order; None for absent fields."""
        columns = (column or [None] * len(rows) for column in self.get_columns(rows, texts=texts))
        return [dict(zip(FIELDS, values, strict=True)) for values in zip(*columns, strict=True)]

    def get_columns(self, rows: Rows, *, texts: bool) -> DocumentColumns:
        """Return the same fields as columns."""
        if self.view.single_segment is not None:
            return _read_columns(self.view.single_segment, rows, texts=texts)
        columns: tuple[Values, Values, Values, Values]
        columns = ([None] * len(rows), [None] * len(rows), [None] * len(rows), [None] * len(rows))
        for segment, places, segment_rows in self.view.split(rows):
            if segment is None:
                documents = [self.view.memtable.documents[row] for row in segment_rows.tolist()]
                segment_columns = _to_columns(documents, texts=texts and self.view.memtable.has_text)
            else:
                segment_columns = _read_columns(segment, segment_rows, texts=texts)
            for column, values in zip(columns, segment_columns, strict=True):
                for place, value in zip(places.tolist(), values or (), strict=values is not None):
                    column[place] = value
        return columns

    def get_documents(self, ids: Sequence[str]) -> tuple[list[Fields], list[str]]:
        """Return documents by id, and the ids that do not exist."""
        rows_by_id = self.view.find_rows(ids)
        rows = np.array(list(rows_by_id.values()), dtype=np.int64)
        fields = self.get_fields(rows, texts=True) if len(rows) else []
        return fields, [doc_id for doc_id in ids if doc_id not in rows_by_id]


def _read_columns(segment: Segment, rows: Rows, *, texts: bool) -> DocumentColumns:
    store = segment.reader.documents
    if texts and store.has_text:
        documents = (segment.get_document(row) for row in rows.tolist())
        return _to_columns([document for document in documents if document is not None], texts=True)
    has_attributes = store.columns.exists or segment.has_changes
    attributes = [segment.get_attributes(row) or None for row in rows.tolist()] if has_attributes else None
    return store.ids(rows), None, None, attributes


def _to_columns(documents: list[Document], *, texts: bool) -> DocumentColumns:
    return (
        [document.id for document in documents],
        [document.title if texts else None for document in documents],
        [document.text if texts else None for document in documents],
        [document.attributes or None for document in documents],
    )
