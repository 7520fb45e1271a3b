"""Coarse lists that a model has learned: which list a document belongs to, and which lists a query should visit."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from bidr.errors import DataError, ModelError
from bidr.quantization.codebooks import UNREADABLE, Codebooks, check_arrays, load_arrays
from bidr.utils.array_types import Floats
from bidr.utils.matmul import matmul_transposed


class LearnedLists(NamedTuple):
    """Two points for every list, (lists, dim) each, in the space of queries.

    means:   a document, as its codes say it, belongs to the list whose mean is nearest.
    learned: a query visits the lists whose learned centroids have the largest inner products with it.
    """

    means: Floats
    learned: Floats

    @classmethod
    def from_rotated(cls, codebooks: Codebooks, means: Floats, learned: Floats) -> "LearnedLists":
        """From the space of codewords, in which they are learned: a rotation changes no distance."""
        return cls(*(matmul_transposed(points, codebooks.rotation.T) for points in (means, learned)))

    def check(self, dim: int) -> None:
        """Refuse points that are not of the space of queries."""
        expected = (len(self.means), dim)
        if self.means.shape != expected or self.learned.shape != expected or not len(self.means):
            raise DataError(
                f"lists: given means of shape {self.means.shape} and learned centroids of {self.learned.shape}, "
                f"expected both of (lists, {dim}); use those of the model that made the codes"
            )
        if not all(np.isfinite(points).all() for points in self):
            raise DataError("lists: a mean or centroid holds a number that is not finite; train the model again")

    def save(self, path: Path) -> None:
        path.write_bytes(self.to_bytes())

    def to_bytes(self) -> bytes:
        """As a safetensors file."""
        from safetensors.numpy import save

        arrays = {name: np.ascontiguousarray(points, dtype=np.float32) for name, points in self._asdict().items()}
        return bytes(save(arrays))

    @classmethod
    def load(cls, path: Path) -> "LearnedLists":
        from safetensors import SafetensorError

        try:
            found = cls(**load_arrays(path))
            check_arrays(found._asdict(), {"means": 2, "learned": 2})
            if found.means.shape != found.learned.shape:
                raise ValueError(f"means of shape {found.means.shape}, learned centroids of {found.learned.shape}")
            return found
        except (*UNREADABLE, SafetensorError) as error:
            raise ModelError(f"{path}: not a file of lists ({error}); build or train it again") from error
