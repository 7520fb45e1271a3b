"""InfoNCE against every document of a corpus by its codes, a block at a time: neither all vectors nor all scores are
ever there at once."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from bidr.data.positives import Positives
from bidr.training.losses.infonce import Contrast
from bidr.training.negatives.samplers import Batch

SCORES_AT_ONCE = 1 << 25
MOST_ROWS = 1 << 16


def make_full_corpus_contrast(batch: Batch, pairs: Positives) -> Contrast:
    """Every document is compared with: rows of the corpus stand for themselves, other positives are hidden."""
    queries, positives = pairs.list_edges(batch.queries)
    other = positives != batch.positives[queries]
    order = np.argsort(positives[other], kind="stable")
    hidden = queries[other][order], positives[other][order]
    nothing = np.empty(0, dtype=np.int64)
    return Contrast(nothing, batch.positives, hidden, nothing)


def full_corpus_infonce(queries: Tensor, codes: Tensor, centroids: Tensor, compared: Contrast) -> Tensor:
    """Mean cross-entropy of the positive among all codes (n, M).

    queries: rotated, and scaled as the scores should be.
    """
    targets = torch.from_numpy(compared.targets).to(codes.device, non_blocking=True)
    own = (queries * decode(codes[targets], centroids)).sum(1)
    total: Tensor = _LogSumExp.apply(queries, codes, centroids, compared.hidden)  # type: ignore[no-untyped-call]
    return (total - own).mean()


def decode(codes: Tensor, centroids: Tensor) -> Tensor:
    """Codes as the codewords side by side."""
    books = torch.arange(len(centroids), device=codes.device)
    decoded: Tensor = centroids[books, codes.long()].flatten(1)
    return decoded


class _LogSumExp(torch.autograd.Function):
    """Of each query's scores with all documents that are not hidden from it.

    Its gradient is the mean document under the softmax, which is summed up in the same pass over the blocks.
    """

    @staticmethod
    def forward(ctx: Any, queries: Tensor, codes: Tensor, centroids: Tensor, hidden: Any) -> Tensor:
        who, what = (torch.from_numpy(part).to(codes.device, non_blocking=True) for part in hidden)
        rows = max(1, min(MOST_ROWS, SCORES_AT_ONCE // len(queries)))
        largest = queries.new_full((len(queries), 1), torch.finfo(queries.dtype).min)
        total, mean = torch.zeros_like(largest), torch.zeros_like(queries)
        for start in range(0, len(codes), rows):
            documents = decode(codes[start : start + rows], centroids)
            scores = queries @ documents.T
            first, end = np.searchsorted(hidden[1], [start, start + rows]).tolist()
            scores[who[first:end], what[first:end] - start] = -torch.inf
            larger = torch.maximum(largest, scores.amax(1, keepdim=True))
            before, shares = (largest - larger).exp(), (scores - larger).exp_()
            total = total * before + shares.sum(1, keepdim=True)
            mean = mean * before + shares @ documents
            largest = larger
        ctx.save_for_backward(mean / total)
        return (largest + total.log()).squeeze(1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (mean,) = ctx.saved_tensors
        return gradients[0].unsqueeze(1) * mean, None, None, None
