"""What a ranking loses when vectors take less of the disk: as int8, or cut off after some dimensions."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bidr.errors import ConfigError
from bidr.search.searcher import Searcher, StoredVectors
from bidr.utils.array_types import Floats
from bidr.utils.matmul import matmul_transposed

SAMPLE = 10_000
READ_ROWS = 16_384


class TruncatedSearcher(Searcher):
    """A searcher that ranks as if the index held smaller vectors. To measure with: it reads the large ones.

    dims: rank by the first so many dimensions, brought back to length 1; None: by all.
    int8: rank by a byte a dimension, scaled to the largest value that a sample of the vectors has there.
    """

    def __init__(self, searcher: Searcher, *, dims: int | None = None, int8: bool = False) -> None:
        super().__init__(searcher.reader, searcher.encoder, searcher.candidates, fuse=searcher.fuse)
        if dims is not None and not 0 < dims <= searcher.reader.manifest.stored_dim:
            raise ConfigError(f"dims: given {dims}, expected 1 to {searcher.reader.manifest.stored_dim}")
        self.dims, self.scales = dims, None
        if int8:
            rows = np.linspace(0, self.reader.count - 1, min(SAMPLE, self.reader.count)).astype(np.int64)
            blocks = [
                self._cut(self.reader.vectors.read(rows[at : at + READ_ROWS])) for at in range(0, len(rows), READ_ROWS)
            ]
            largest = np.max([np.abs(block).max(axis=0) for block in blocks], axis=0)
            self.scales = np.maximum(largest, 1e-12) / 127

    def _score(self, rows: Any, query: Floats, clock: Any, stored: StoredVectors) -> Floats:
        cut = self._cut(query[None])[0]
        scores = np.empty(len(rows), dtype=np.float32)
        for start in range(0, len(rows), READ_ROWS):
            vectors = self._cut(stored.read(rows[start : start + READ_ROWS]))
            clock.took("reads")
            if self.scales is not None:
                vectors = np.clip(np.rint(vectors / self.scales), -127, 127) * self.scales
            scores[start : start + READ_ROWS] = matmul_transposed(vectors, cut[None])[:, 0]
            clock.took("ranking")
        return scores

    def _cut(self, vectors: Floats) -> Floats:
        if self.dims is None:
            return vectors
        part = vectors[:, : self.dims]
        unit: Floats = part / np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-12)
        return unit


def make_truncated_searchers(searcher: Searcher, prefixes: Sequence[int]) -> dict[str, TruncatedSearcher]:
    """Searchers with smaller vectors, by what makes them smaller."""
    found = {"int8": TruncatedSearcher(searcher, int8=True)}
    for dims in prefixes:
        if dims < searcher.reader.manifest.stored_dim:
            found[f"first {dims}"] = TruncatedSearcher(searcher, dims=dims)
            found[f"first {dims}, int8"] = TruncatedSearcher(searcher, dims=dims, int8=True)
    return found
