"""Ids, texts and attributes of documents on disk, read by row."""

import json
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Self

import numpy as np

from bidr.data.types import Document
from bidr.errors import REBUILD, DataError, IndexFolderError
from bidr.index.documents.attribute_columns import AttributeColumns
from bidr.index.documents.attribute_writer import AttributeWriter
from bidr.index.documents.id_index import IdIndexWriter
from bidr.index.documents.string_store import FileFactory, StringStore, create_string_store
from bidr.index.storage.manifest import HasFiles
from bidr.utils.array_types import Rows

IDS, DOCUMENTS = "ids", "documents"


class DocumentStore:
    """Ids, texts and attributes of a segment, where it has them. Without ids the row number is the id."""

    def __init__(
        self, count: int, ids: StringStore | None, documents: StringStore | None, columns: AttributeColumns
    ) -> None:
        self.count, self._ids, self._documents, self.columns = count, ids, documents, columns

    @classmethod
    def open(cls, folder: Path, count: int, manifest: HasFiles) -> Self:
        """Open the files of a segment; a number of rows other than `count` is damage."""
        stores = [
            StringStore(folder, name, manifest) if f"{name}.blob" in manifest.files else None
            for name in (IDS, DOCUMENTS)
        ]
        for store in stores:
            if store is not None and len(store) != count:
                raise IndexFolderError(f"{store.path}: {len(store):,} rows, expected {count:,}; {REBUILD}")
        return cls(count, stores[0], stores[1], AttributeColumns(folder, manifest, count))

    @property
    def has_text(self) -> bool:
        return self._documents is not None

    def id(self, row: int) -> str:
        if self._ids is None:
            if not 0 <= row < self.count:
                raise DataError(f"invalid row: {row} (allowed: 0 to {self.count - 1})")
            return str(row)
        return self._decode(self._ids, row)

    def ids(self, rows: Rows | Iterable[int]) -> list[str]:
        """Read the ids of many rows."""
        if self._ids is None and isinstance(rows, np.ndarray):
            numbers = rows.tolist()
            if numbers and min(numbers) >= 0 and max(numbers) < self.count:
                return list(map(str, numbers))
        if self._ids is None or not isinstance(rows, np.ndarray):
            return [self.id(int(row)) for row in rows]
        try:
            return [content.decode("utf-8", "surrogatepass") for content in self._ids.get_many(rows)]
        except UnicodeDecodeError:
            return [self.id(int(row)) for row in rows]  # raises the error of the damaged row

    def document(self, row: int) -> Document | None:
        """Read a document; None if the index has no texts."""
        if self._documents is None:
            return None
        try:
            title, text = json.loads(self._decode(self._documents, row))
            return Document(self.id(row), str(title), str(text), self.columns.get(row))
        except (ValueError, TypeError, RecursionError) as error:
            raise IndexFolderError(f"{self._documents.path}: row {row} is damaged ({error}); {REBUILD}") from error

    def close(self) -> None:
        for store in (self._ids, self._documents):
            if store is not None:
                store.close()
        self.columns.close()

    @staticmethod
    def _decode(store: StringStore, row: int) -> str:
        try:
            return store.get(row).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise IndexFolderError(f"{store.path}: row {row} is damaged ({error}); {REBUILD}") from error


def write_documents(
    create: FileFactory,
    folder: Path,
    documents: Iterable[str | Document],
    count: int,
    advance: Callable[[int], None],
    *,
    texts: bool = True,
) -> None:
    """Write ids, attributes and texts in row order, in one pass over the documents.

    Args:
        create: opens a new file of the segment in `folder`.
        documents: ids alone, or documents.
        count: number of documents; any other number is refused, and so are duplicate ids.
        advance: progress callback.
        texts: whether titles and texts are stored.
    """
    id_index = IdIndexWriter(folder)
    with closing(AttributeWriter(create, count, folder)) as attributes:
        with attributes, ExitStack() as opened:
            ids = opened.enter_context(create_string_store(create, IDS, count))
            text_store = opened.enter_context(create_string_store(create, DOCUMENTS, count)) if texts else None
            for row, item in enumerate(documents):
                document = item if isinstance(item, Document) else Document(item, "", "")
                _check_id(document.id, row, count)
                ids.append(document.id)
                id_index.append(document.id)
                if text_store is not None:
                    text_store.append(json.dumps([document.title, document.text], ensure_ascii=False))
                attributes.append(document.attributes)
                advance(1)
        id_index.write(create, count)
        attributes.write()


def _check_id(name: str, row: int, count: int) -> None:
    if row >= count:
        raise DataError(f"documents: more than the {count:,} with codes; give the corpus that was encoded")
    if not isinstance(name, str) or not name:
        raise DataError(f"documents: row {row:,} has the id {name!r}, expected a string that is not empty")
