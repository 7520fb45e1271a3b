"""InfoNCE over a batch's shared documents, with every known positive of a query kept out of its negatives."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from bidr.negatives.pairs import Pairs, Rows
from bidr.negatives.samplers import Batch


class Contrast(NamedTuple):
    """What a batch compares.

    documents: distinct document rows; one that occurs twice is encoded and counted once.
    targets:   for every query the place of its positive among them.
    hidden:    (places in queries, places in documents) of other positives, which are no negatives.
    """

    documents: Rows
    targets: Rows
    hidden: tuple[Rows, Rows]


def contrast(batch: Batch, pairs: Pairs) -> Contrast:
    """Collect a batch's documents and what must be hidden from whom."""
    documents, places = np.unique(np.concatenate([batch.positives, batch.negatives]), return_inverse=True)
    targets = places[: len(batch.queries)]
    queries, positives = pairs.edges(batch.queries)
    spots = np.searchsorted(documents, positives).clip(max=len(documents) - 1)
    other = (documents[spots] == positives) & (spots != targets[queries])
    return Contrast(documents, targets, (queries[other], spots[other]))


def info_nce(scores: Tensor, targets: Rows, hidden: tuple[Rows, Rows]) -> Tensor:
    """Cross-entropy of the positive among all documents of the batch that are not hidden from the query."""
    if len(hidden[0]):
        mask = torch.zeros_like(scores, dtype=torch.bool)
        mask[_on(scores, hidden[0]), _on(scores, hidden[1])] = True
        scores = scores.masked_fill(mask, -torch.inf)
    return functional.cross_entropy(scores, _on(scores, targets))


def _on(scores: Tensor, rows: Rows) -> Tensor:
    """Beside the scores, without waiting until the device has come that far."""
    return torch.from_numpy(rows).to(scores.device, non_blocking=True)
