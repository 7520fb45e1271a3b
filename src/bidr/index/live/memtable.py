"""Documents of the write-ahead log, held in RAM and searched exhaustively."""

from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from bidr.data.types import Document
from bidr.index.filters.filter_expression import Filter, match_filter
from bidr.index.live.wal_record import WalRecord
from bidr.index.vectors import Fp16Vectors
from bidr.utils.array_types import Codes, Floats
from bidr.utils.deadline import check_deadline

Mask = npt.NDArray[np.bool_]


class Memtable(NamedTuple):
    """Documents of the log in commit order; immutable.

    has_text: whether any of them has a title or text.
    alive:    which rows were neither deleted nor replaced by later commits.
    rows:     row by id, of the alive documents.
    """

    documents: tuple[Document, ...]
    has_text: bool
    codes: Codes
    vectors: Fp16Vectors
    errors: Floats
    alive: Mask
    rows: dict[str, int]

    @classmethod
    def empty(cls, books: int, dim: int) -> Self:
        """Return a memtable without documents."""
        arrays = np.zeros((0, books), np.uint8), np.zeros((0, dim), np.float16), np.zeros(0, np.float32)
        return cls((), False, *arrays, np.zeros(0, bool), {})

    @property
    def bytes(self) -> int:
        texts = sum(len(document.title) + len(document.text) for document in self.documents)
        return int(self.codes.nbytes + self.vectors.nbytes + self.errors.nbytes + self.alive.nbytes + texts)

    def apply(self, records: list[WalRecord]) -> Self:
        """Return a memtable with more commits."""
        documents, rows, alive = list(self.documents), dict(self.rows), self.alive.tolist()
        for record in records:
            for removed_id in record.removed_ids:
                if (row := rows.pop(removed_id, None)) is not None:
                    alive[row] = False
            for changed_id, attributes in record.changed_ids.items():
                if (row := rows.get(changed_id)) is not None:
                    documents[row] = documents[row]._replace(attributes=attributes)
            for document in record.documents:
                rows[document.id] = len(documents)
                documents.append(document)
                alive.append(True)
        return self._replace(
            documents=tuple(documents),
            has_text=self.has_text or any(record.has_text for record in records),
            codes=np.concatenate([self.codes, *(record.codes for record in records)]),
            vectors=np.concatenate([self.vectors, *(record.vectors for record in records)]),
            errors=np.concatenate([self.errors, *(record.errors for record in records)]),
            alive=np.array(alive, dtype=bool),
            rows=rows,
        )

    def get_mask(self, condition: Filter | None) -> Mask:
        """Mask of alive documents that match a filter."""
        if condition is None:
            return self.alive
        matching = []
        for document in self.documents:
            check_deadline()
            matching.append(match_filter(condition, document.attributes or {}))
        mask: Mask = self.alive & np.array(matching, dtype=bool)
        return mask


def score_codes(tables: Floats, codes: Codes) -> Floats:
    """Compute inner products of queries and codes from lookup tables: (queries, documents)."""
    scores = np.zeros((len(tables), len(codes)), dtype=np.float32)
    for book in range(tables.shape[1]):
        scores += tables[:, book, codes[:, book]]
    return scores
