"""Query unification: one query encoder for codes and vectors, with fixed documents."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from bidr.models.trainable_encoder import Encoder
from bidr.quantization.codebooks import Codebooks
from bidr.quantization.learned_ivf import IvfAssignment
from bidr.training.data import Questions
from bidr.training.losses.full_corpus_infonce import full_corpus_infonce, make_full_corpus_contrast
from bidr.training.losses.infonce import Contrast, infonce, make_contrast
from bidr.training.losses.objectives import Objective, PreparedBatch
from bidr.training.negatives.samplers import Batch
from bidr.utils.array_types import Rows

LISTS = "lists.npz"


class FixedDocuments(NamedTuple):
    """Codes and vectors of the corpus, both fixed.

    candidates: (train queries, n) candidate rows by the codes, padded with -1, without positives.
    """

    codebooks: Codebooks
    codes: npt.NDArray[np.uint8]
    vectors: npt.NDArray[np.floating]
    candidates: Rows


class UnifyComparison(NamedTuple):
    """Contrasts of a step: documents by codes, documents by vectors, and each query's candidates."""

    sparse: Contrast
    dense: Contrast
    candidates: Rows


class UnifyObjective(Objective):
    """One query encoder for both sides, documents fixed: the paper's equation 9.

    The sparse term contrasts with the corpus' codes (a random `pool` of them if there are more; pool 0: always all, in
    blocks), the dense term with the vectors of `own` of the query's candidates and of `others` random documents. No
    document is encoded.

    lists: IVF lists whose centroids are trained towards the queries whose positives they hold.
    """

    def __init__(
        self,
        encoder: Encoder,
        fixed: FixedDocuments,
        questions: Questions,
        scale: float,
        *,
        pool: int,
        own: int,
        others: int,
        dense_weight: float,
        lists: IvfAssignment | None = None,
        codebook_rate: float = 1.0,
    ) -> None:
        super().__init__()
        self.encoder, self.fixed, self.questions, self.scale = encoder, fixed, questions, scale
        self.lists, self.codebook_rate = lists, codebook_rate
        if lists:
            self.list_centroids = nn.Parameter(torch.tensor(lists.centroids, device=encoder.device))
        self.pool, self.own, self.others, self.dense_weight = pool, own, others, dense_weight
        self._rotation = torch.as_tensor(fixed.codebooks.rotation, device=encoder.device)
        self._centroids = torch.as_tensor(fixed.codebooks.centroids, device=encoder.device)
        self._all_coded = self._decode(np.arange(len(fixed.codes))) if len(fixed.codes) <= pool else None
        self._codes = torch.as_tensor(np.array(fixed.codes), device=encoder.device) if not pool else None

    def prepare(self, batch: Batch, random: np.random.Generator) -> PreparedBatch:
        pairs = self.questions.pairs
        sparse = (
            self._contrast_with_random(batch, self.pool, random)
            if self.pool
            else make_full_corpus_contrast(batch, pairs)
        )
        dense = self._contrast_with_random(batch, self.others, random)
        comparison = UnifyComparison(sparse, dense, self._draw_candidates(batch, dense.documents, random))
        return PreparedBatch(batch.queries, (self.questions.tokens.get_batch(batch.queries),), comparison)

    def compute_terms(self, vectors: Sequence[Tensor], comparison: UnifyComparison) -> dict[str, Tensor]:
        (queries,) = vectors
        rotated = queries @ self._rotation.T
        codes = self._compute_codes_loss(rotated, comparison.sparse)
        losses = {"codes": codes, "dense": self.dense_weight * self._compute_dense_loss(queries, comparison)}
        if self.lists:
            target_lists = torch.from_numpy(self.lists.of[comparison.dense.documents[comparison.dense.targets]]).to(
                rotated.device
            )
            losses["lists"] = functional.cross_entropy(self.scale * rotated @ self.list_centroids.T, target_lists)
        return losses

    def _compute_dense_loss(self, queries: Tensor, comparison: UnifyComparison) -> Tensor:
        dense = comparison.dense
        scores = torch.cat(
            [queries @ self._get_vectors(dense.documents).T, self._score_candidates(queries, comparison.candidates)], 1
        )
        return infonce(self.scale * scores, dense.targets, dense.hidden)

    def make_param_groups(self, rate: float, decay: float) -> list[dict[str, object]]:
        if not self.lists:
            return super().make_param_groups(rate, decay)
        centroids = {"params": [self.list_centroids], "lr": rate * self.codebook_rate, "weight_decay": 0.0}
        return [*super().make_param_groups(rate, decay), centroids]

    def save_extras(self, folder: Path) -> None:
        super().save_extras(folder)
        if self.lists:
            learned = self.list_centroids.detach().cpu().numpy()
            np.savez(folder / LISTS, of=self.lists.of, learned=learned, means=self.lists.centroids)

    def _compute_codes_loss(self, queries: Tensor, contrast: Contrast) -> Tensor:
        if self._codes is not None:
            return full_corpus_infonce(self.scale * queries, self._codes, self._centroids, contrast)
        coded = self._decode(contrast.documents) if self._all_coded is None else self._all_coded
        return infonce(self.scale * (queries @ coded.T), contrast.targets, contrast.hidden)

    def _contrast_with_random(self, batch: Batch, max_count: int, random: np.random.Generator) -> Contrast:
        count = len(self.fixed.codes)
        drawn = np.arange(count) if count <= max_count else random.integers(count, size=max_count)
        return make_contrast(Batch(batch.queries, batch.positives, drawn), self.questions.pairs)

    def _decode(self, rows: Rows) -> Tensor:
        codes = torch.as_tensor(self.fixed.codes[rows], device=self._centroids.device).long()
        books = torch.arange(len(self._centroids), device=codes.device)
        return self._centroids[books, codes].flatten(1)

    def _get_vectors(self, rows: Rows) -> Tensor:
        return torch.as_tensor(np.asarray(self.fixed.vectors[rows]), device=self._centroids.device).float()

    def _draw_candidates(self, batch: Batch, shared: Rows, random: np.random.Generator) -> Rows:
        """Draw candidates of each query, padded with -1; those among the shared documents become -1."""
        candidates = self.fixed.candidates[batch.queries]
        chosen: Rows = candidates[:, random.permutation(candidates.shape[1])[: self.own]].astype(np.int64)
        is_shared = shared[np.searchsorted(shared, chosen).clip(max=len(shared) - 1)] == chosen
        return np.where(is_shared, -1, chosen)

    def _score_candidates(self, queries: Tensor, chosen: Rows) -> Tensor:
        vectors = self._get_vectors(np.maximum(chosen, 0).ravel()).view(*chosen.shape, -1)
        scores = torch.einsum("qd,qnd->qn", queries, vectors)
        return scores.masked_fill(torch.as_tensor(chosen < 0, device=scores.device), -torch.inf)
