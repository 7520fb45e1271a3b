"""What the log holds, in RAM: few documents, each of which is compared with every query."""

from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from bidr.data.types import Document
from bidr.index.filters.filter_expression import Filter, match_filter
from bidr.index.live.wal_record import Change
from bidr.index.vectors import Fp16Vectors
from bidr.utils.array_types import Codes, Floats
from bidr.utils.deadline import check_deadline

Mask = npt.NDArray[np.bool_]


class Memory(NamedTuple):
    """Documents of the log in the order they came; `alive` says which of them still count. It never changes."""

    documents: tuple[Document, ...]
    texts: bool
    codes: Codes
    vectors: Fp16Vectors
    errors: Floats
    alive: Mask
    rows: dict[str, int]

    @classmethod
    def empty(cls, books: int, dim: int) -> Self:
        arrays = np.zeros((0, books), np.uint8), np.zeros((0, dim), np.float16), np.zeros(0, np.float32)
        return cls((), False, *arrays, np.zeros(0, bool), {})

    @property
    def bytes(self) -> int:
        texts = sum(len(document.title) + len(document.text) for document in self.documents)
        return int(self.codes.nbytes + self.vectors.nbytes + self.errors.nbytes + self.alive.nbytes + texts)

    def after(self, changes: list[Change]) -> Self:
        """The same with some more commits."""
        documents, rows, alive = list(self.documents), dict(self.rows), self.alive.tolist()
        for change in changes:
            for name in change.forgotten:
                if (row := rows.pop(name, None)) is not None:
                    alive[row] = False
            for document in change.documents:
                rows[document.id] = len(documents)
                documents.append(document)
                alive.append(True)
        return self._replace(
            documents=tuple(documents),
            texts=self.texts or any(change.texts for change in changes),
            codes=np.concatenate([self.codes, *(change.codes for change in changes)]),
            vectors=np.concatenate([self.vectors, *(change.vectors for change in changes)]),
            errors=np.concatenate([self.errors, *(change.errors for change in changes)]),
            alive=np.array(alive, dtype=bool),
            rows=rows,
        )

    def allowed(self, asked: Filter | None) -> Mask:
        """Which documents may be found."""
        if asked is None:
            return self.alive
        passed = []
        for document in self.documents:
            check_deadline()
            passed.append(match_filter(asked, document.attributes or {}))
        both: Mask = self.alive & np.array(passed, dtype=bool)
        return both


def code_scores(tables: Floats, codes: Codes) -> Floats:
    """Inner product of queries with coded documents, by one table a query: (queries, documents)."""
    scores = np.zeros((len(tables), len(codes)), dtype=np.float32)
    for book in range(tables.shape[1]):
        scores += tables[:, book, codes[:, book]]
    return scores
