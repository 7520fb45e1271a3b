"""What each stage minimises: modules that hold what learns and turn a batch into a loss."""

from typing import Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from bidr.codes import Codebooks
from bidr.model.encoder import Encoder
from bidr.model.quantizer import Quantizer
from bidr.negatives.pairs import Rows
from bidr.negatives.samplers import Batch
from bidr.text import TokenStore
from bidr.training.loss import Contrast, contrast, info_nce
from bidr.training.material import Questions

SparseLoss = Literal["quantized", "joint"]


class Objective(nn.Module):
    """A stage's learning parts. `loss` is called once a step; groups say what learns how fast."""

    encoder: Encoder

    def loss(self, batch: Batch, random: np.random.Generator) -> Tensor:
        raise NotImplementedError

    def groups(self, rate: float, decay: float) -> list[dict[str, object]]:
        return [{"params": list(self.encoder.parameters()), "lr": rate, "weight_decay": decay}]


class Matching(Objective):
    """Queries against documents, both by one encoder: warm-up, the dense stage, the conventional way."""

    def __init__(self, encoder: Encoder, documents: TokenStore, questions: Questions, scale: float) -> None:
        super().__init__()
        self.encoder, self.documents, self.questions, self.scale = encoder, documents, questions, scale

    def loss(self, batch: Batch, random: np.random.Generator) -> Tensor:
        compared = contrast(batch, self.questions.pairs)
        queries = self.encoder.encode(self.questions.tokens.batch(batch.queries))
        documents = self.encoder.encode(self.documents.batch(compared.documents))
        return info_nce(self.scale * queries @ documents.T, compared.targets, compared.hidden)


class Quantized(Matching):
    """Queries against documents as their codes say them: the sparse stage.

    loss "quantized" is the paper's equation 3, on the quantized side alone; "joint" adds the same loss on the
    unquantized vectors, as the paper's public code does.
    """

    def __init__(
        self,
        encoder: Encoder,
        quantizer: Quantizer,
        documents: TokenStore,
        questions: Questions,
        scale: float,
        *,
        kind: SparseLoss,
        codebook_rate: float,
    ) -> None:
        super().__init__(encoder, documents, questions, scale)
        self.quantizer, self.kind, self.codebook_rate = quantizer, kind, codebook_rate

    def loss(self, batch: Batch, random: np.random.Generator) -> Tensor:
        compared = contrast(batch, self.questions.pairs)
        queries = self.encoder.encode(self.questions.tokens.batch(batch.queries))
        documents = self.encoder.encode(self.documents.batch(compared.documents))
        coded = cast(Tensor, self.quantizer(documents))
        rotated = self.quantizer.rotate(queries)
        total = info_nce(self.scale * rotated @ coded.T, compared.targets, compared.hidden)
        if self.kind == "joint":
            total = total + info_nce(self.scale * queries @ documents.T, compared.targets, compared.hidden)
        return total

    def groups(self, rate: float, decay: float) -> list[dict[str, object]]:
        codewords = {"params": [self.quantizer.centroids], "lr": rate * self.codebook_rate, "weight_decay": 0.0}
        return [*super().groups(rate, decay), codewords]


class FixedDocuments(NamedTuple):
    """Both representations of the corpus, learned already.

    candidates: (train queries, n) rows that the codes bring up, -1 where there are fewer, without positives.
    """

    codebooks: Codebooks
    codes: npt.NDArray[np.uint8]
    vectors: npt.NDArray[np.floating]
    candidates: Rows


class Unified(Objective):
    """One query encoder for both sides, documents fixed: the paper's equation 9.

    The sparse term compares with the corpus' codes (a random `pool` of them where there are more), the dense term with
    the vectors of `own` of the query's own candidates and of `others` random documents. No document is encoded.
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
    ) -> None:
        super().__init__()
        self.encoder, self.fixed, self.questions, self.scale = encoder, fixed, questions, scale
        self.pool, self.own, self.others, self.dense_weight = pool, own, others, dense_weight
        self._rotation = torch.as_tensor(fixed.codebooks.rotation, device=encoder.device)
        self._centroids = torch.as_tensor(fixed.codebooks.centroids, device=encoder.device)
        self._all_coded = self._decode(np.arange(len(fixed.codes))) if len(fixed.codes) <= pool else None

    def loss(self, batch: Batch, random: np.random.Generator) -> Tensor:
        queries = self.encoder.encode(self.questions.tokens.batch(batch.queries))
        return self._sparse(batch, queries, random) + self.dense_weight * self._dense(batch, queries, random)

    def _sparse(self, batch: Batch, queries: Tensor, random: np.random.Generator) -> Tensor:
        compared = self._with_random(batch, self.pool, random)
        coded = self._decode(compared.documents) if self._all_coded is None else self._all_coded
        return info_nce(self.scale * (queries @ self._rotation.T) @ coded.T, compared.targets, compared.hidden)

    def _dense(self, batch: Batch, queries: Tensor, random: np.random.Generator) -> Tensor:
        compared = self._with_random(batch, self.others, random)
        shared = queries @ self._vectors(compared.documents).T
        own = self._own_scores(batch, queries, compared.documents, random)
        return info_nce(self.scale * torch.cat([shared, own], 1), compared.targets, compared.hidden)

    def _with_random(self, batch: Batch, most: int, random: np.random.Generator) -> Contrast:
        count = len(self.fixed.codes)
        drawn = np.arange(count) if count <= most else random.integers(count, size=most)
        return contrast(Batch(batch.queries, batch.positives, drawn), self.questions.pairs)

    def _decode(self, rows: Rows) -> Tensor:
        codes = torch.as_tensor(self.fixed.codes[rows], device=self._centroids.device).long()
        books = torch.arange(len(self._centroids), device=codes.device)
        return self._centroids[books, codes].flatten(1)

    def _vectors(self, rows: Rows) -> Tensor:
        return torch.as_tensor(np.asarray(self.fixed.vectors[rows]), device=self._centroids.device).float()

    def _own_scores(self, batch: Batch, queries: Tensor, shared: Rows, random: np.random.Generator) -> Tensor:
        """Scores of each query with some of its own candidates; those among the shared documents count there."""
        found = self.fixed.candidates[batch.queries]
        chosen = found[:, random.permutation(found.shape[1])[: self.own]]
        vectors = self._vectors(np.maximum(chosen, 0).ravel()).view(*chosen.shape, -1)
        scores = torch.einsum("qd,qnd->qn", queries, vectors)
        twice = shared[np.searchsorted(shared, chosen).clip(max=len(shared) - 1)] == chosen
        return scores.masked_fill(torch.as_tensor((chosen < 0) | twice, device=scores.device), -torch.inf)
