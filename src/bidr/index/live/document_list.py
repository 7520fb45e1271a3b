"""List documents without a query, in the order of the hashes of their ids.

This order does not depend on segments: a document that stays is listed once, whatever is added, deleted, changed or
compacted between two pages. Only one page is in memory.
"""

import heapq
from collections.abc import Iterator
from itertools import groupby, islice

import numpy as np

from bidr.data.types import Document, DocumentPage
from bidr.index.documents.id_index import hash_string
from bidr.index.filters.filter_expression import Filter
from bidr.index.live.segment import Segment
from bidr.index.live.view import LiveView
from bidr.utils.deadline import check_deadline

DocumentKey = tuple[int, int]
"""Hash of an id, and row."""


def list_documents(
    view: LiveView, condition: Filter | None = None, limit: int = 100, cursor: str | None = None, *, texts: bool = True
) -> DocumentPage:
    """List documents that match a filter.

    Args:
        view: a state of the index.
        condition: None: all documents.
        limit: maximum number of documents.
        cursor: `cursor` of the last page; None: from the beginning.
        texts: whether titles and texts are read.
    """
    after = None if cursor is None else (hash_string(cursor), cursor)
    keys = _iter_after(view, _iter_keys(view, condition, 0 if after is None else after[0]), after)
    rows = list(islice(keys, limit + 1))
    documents = [_read_document(view, row, texts=texts) for row in rows[:limit]]
    return DocumentPage(documents, documents[-1].id if len(rows) > limit else None)


def scroll_documents(view: LiveView, condition: Filter | None = None) -> Iterator[Document]:
    """Iterate over all documents of one state, or those that match a filter, in constant memory."""
    for row in _iter_after(view, _iter_keys(view, condition, 0), None):
        yield _read_document(view, row, texts=True)


def _iter_keys(view: LiveView, condition: Filter | None, digest: int) -> Iterator[DocumentKey]:
    """Yield the keys of alive and matching documents from a hash on, ascending by hash."""
    sources = [_iter_segment_keys(segment, condition, digest) for segment in view.segments]
    memtable = view.memtable
    rows = np.flatnonzero(memtable.get_mask(condition)).tolist()
    pairs = ((hash_string(memtable.documents[row].id), view.memtable_start + row) for row in rows)
    return heapq.merge(*sources, sorted(pair for pair in pairs if pair[0] >= digest))


def _iter_segment_keys(segment: Segment, condition: Filter | None, digest: int) -> Iterator[DocumentKey]:
    bits = segment.get_row_bitmap(condition)
    for hashes, rows in segment.reader.id_index.iter_sorted(digest):
        check_deadline()
        if bits is not None:
            is_listed = (bits[rows >> 3] >> (rows & 7).astype(np.uint8) & 1).astype(bool)
            yield from zip(hashes[is_listed].tolist(), (rows[is_listed] + segment.start).tolist(), strict=True)
        else:
            yield from zip(hashes.tolist(), (rows + segment.start).tolist(), strict=True)


def _iter_after(view: LiveView, keys: Iterator[DocumentKey], after: tuple[int, str] | None) -> Iterator[int]:
    """Yield the rows after a cursor. Documents whose ids have the same hash are ordered by id."""
    for digest, group in groupby(keys, key=lambda key: key[0]):
        rows = [row for _, row in group]
        if len(rows) > 1 or (after is not None and digest == after[0]):
            by_id = sorted((view.documents.id(row), row) for row in rows)
            rows = [row for doc_id, row in by_id if after is None or (digest, doc_id) > after]
        yield from rows


def _read_document(view: LiveView, row: int, *, texts: bool) -> Document:
    if texts:
        return view.documents.record(row)
    return Document(view.documents.id(row), "", "", view.documents.attributes(row))
