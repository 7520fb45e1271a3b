"""Codewords learned for documents that keep their codes, against what the codes rank highest at each step (JPQ)."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from bidr.models.encoder import Encoder
from bidr.quantization.codebooks import Codebooks
from bidr.training.losses.full_corpus_infonce import decode
from bidr.training.losses.infonce import Contrast
from bidr.training.losses.query_unification import FixedDocuments, UnifyObjective
from bidr.utils.array_types import Rows

DOCUMENTS_AT_ONCE = 65_536


class JpqObjective(UnifyObjective):
    """Unification in which the codewords learn as well; the documents' codes stay.

    top: the sparse term compares with so many documents, those that the codes rank highest for the query at this very
         step; None: with the pool.
    """

    def __init__(
        self, encoder: Encoder, fixed: FixedDocuments, *args: Any, pool: int, top: int | None, **kwargs: Any
    ) -> None:
        # Without a pool a batch's targets and what is hidden from it are rows of the corpus: what the highest need.
        # Where words learn against all of the corpus, that is a pool like another.
        super().__init__(encoder, fixed, *args, pool=0 if top else pool or len(fixed.codes), **kwargs)
        self.top = top
        self._all_coded = None
        self._centroids = nn.Parameter(self._centroids.clone())

    def _codes_term(self, queries: Tensor, compared: Contrast) -> Tensor:
        if self._codes is None or self.top is None:
            return super()._codes_term(queries, compared)
        positives = torch.from_numpy(compared.targets).to(queries.device)
        rows = torch.cat([positives[:, None], self.highest(queries.detach(), compared)], dim=1)
        words = decode(self._codes[rows.flatten()], self._centroids).view(*rows.shape, -1)
        scores = torch.einsum("qd,qnd->qn", queries, words)
        return functional.cross_entropy(self.scale * scores, torch.zeros_like(positives))

    @torch.no_grad()
    def highest(self, queries: Tensor, compared: Contrast) -> Tensor:
        """Rows that the codes rank highest for each (rotated) query, its positives left out."""
        assert self._codes is not None
        places, own = (torch.from_numpy(each).to(queries.device) for each in _known(compared))
        best = torch.empty(len(queries), 0, device=queries.device)
        rows = torch.empty(len(queries), 0, dtype=torch.int64, device=queries.device)
        most = min(self.top or 1, len(self._codes) - int(places.bincount().max()))
        for start in range(0, len(self._codes), DOCUMENTS_AT_ONCE):
            block = self._codes[start : start + DOCUMENTS_AT_ONCE]
            scores = queries @ decode(block, self._centroids).T
            inside = (own >= start) & (own < start + len(block))
            scores[places[inside], own[inside] - start] = -torch.inf
            near, numbers = scores.topk(min(most, len(block)), dim=1)
            best, rows = torch.cat([best, near], dim=1), torch.cat([rows, numbers + start], dim=1)
            best, order = best.topk(min(most, best.shape[1]), dim=1)
            rows = rows.gather(1, order)
        return rows

    def groups(self, rate: float, decay: float) -> list[dict[str, object]]:
        codewords = {"params": [self._centroids], "lr": rate * self.codebook_rate, "weight_decay": 0.0}
        return [*super().groups(rate, decay), codewords]

    def codebooks(self) -> Codebooks:
        fixed, learned = self.fixed.codebooks, self._centroids.detach().cpu().numpy().copy()
        return fixed._replace(centroids=learned, choosing=fixed.centroids if fixed.choosing is None else fixed.choosing)


def _known(compared: Contrast) -> tuple[Rows, Rows]:
    """Every (place in queries, row) of a positive."""
    count = np.arange(len(compared.targets))
    return np.concatenate([count, compared.hidden[0]]), np.concatenate([compared.targets, compared.hidden[1]])
