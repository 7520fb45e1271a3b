"""What unification minimises: one query encoder for both sides, while the documents stay as they are."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from bidr.models.encoder import Encoder
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
    """Both representations of the corpus, learned already.

    candidates: (train queries, n) rows that the codes bring up, -1 where there are fewer, without positives.
    """

    codebooks: Codebooks
    codes: npt.NDArray[np.uint8]
    vectors: npt.NDArray[np.floating]
    candidates: Rows


class UnifyComparison(NamedTuple):
    """What one step of unification compares: documents by their codes, documents by their vectors, own candidates."""

    sparse: Contrast
    dense: Contrast
    own: Rows


class UnifyObjective(Objective):
    """One query encoder for both sides, documents fixed: the paper's equation 9.

    lists: coarse lists whose centroids learn to be near to the queries whose answers they hold.

    The sparse term compares with the corpus' codes (a random `pool` of them where there are more; with a pool of 0
    always with all, a block at a time), the dense term with the vectors of `own` of the query's own candidates and of
    `others` random documents. No document is encoded.
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
        sparse = self._with_random(batch, self.pool, random) if self.pool else make_full_corpus_contrast(batch, pairs)
        dense = self._with_random(batch, self.others, random)
        given = UnifyComparison(sparse, dense, self._own(batch, dense.documents, random))
        return PreparedBatch(batch.queries, (self.questions.tokens.get_batch(batch.queries),), given)

    def terms(self, vectors: Sequence[Tensor], given: UnifyComparison) -> dict[str, Tensor]:
        (queries,) = vectors
        rotated = queries @ self._rotation.T
        codes = self._codes_term(rotated, given.sparse)
        found = {"codes": codes, "dense": self.dense_weight * self._dense_term(queries, given)}
        if self.lists:
            wanted = torch.from_numpy(self.lists.of[given.dense.documents[given.dense.targets]]).to(rotated.device)
            found["lists"] = functional.cross_entropy(self.scale * rotated @ self.list_centroids.T, wanted)
        return found

    def _dense_term(self, queries: Tensor, given: UnifyComparison) -> Tensor:
        dense = given.dense
        scores = torch.cat([queries @ self._vectors(dense.documents).T, self._own_scores(queries, given.own)], 1)
        return infonce(self.scale * scores, dense.targets, dense.hidden)

    def groups(self, rate: float, decay: float) -> list[dict[str, object]]:
        if not self.lists:
            return super().groups(rate, decay)
        centroids = {"params": [self.list_centroids], "lr": rate * self.codebook_rate, "weight_decay": 0.0}
        return [*super().groups(rate, decay), centroids]

    def keep(self, folder: Path) -> None:
        super().keep(folder)
        if self.lists:
            learned = self.list_centroids.detach().cpu().numpy()
            np.savez(folder / LISTS, of=self.lists.of, learned=learned, means=self.lists.centroids)

    def _codes_term(self, queries: Tensor, compared: Contrast) -> Tensor:
        if self._codes is not None:
            return full_corpus_infonce(self.scale * queries, self._codes, self._centroids, compared)
        coded = self._decode(compared.documents) if self._all_coded is None else self._all_coded
        return infonce(self.scale * (queries @ coded.T), compared.targets, compared.hidden)

    def _with_random(self, batch: Batch, most: int, random: np.random.Generator) -> Contrast:
        count = len(self.fixed.codes)
        drawn = np.arange(count) if count <= most else random.integers(count, size=most)
        return make_contrast(Batch(batch.queries, batch.positives, drawn), self.questions.pairs)

    def _decode(self, rows: Rows) -> Tensor:
        codes = torch.as_tensor(self.fixed.codes[rows], device=self._centroids.device).long()
        books = torch.arange(len(self._centroids), device=codes.device)
        return self._centroids[books, codes].flatten(1)

    def _vectors(self, rows: Rows) -> Tensor:
        return torch.as_tensor(np.asarray(self.fixed.vectors[rows]), device=self._centroids.device).float()

    def _own(self, batch: Batch, shared: Rows, random: np.random.Generator) -> Rows:
        """Some of each query's own candidates, -1 for none; those among the shared documents count there."""
        found = self.fixed.candidates[batch.queries]
        chosen: Rows = found[:, random.permutation(found.shape[1])[: self.own]].astype(np.int64)
        twice = shared[np.searchsorted(shared, chosen).clip(max=len(shared) - 1)] == chosen
        return np.where(twice, -1, chosen)

    def _own_scores(self, queries: Tensor, chosen: Rows) -> Tensor:
        vectors = self._vectors(np.maximum(chosen, 0).ravel()).view(*chosen.shape, -1)
        scores = torch.einsum("qd,qnd->qn", queries, vectors)
        return scores.masked_fill(torch.as_tensor(chosen < 0, device=scores.device), -torch.inf)
