"""Documents of a state of the index: by row for answers, many at a time, and by id for those who ask for them."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bidr.data.types import Document
from bidr.index.documents.document_store import DocumentStore
from bidr.index.documents.id_index import IdIndex
from bidr.index.live.segment import Part
from bidr.index.live.view import LiveView
from bidr.utils.array_types import Rows

Fields = dict[str, Any]
Values = list[Any]
Columns = tuple[Values, Values | None, Values | None, Values | None]
Key = tuple[str, str]
FIELDS = ("id", "title", "text", "attributes")


class DocumentLookup:
    """Looks documents up in one state. The tables of ids are opened when somebody first asks by id."""

    def __init__(self, view: LiveView, names: dict[Key, IdIndex] | None = None) -> None:
        self.view, self._names = view, names if names is not None else {}

    def following(self, view: LiveView) -> "DocumentLookup":
        """The same for a newer state: what is open and still there is taken over."""
        there = {_key(part) for part in view.parts}
        known = self._names.copy()  # in one go: other threads look ids up meanwhile, which adds to it
        return DocumentLookup(view, {key: names for key, names in known.items() if key in there})

    def fields(self, rows: Rows, *, texts: bool) -> list[Fields]:
        """Id, title, text and attributes of rows, in their order; None for what the index does not have."""
        columns = (column or [None] * len(rows) for column in self.columns(rows, texts=texts))
        return [dict(zip(FIELDS, each, strict=True)) for each in zip(*columns, strict=True)]

    def columns(self, rows: Rows, *, texts: bool) -> Columns:
        """The same field by field: ids of all rows, titles, texts, attributes; None where no row has any."""
        if self.view.only is not None:
            return _stored(self.view.only.open.reader.documents, rows, texts=texts)
        found: tuple[Values, Values, Values, Values]
        found = ([None] * len(rows), [None] * len(rows), [None] * len(rows), [None] * len(rows))
        for part, places, own in self.view.split(rows):
            if part is None:
                documents = [self.view.memory.documents[row] for row in own.tolist()]
                each = _columns(documents, texts=texts and self.view.memory.texts)
            else:
                each = _stored(part.open.reader.documents, own, texts=texts)
            for column, values in zip(found, each, strict=True):
                for place, value in zip(places.tolist(), values or (), strict=values is not None):
                    column[place] = value
        return found

    def find(self, ids: Iterable[str]) -> dict[str, int]:
        """Rows of the ids that the index has."""
        found: dict[str, int] = {}
        for name in ids:
            if (row := self.view.memory.rows.get(name)) is not None:
                found[name] = self.view.start + row
                continue
            for part in self.view.parts:
                own = self._of(part).find(name)
                if own is not None and not part.is_deleted(own):
                    found[name] = part.start + own
        return found

    def documents(self, ids: Sequence[str]) -> tuple[list[Fields], list[str]]:
        """Documents by id, and the ids that are not there."""
        found = self.find(ids)
        rows = np.array(list(found.values()), dtype=np.int64)
        return (self.fields(rows, texts=True) if len(rows) else []), [name for name in ids if name not in found]

    def _of(self, part: Part) -> IdIndex:
        if (key := _key(part)) not in self._names:
            reader = part.open.reader
            self._names[key] = IdIndex(reader.generation, reader.manifest, part.count)
        return self._names[key]


def _key(part: Part) -> Key:
    """By name too: what is built again from the same is the same, but its files before are gone, and to be let go."""
    return part.open.segment.name, part.open.segment.xxh3


def _stored(stored: DocumentStore, rows: Rows, *, texts: bool) -> Columns:
    if texts and stored.has_text:
        documents = (stored.document(row) for row in rows.tolist())
        return _columns([each for each in documents if each is not None], texts=True)
    columns = stored.columns
    known = [columns.get(row) or None for row in rows.tolist()] if columns.exists else None
    return stored.ids(rows), None, None, known


def _columns(documents: list[Document], *, texts: bool) -> Columns:
    return (
        [each.id for each in documents],
        [each.title if texts else None for each in documents],
        [each.text if texts else None for each in documents],
        [each.attributes or None for each in documents],
    )
