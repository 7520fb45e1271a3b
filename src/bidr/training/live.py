"""Codewords learned for documents that keep their codes, against what the codes rank highest at each step (JPQ)."""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from bidr.codes import Codebooks
from bidr.model.encoder import Encoder
from bidr.negatives.pairs import Rows
from bidr.negatives.samplers import Batch
from bidr.training.objectives import FixedDocuments, Prepared, Unified, UnifyGiven
from bidr.training.whole import decode

DOCUMENTS_AT_ONCE = 65_536


class LiveGiven(NamedTuple):
    """What a step compares, and every (place in queries, row) of a positive, which no query is told apart from."""

    unify: UnifyGiven
    known: tuple[Rows, Rows]


class LiveCodes(Unified):
    """Unification in which the codewords learn as well; the documents' codes stay.

    top: the sparse term compares with so many documents, those that the codes rank highest for the query at this very
         step; None: with the pool.
    """

    def __init__(
        self,
        encoder: Encoder,
        fixed: FixedDocuments,
        *args: Any,
        pool: int,
        top: int | None,
        codebook_rate: float,
        **kwargs: Any,
    ) -> None:
        # The pool is not looked at where the highest are; all of the corpus is a pool like another, since words learn.
        pool = 1 if top else pool or len(fixed.codes)
        super().__init__(encoder, fixed, *args, pool=pool, **kwargs)
        self.top, self.codebook_rate = top, codebook_rate
        self._all_coded = None
        self._centroids = nn.Parameter(self._centroids.clone())
        self._documents = torch.tensor(np.asarray(fixed.codes), device=self._centroids.device)

    def prepare(self, batch: Batch, random: np.random.Generator) -> Prepared:
        found = super().prepare(batch, random)
        return found._replace(given=LiveGiven(found.given, self.questions.pairs.edges(batch.queries)))

    def terms(self, vectors: Sequence[Tensor], given: Any) -> dict[str, Tensor]:
        live = cast(LiveGiven, given)
        if self.top is None:
            return super().terms(vectors, live.unify)
        codes = self._highest_term(vectors[0] @ self._rotation.T, live)
        return {"codes": codes, "dense": self.dense_weight * self._dense_term(vectors[0], live.unify)}

    def _highest_term(self, queries: Tensor, live: LiveGiven) -> Tensor:
        sparse = live.unify.sparse
        positives = torch.from_numpy(sparse.documents[sparse.targets]).to(self._documents.device)
        rows = torch.cat([positives[:, None], self.highest(queries.detach(), live.known)], dim=1)
        words = decode(self._documents[rows.flatten()], self._centroids).view(*rows.shape, -1)
        scores = torch.einsum("qd,qnd->qn", queries, words)
        target = torch.zeros(len(rows), dtype=torch.int64, device=scores.device)
        return functional.cross_entropy(self.scale * scores, target)

    @torch.no_grad()
    def highest(self, rotated: Tensor, known: tuple[Rows, Rows]) -> Tensor:
        """Rows that the codes rank highest for each query, its positives left out."""
        places, own = (torch.from_numpy(each).to(rotated.device) for each in known)
        best = torch.empty(len(rotated), 0, device=rotated.device)
        rows = torch.empty(len(rotated), 0, dtype=torch.int64, device=rotated.device)
        most = min(self.top or 1, max(1, len(self._documents) - int(np.bincount(known[0]).max())))
        for start in range(0, len(self._documents), DOCUMENTS_AT_ONCE):
            block = self._documents[start : start + DOCUMENTS_AT_ONCE]
            scores = rotated @ decode(block, self._centroids).T
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
        return Codebooks(fixed.rotation, learned, fixed.centroids if fixed.choosing is None else fixed.choosing)
