"""IVF lists: learned centroids of a model, and the assignment and probe statistics that their training needs."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bidr.errors import DataError, ModelError
from bidr.quantization.codebooks import READ_ERRORS, Codebooks, check_arrays, load_arrays
from bidr.utils.array_types import Codes, Floats
from bidr.utils.reproducible_matmul import matmul_transposed

ROWS_PER_BLOCK = 65_536


class LearnedIvf(NamedTuple):
    """Two points per list, (lists, dim) each, in query space.

    means:   a document belongs to the list whose mean is nearest to its decoded codes.
    learned: a query probes the lists whose learned centroids have the largest inner products with it.
    """

    means: Floats
    learned: Floats

    @classmethod
    def from_rotated(cls, codebooks: Codebooks, means: Floats, learned: Floats) -> "LearnedIvf":
        """Convert points from codeword space, where they are learned; a rotation preserves distances."""
        return cls(*(matmul_transposed(points, codebooks.rotation.T) for points in (means, learned)))

    def check(self, dim: int) -> None:
        """Raise DataError for points that are not in a query space of `dim` dimensions."""
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
        """Serialize to the safetensors format."""
        from safetensors.numpy import save

        arrays = {name: np.ascontiguousarray(points, dtype=np.float32) for name, points in self._asdict().items()}
        return bytes(save(arrays))

    @classmethod
    def load(cls, path: Path) -> "LearnedIvf":
        from safetensors import SafetensorError

        try:
            lists = cls(**load_arrays(path))
            check_arrays(lists._asdict(), {"means": 2, "learned": 2})
            if lists.means.shape != lists.learned.shape:
                raise ValueError(f"means of shape {lists.means.shape}, learned centroids of {lists.learned.shape}")
            return lists
        except (*READ_ERRORS, SafetensorError) as error:
            raise ModelError(f"{path}: not a file of lists ({error}); build or train it again") from error


class IvfAssignment(NamedTuple):
    """centroids: (lists, rotated_dim), compared with rotated queries; of: the list of each document."""

    centroids: Floats
    of: npt.NDArray[np.int64]


class ProbeStats(NamedTuple):
    """Recall and cost of probing the nearest lists of each query."""

    recall: float
    """Mean share of a query's positives in the probed lists."""
    documents: float
    """Mean share of the corpus in the probed lists."""


def assign_to_lists(
    codebooks: Codebooks, codes: Codes, count: int, *, seed: int = 0, device: str = "cpu"
) -> IvfAssignment:
    """Cluster decoded documents into `count` lists by k-means in torch."""
    import torch

    from bidr.quantization.pq_training import FIT_ROWS
    from bidr.quantization.torch_kmeans import assign, fit_kmeans

    rows = np.sort(np.random.default_rng(seed).permutation(len(codes))[:FIT_ROWS])
    sample = torch.as_tensor(codebooks.decode(np.asarray(codes[rows])), device=device)
    centroids = fit_kmeans(sample, count, seed=seed)
    blocks = (np.asarray(codes[start : start + ROWS_PER_BLOCK]) for start in range(0, len(codes), ROWS_PER_BLOCK))
    of = [assign(torch.as_tensor(codebooks.decode(block), device=device), centroids[None]) for block in blocks]
    return IvfAssignment(centroids.cpu().numpy(), torch.cat(of).flatten().cpu().numpy())


def measure_probes(
    rotated: Floats, lists: IvfAssignment, positives: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]], nprobe: int
) -> ProbeStats:
    """Measure recall and cost of probing `nprobe` lists; `positives` are (query index, document row) arrays."""
    probed = np.argsort(-(rotated @ lists.centroids.T), axis=1, kind="stable")[:, :nprobe]
    queries, rows = positives
    hits = (probed[queries] == lists.of[rows][:, None]).any(axis=1)
    counts = np.bincount(queries, minlength=len(rotated))
    recall = (np.bincount(queries, weights=hits, minlength=len(rotated)) / np.maximum(counts, 1)).mean()
    sizes = np.bincount(lists.of, minlength=len(lists.centroids)) / len(lists.of)
    return ProbeStats(float(recall), float(sizes[probed].sum(axis=1).mean()))
