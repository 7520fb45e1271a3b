"""JPQ: codewords learned for fixed codes, with dynamic hard negatives."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from bidr.models.trainable_encoder import Encoder
from bidr.quantization.codebooks import Codebooks
from bidr.training.losses.full_corpus_infonce import decode
from bidr.training.losses.infonce import Contrast
from bidr.training.losses.shared_query_encoder import FixedDocuments, UnifyObjective
from bidr.utils.array_types import Rows

DOCUMENTS_PER_BLOCK = 65_536


class JpqObjective(UnifyObjective):
    """Query unification that learns the codewords too; the documents' codes are fixed.

    top: number of negatives per query: the documents that its codes rank highest at this step; None: use the pool.
    """

    def __init__(
        self, encoder: Encoder, fixed: FixedDocuments, *args: Any, pool: int, top: int | None, **kwargs: Any
    ) -> None:
        # With a pool of 0, targets and masks are corpus rows, as `search_hard_negatives` needs. Codewords that learn
        # against the whole corpus use it as a pool.
        super().__init__(encoder, fixed, *args, pool=0 if top else pool or len(fixed.codes), **kwargs)
        self.top = top
        self._all_coded = None
        self._centroids = nn.Parameter(self._centroids.clone())

    def _compute_codes_loss(self, queries: Tensor, contrast: Contrast) -> Tensor:
        if self._codes is None or self.top is None:
            return super()._compute_codes_loss(queries, contrast)
        positives = torch.from_numpy(contrast.targets).to(queries.device)
        rows = torch.cat([positives[:, None], self.search_hard_negatives(queries.detach(), contrast)], dim=1)
        words = decode(self._codes[rows.flatten()], self._centroids).view(*rows.shape, -1)
        scores = torch.einsum("qd,qnd->qn", queries, words)
        return functional.cross_entropy(self.scale * scores, torch.zeros_like(positives))

    @torch.no_grad()
    def search_hard_negatives(self, queries: Tensor, contrast: Contrast) -> Tensor:
        """Search the rows that the codes rank highest for each (rotated) query, without its positives."""
        assert self._codes is not None
        query_positions, positive_rows = (
            torch.from_numpy(array).to(queries.device) for array in _list_positives(contrast)
        )
        best = torch.empty(len(queries), 0, device=queries.device)
        rows = torch.empty(len(queries), 0, dtype=torch.int64, device=queries.device)
        count = min(self.top or 1, len(self._codes) - int(query_positions.bincount().max()))
        for start in range(0, len(self._codes), DOCUMENTS_PER_BLOCK):
            block = self._codes[start : start + DOCUMENTS_PER_BLOCK]
            scores = queries @ decode(block, self._centroids).T
            inside = (positive_rows >= start) & (positive_rows < start + len(block))
            scores[query_positions[inside], positive_rows[inside] - start] = -torch.inf
            scores_in_block, numbers = scores.topk(min(count, len(block)), dim=1)
            best, rows = torch.cat([best, scores_in_block], dim=1), torch.cat([rows, numbers + start], dim=1)
            best, order = best.topk(min(count, best.shape[1]), dim=1)
            rows = rows.gather(1, order)
        return rows

    def make_param_groups(self, rate: float, decay: float) -> list[dict[str, object]]:
        codewords = {"params": [self._centroids], "lr": rate * self.codebook_rate, "weight_decay": 0.0}
        return [*super().make_param_groups(rate, decay), codewords]

    def get_codebooks(self) -> Codebooks:
        fixed, learned = self.fixed.codebooks, self._centroids.detach().cpu().numpy().copy()
        return fixed._replace(centroids=learned, choosing=fixed.centroids if fixed.choosing is None else fixed.choosing)


def _list_positives(contrast: Contrast) -> tuple[Rows, Rows]:
    """List the (query position, row) of every positive."""
    queries = np.arange(len(contrast.targets))
    return np.concatenate([queries, contrast.hidden[0]]), np.concatenate([contrast.targets, contrast.hidden[1]])
