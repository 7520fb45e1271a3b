"""What a row is called, what it says and which attributes it has: on disk, read row by row."""

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
from bidr.index.documents.string_file import FileFactory, StringStore, create_string_store
from bidr.index.storage.manifest import HasFiles
from bidr.utils.array_types import Rows

IDS, DOCUMENTS = "ids", "documents"


class DocumentStore:
    """Ids and, where the index has them, texts and attributes. Without ids a row's number is its id."""

    def __init__(
        self, count: int, ids: StringStore | None, documents: StringStore | None, columns: AttributeColumns
    ) -> None:
        self.count, self._ids, self._documents, self.columns = count, ids, documents, columns

    @classmethod
    def open(cls, folder: Path, count: int, manifest: HasFiles) -> Self:
        """Open what is there; a count that differs from the index is damage."""
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
                raise DataError(f"row {row} asked for, expected 0 to {self.count - 1}")
            return str(row)
        return self._decode(self._ids, row)

    def ids(self, rows: Rows | Iterable[int]) -> list[str]:
        """Ids of many rows."""
        if self._ids is None and isinstance(rows, np.ndarray):
            numbers = rows.tolist()
            if numbers and min(numbers) >= 0 and max(numbers) < self.count:
                return list(map(str, numbers))
        if self._ids is None or not isinstance(rows, np.ndarray):
            return [self.id(int(row)) for row in rows]
        try:
            return [each.decode("utf-8", "surrogatepass") for each in self._ids.many(rows)]
        except UnicodeDecodeError:
            return [self.id(int(row)) for row in rows]  # which says what is wrong

    def document(self, row: int) -> Document | None:
        """A document with its text, or None where the index was built from arrays alone."""
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
    """Write ids in the order of the rows; refuse another number of them, and an id given twice.

    Of documents the attributes too, and with `texts` what they say: one pass over them. `folder`: where `create`
    makes files.
    """
    names = IdIndexWriter(folder)
    with closing(AttributeWriter(create, count, folder)) as attributes:
        with attributes, ExitStack() as opened:
            ids = opened.enter_context(create_string_store(create, IDS, count))
            said = opened.enter_context(create_string_store(create, DOCUMENTS, count)) if texts else None
            for row, each in enumerate(documents):
                document = each if isinstance(each, Document) else Document(each, "", "")
                _check_id(document.id, row, count)
                ids.append(document.id)
                names.append(document.id)
                if said is not None:
                    said.append(json.dumps([document.title, document.text], ensure_ascii=False))
                attributes.append(document.attributes)
                advance(1)
        names.write(create, count)
        attributes.write()


def _check_id(name: str, row: int, count: int) -> None:
    if row >= count:
        raise DataError(f"documents: more than the {count:,} that have codes; give the corpus that was encoded")
    if not isinstance(name, str) or not name:
        raise DataError(f"documents: row {row:,} has the id {name!r}, expected a string that is not empty")
