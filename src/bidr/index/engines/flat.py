"""Flat engine: compare a query with every code."""

import numpy as np

from bidr.index.candidate_source import as_queries, count_bits, search_each, to_bitmask_words
from bidr.index.engines.code_store import FEW_ALLOWED_SHARE, CodeEngine, CodeStore
from bidr.utils.array_types import Bitmap, Floats, Rows


class FlatEngine(CodeEngine):
    """Exhaustive scan of all codes."""

    name = "scan"

    def __init__(self, store: CodeStore) -> None:
        super().__init__(store)
        self._all_rows = np.zeros(1, dtype=np.int64), np.full(1, store.count, dtype=np.int64)

    @property
    def ram_bytes(self) -> dict[str, int]:
        return {"codes": self.store.nbytes}

    def search(
        self, queries: Floats, k: int, ef: int | None = None, allowed: Bitmap | None = None
    ) -> tuple[Floats, Rows]:
        """Search as `Candidates.search`."""
        tables, bitmask = self.store.compute_tables(as_queries(queries)), to_bitmask_words(allowed, self.count)
        is_sparse = allowed is not None and count_bits(bitmask) < FEW_ALLOWED_SHARE * self.count
        scan = self.store.scan_sparse if is_sparse else self.store.scan
        return search_each(
            len(tables), k, lambda number: scan(tables[number], *self._all_rows, k, bitmask), self.threads
        )
