"""InfoNCE over a batch's shared documents, with every known positive of a query kept out of its negatives."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from bidr.data.positives import Positives
from bidr.training.negatives.samplers import Batch
from bidr.utils.array_types import Rows

NO_PLACES: Rows = np.empty((0, 0), dtype=np.int64)
NO_ROWS: Rows = np.empty(0, dtype=np.int64)


class TeacherScores(NamedTuple):
    """A teacher's scores of a batch.

    places: (queries, n) which documents of the batch are meant; None: all.
    scores: (queries, n) as they go into the softmax; nan where the teacher does not say.
    """

    places: Rows | None
    scores: npt.NDArray[np.floating[Any]]


class Contrast(NamedTuple):
    """What a batch compares.

    documents: distinct document rows; one that occurs twice is encoded and counted once.
    targets:   for every query the place of its positive among them.
    hidden:    (places in queries, places in documents) of other positives, which are no negatives.
    own:       (queries, each) places of the negatives that were drawn for the query itself.
    """

    documents: Rows
    targets: Rows
    hidden: tuple[Rows, Rows]
    own: Rows = NO_PLACES
    taught: TeacherScores | None = None


def make_contrast(batch: Batch, pairs: Positives, crops: Rows = NO_ROWS) -> Contrast:
    """Collect a batch's documents and what must be hidden from whom.

    crops: documents that ask for themselves, behind the batch's queries.
    """
    together = np.concatenate([batch.positives, crops, batch.negatives.ravel()])
    documents, places = np.unique(together, return_inverse=True)
    count, asked = len(batch.queries), len(batch.queries) + len(crops)
    targets, own = places[:asked], places[asked:]
    # Negatives that belong to nobody in particular are shared by all.
    own = own.reshape(count, -1) if len(batch.negatives) == count else np.empty((count, 0), dtype=np.int64)
    queries, positives = pairs.list_edges(batch.queries)
    spots = np.searchsorted(documents, positives).clip(max=len(documents) - 1)
    other = (documents[spots] == positives) & (spots != targets[queries])
    return Contrast(documents, targets, (queries[other], spots[other]), own)


def infonce(scores: Tensor, targets: Rows, hidden: tuple[Rows, Rows], live_margin: float | None = None) -> Tensor:
    """Cross-entropy of the positive among all documents of the batch that are not hidden from the query.

    live_margin: hide also what scores above the positive minus this.
    """
    places = copy_to_device(scores, targets)
    if live_margin is not None:
        least = scores.detach().gather(1, places[:, None]) - live_margin
        doubtful = (scores.detach() > least).scatter(1, places[:, None], False)
        scores = scores.masked_fill(doubtful, -torch.inf)
    if len(hidden[0]):
        mask = torch.zeros_like(scores, dtype=torch.bool)
        mask[copy_to_device(scores, hidden[0]), copy_to_device(scores, hidden[1])] = True
        scores = scores.masked_fill(mask, -torch.inf)
    return functional.cross_entropy(scores, places)


def hard_negative_infonce(scores: Tensor, given: Contrast) -> Tensor:
    """Cross-entropy of the positive among it and the query's own negatives alone."""
    places = np.concatenate([given.targets[:, None], given.own], axis=1)
    compared = scores.gather(1, copy_to_device(scores, places))
    return functional.cross_entropy(compared, torch.zeros(len(places), dtype=torch.int64, device=scores.device))


def ranking_divergence(scores: Tensor, taught: TeacherScores) -> Tensor:
    """How far the ranking by these scores is from the teacher's: mean KL of the two softmaxes."""
    wanted = copy_to_device(scores, np.asarray(taught.scores, dtype=np.float32))
    scores = scores[: len(wanted)]
    if taught.places is not None:
        scores = scores.gather(1, copy_to_device(scores, taught.places))
    said = wanted.isfinite()
    # Not -inf: where it stands on both sides the divergence would be nan.
    wanted, scores = (each.masked_fill(~said, -1e4) for each in (wanted, scores))
    return functional.kl_div(scores.log_softmax(1), wanted.log_softmax(1), reduction="batchmean", log_target=True)


def copy_to_device(scores: Tensor, values: npt.NDArray[Any]) -> Tensor:
    """Beside the scores, without waiting until the device has come that far."""
    return torch.from_numpy(values).to(scores.device, non_blocking=True)
