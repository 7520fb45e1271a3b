"""InfoNCE against all documents of a corpus by their codes, with a streamed logsumexp over blocks."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from bidr.data.positives import Positives
from bidr.training.losses.infonce import Contrast
from bidr.training.negatives.samplers import Batch

SCORES_PER_BLOCK = 1 << 25
MAX_ROWS_PER_BLOCK = 1 << 16


def make_full_corpus_contrast(batch: Batch, pairs: Positives) -> Contrast:
    """Make the contrast with the whole corpus: positions are corpus rows, other positives are masked."""
    queries, positives = pairs.list_edges(batch.queries)
    other = positives != batch.positives[queries]
    order = np.argsort(positives[other], kind="stable")
    hidden = queries[other][order], positives[other][order]
    no_rows = np.empty(0, dtype=np.int64)
    return Contrast(no_rows, batch.positives, hidden, no_rows)


def full_corpus_infonce(queries: Tensor, codes: Tensor, centroids: Tensor, contrast: Contrast) -> Tensor:
    """Mean cross-entropy of the positive among all codes (n, M).

    Args:
        queries: Rotated, and scaled by the temperature.
    """
    targets = torch.from_numpy(contrast.targets).to(codes.device, non_blocking=True)
    positive_scores = (queries * decode(codes[targets], centroids)).sum(1)
    total: Tensor = _LogSumExp.apply(queries, codes, centroids, contrast.hidden)  # type: ignore[no-untyped-call]
    return (total - positive_scores).mean()


def decode(codes: Tensor, centroids: Tensor) -> Tensor:
    """Decode PQ codes: the codewords of all books, concatenated."""
    books = torch.arange(len(centroids), device=codes.device)
    decoded: Tensor = centroids[books, codes.long()].flatten(1)
    return decoded


class _LogSumExp(torch.autograd.Function):
    """Logsumexp of each query's scores with all unmasked documents.

    Its gradient, the mean document under the softmax, is accumulated in the same pass over the blocks.
    """

    @staticmethod
    def forward(ctx: Any, queries: Tensor, codes: Tensor, centroids: Tensor, hidden: Any) -> Tensor:
        hidden_queries, hidden_documents = (
            torch.from_numpy(part).to(codes.device, non_blocking=True) for part in hidden
        )
        rows = max(1, min(MAX_ROWS_PER_BLOCK, SCORES_PER_BLOCK // len(queries)))
        largest = queries.new_full((len(queries), 1), torch.finfo(queries.dtype).min)
        total, mean = torch.zeros_like(largest), torch.zeros_like(queries)
        for start in range(0, len(codes), rows):
            documents = decode(codes[start : start + rows], centroids)
            scores = queries @ documents.T
            first, end = np.searchsorted(hidden[1], [start, start + rows]).tolist()
            scores[hidden_queries[first:end], hidden_documents[first:end] - start] = -torch.inf
            larger = torch.maximum(largest, scores.amax(1, keepdim=True))
            rescale, shares = (largest - larger).exp(), (scores - larger).exp_()
            total = total * rescale + shares.sum(1, keepdim=True)
            mean = mean * rescale + shares @ documents
            largest = larger
        ctx.save_for_backward(mean / total)
        return (largest + total.log()).squeeze(1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (mean,) = ctx.saved_tensors
        return gradients[0].unsqueeze(1) * mean, None, None, None
