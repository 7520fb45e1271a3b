"""Simulate int8 and truncated (Matryoshka) vectors on an index with full ones, to measure the loss."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bidr.errors import ConfigError
from bidr.search.searcher import Searcher, StoredVectors
from bidr.utils.array_types import Floats
from bidr.utils.reproducible_matmul import matmul_transposed

SAMPLE_ROWS = 10_000
ROWS_PER_READ = 16_384


class TruncatedSearcher(Searcher):
    """Ranks as if the index stored smaller vectors; it still reads the full ones.

    Args:
        dims: rank by the first so many dimensions, L2-normalized; None: by all.
        int8: rank by one byte per dimension, scaled to the largest value in a sample of the vectors.
    """

    def __init__(self, searcher: Searcher, *, dims: int | None = None, int8: bool = False) -> None:
        super().__init__(
            searcher.reader,
            searcher.encoder,
            searcher.candidates,
            fuse=searcher.fuse,
            lexical=searcher.lexical,
            lexical_weight=searcher.lexical_weight,
        )
        if dims is not None and not 0 < dims <= searcher.reader.manifest.stored_dim:
            raise ConfigError(f"dims: given {dims}, expected 1 to {searcher.reader.manifest.stored_dim}")
        self.dims, self.scales = dims, None
        if int8:
            rows = np.linspace(0, self.reader.count - 1, min(SAMPLE_ROWS, self.reader.count)).astype(np.int64)
            blocks = [
                self._truncate(self.reader.vectors.read(rows[at : at + ROWS_PER_READ]))
                for at in range(0, len(rows), ROWS_PER_READ)
            ]
            largest = np.max([np.abs(block).max(axis=0) for block in blocks], axis=0)
            self.scales = np.maximum(largest, 1e-12) / 127

    def _score(self, rows: Any, query: Floats, clock: Any, stored: StoredVectors) -> Floats:
        cut = self._truncate(query[None])[0]
        scores = np.empty(len(rows), dtype=np.float32)
        for start in range(0, len(rows), ROWS_PER_READ):
            vectors = self._truncate(stored.read(rows[start : start + ROWS_PER_READ]))
            clock.add_step("reads")
            if self.scales is not None:
                vectors = np.clip(np.rint(vectors / self.scales), -127, 127) * self.scales
            scores[start : start + ROWS_PER_READ] = matmul_transposed(vectors, cut[None])[:, 0]
            clock.add_step("ranking")
        return scores

    def _truncate(self, vectors: Floats) -> Floats:
        if self.dims is None:
            return vectors
        part = vectors[:, : self.dims]
        unit: Floats = part / np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-12)
        return unit


def make_truncated_searchers(searcher: Searcher, prefixes: Sequence[int]) -> dict[str, TruncatedSearcher]:
    """Return searchers by the name of their truncation."""
    searchers = {"int8": TruncatedSearcher(searcher, int8=True)}
    for dims in prefixes:
        if dims < searcher.reader.manifest.stored_dim:
            searchers[f"first {dims}"] = TruncatedSearcher(searcher, dims=dims)
            searchers[f"first {dims}, int8"] = TruncatedSearcher(searcher, dims=dims, int8=True)
    return searchers
