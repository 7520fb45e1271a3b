"""InfoNCE over a batch's shared documents, with all labeled positives of a query masked."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from bidr.data.positives import Positives
from bidr.training.negatives.samplers import Batch
from bidr.utils.array_types import Rows

NO_POSITIONS: Rows = np.empty((0, 0), dtype=np.int64)
NO_ROWS: Rows = np.empty(0, dtype=np.int64)


class TeacherScores(NamedTuple):
    """A teacher's scores of a batch.

    positions: (queries, n) scored documents, as positions in the batch; None: all.
    scores:    (queries, n) logits; nan where the teacher has no score.
    """

    positions: Rows | None
    scores: npt.NDArray[np.floating[Any]]


class Contrast(NamedTuple):
    """Documents of a batch and the role of each for each query.

    documents:      distinct document rows; a repeated one is encoded and counted once.
    targets:        position of each query's positive among them.
    hidden:         (query positions, document positions) of other positives, which are masked.
    hard_negatives: (queries, n) positions of the negatives drawn for the query itself.
    """

    documents: Rows
    targets: Rows
    hidden: tuple[Rows, Rows]
    hard_negatives: Rows = NO_POSITIONS
    teacher: TeacherScores | None = None


def make_contrast(batch: Batch, pairs: Positives, crops: Rows = NO_ROWS) -> Contrast:
    """Collect a batch's documents, targets and masks.

    Args:
        crops: Rows of documents whose passages are queries too, after the batch's queries.
    """
    rows = np.concatenate([batch.positives, crops, batch.negatives.ravel()])
    documents, positions = np.unique(rows, return_inverse=True)
    count, query_count = len(batch.queries), len(batch.queries) + len(crops)
    targets, hard_negatives = positions[:query_count], positions[query_count:]
    # Negatives that were not drawn per query are shared by all queries.
    hard_negatives = (
        hard_negatives.reshape(count, -1) if len(batch.negatives) == count else np.empty((count, 0), dtype=np.int64)
    )
    queries, positives = pairs.list_edges(batch.queries)
    positive_positions = np.searchsorted(documents, positives).clip(max=len(documents) - 1)
    other = (documents[positive_positions] == positives) & (positive_positions != targets[queries])
    return Contrast(documents, targets, (queries[other], positive_positions[other]), hard_negatives)


def infonce(scores: Tensor, targets: Rows, hidden: tuple[Rows, Rows], live_margin: float | None = None) -> Tensor:
    """Cross-entropy of the positive among all documents of the batch that are not masked.

    Args:
        live_margin: Mask documents that score above the positive minus this.
    """
    positions = copy_to_device(scores, targets)
    if live_margin is not None:
        threshold = scores.detach().gather(1, positions[:, None]) - live_margin
        above = (scores.detach() > threshold).scatter(1, positions[:, None], False)
        scores = scores.masked_fill(above, -torch.inf)
    if len(hidden[0]):
        mask = torch.zeros_like(scores, dtype=torch.bool)
        mask[copy_to_device(scores, hidden[0]), copy_to_device(scores, hidden[1])] = True
        scores = scores.masked_fill(mask, -torch.inf)
    return functional.cross_entropy(scores, positions)


def hard_negative_infonce(scores: Tensor, contrast: Contrast) -> Tensor:
    """Cross-entropy of the positive among itself and the query's hard negatives."""
    positions = np.concatenate([contrast.targets[:, None], contrast.hard_negatives], axis=1)
    compared = scores.gather(1, copy_to_device(scores, positions))
    return functional.cross_entropy(compared, torch.zeros(len(positions), dtype=torch.int64, device=scores.device))


def ranking_divergence(scores: Tensor, teacher: TeacherScores) -> Tensor:
    """Mean KL divergence between the softmax of the scores and the teacher's."""
    teacher_scores = copy_to_device(scores, np.asarray(teacher.scores, dtype=np.float32))
    scores = scores[: len(teacher_scores)]
    if teacher.positions is not None:
        scores = scores.gather(1, copy_to_device(scores, teacher.positions))
    has_score = teacher_scores.isfinite()
    # Not -inf: on both sides it would make the divergence nan.
    teacher_scores, scores = (logits.masked_fill(~has_score, -1e4) for logits in (teacher_scores, scores))
    return functional.kl_div(
        scores.log_softmax(1), teacher_scores.log_softmax(1), reduction="batchmean", log_target=True
    )


def copy_to_device(scores: Tensor, values: npt.NDArray[Any]) -> Tensor:
    """Copy an array to the scores' device asynchronously."""
    return torch.from_numpy(values).to(scores.device, non_blocking=True)
