"""A corpus in coarse lists, of which a search visits those nearest to the query."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from bidr.quantization.codebooks import Codebooks
from bidr.quantization.pq_training import FIT_ROWS
from bidr.quantization.torch_kmeans import assign, kmeans
from bidr.utils.array_types import Codes, Floats

AT_ONCE = 65_536


class Lists(NamedTuple):
    """centroids: (lists, rotated_dim), to be compared with rotated queries; of: every document's list."""

    centroids: Floats
    of: npt.NDArray[np.int64]


class Visited(NamedTuple):
    """What visiting a query's nearest lists gives and costs."""

    recall: float
    """Mean share of a query's positives that lie in them."""
    documents: float
    """Mean share of the corpus that lies in them."""


def coarse_lists(codebooks: Codebooks, codes: Codes, count: int, *, seed: int = 0, device: str = "cpu") -> Lists:
    """Lists around the means of documents as their codes say them."""
    rows = np.sort(np.random.default_rng(seed).permutation(len(codes))[:FIT_ROWS])
    sample = torch.as_tensor(codebooks.decode(np.asarray(codes[rows])), device=device)
    centroids = kmeans(sample, count, seed=seed)
    of = [
        assign(torch.as_tensor(codebooks.decode(np.asarray(codes[at : at + AT_ONCE])), device=device), centroids[None])
        for at in range(0, len(codes), AT_ONCE)
    ]
    return Lists(centroids.cpu().numpy(), torch.cat(of).flatten().cpu().numpy())


def visited(
    rotated: Floats, lists: Lists, positives: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]], probes: int
) -> Visited:
    """What the nearest so many lists hold. positives: (place in queries, document row) of each."""
    near = np.argsort(-(rotated @ lists.centroids.T), axis=1, kind="stable")[:, :probes]
    places, rows = positives
    hits = (near[places] == lists.of[rows][:, None]).any(axis=1)
    counts = np.bincount(places, minlength=len(rotated))
    recall = (np.bincount(places, weights=hits, minlength=len(rotated)) / np.maximum(counts, 1)).mean()
    sizes = np.bincount(lists.of, minlength=len(lists.centroids)) / len(lists.of)
    return Visited(float(recall), float(sizes[near].sum(axis=1).mean()))
