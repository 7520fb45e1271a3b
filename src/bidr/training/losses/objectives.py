"""Training objectives: modules that hold a stage's parameters and turn a batch into losses.

A step has three parts, so that it can be sharded: `prepare` collects a batch as arrays (on the CPU, in another thread),
the texts are encoded (by one process or several, at once or in parts), and `compute_terms` computes the losses.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from torch import Tensor, nn
from torch.nn import functional

from bidr.models.trainable_encoder import Encoder
from bidr.models.trainable_quantizer import TrainableQuantizer
from bidr.quantization.codebooks import Codebooks
from bidr.tokenization.token_store import Tokens, TokenStore
from bidr.training.cropped_queries import CropSampler, concat_tokens
from bidr.training.data import Questions
from bidr.training.losses.infonce import (
    Contrast,
    TeacherScores,
    hard_negative_infonce,
    infonce,
    make_contrast,
    ranking_divergence,
)
from bidr.training.negatives.samplers import Batch
from bidr.utils.array_types import Rows

SparseLoss = Literal["quantized", "joint", "dpq"]
CODEBOOKS = "codebooks.safetensors"


class PreparedBatch(NamedTuple):
    """A batch prepared on the CPU.

    queries:    rows of the batch's queries.
    texts:      texts to encode, one vector each.
    comparison: input of `compute_terms` besides the vectors.
    """

    queries: Rows
    texts: tuple[Tokens, ...]
    comparison: Any


class Objective(nn.Module):
    """A stage's parameters and loss."""

    encoder: Encoder
    questions: Questions

    def name_queries(self, rows: Rows) -> str:
        """Name train queries for an error message: by id, or else by row number."""
        queries: Questions | None = getattr(self, "questions", None)
        if queries and queries.ids:
            return ", ".join(repr(queries.ids[row]) for row in rows.tolist())
        return "number " + ", ".join(map(str, rows.tolist()))

    def prepare(self, batch: Batch, random: np.random.Generator) -> PreparedBatch:
        """Collect the arrays of a batch. Runs in another thread, so it must not read parameters."""
        raise NotImplementedError

    def compute_terms(self, vectors: Sequence[Tensor], comparison: Any) -> dict[str, Tensor]:
        """Compute the losses by name from the vectors of each of the batch's texts; their sum is minimized."""
        raise NotImplementedError

    def make_param_groups(self, rate: float, decay: float) -> list[dict[str, object]]:
        return [{"params": list(self.encoder.parameters()), "lr": rate, "weight_decay": decay}]

    def get_codebooks(self) -> Codebooks | None:
        """Return the trained codebooks, or None."""
        return None

    def save_extras(self, folder: Path) -> None:
        """Save trained parameters other than the encoder's."""
        codebooks = self.get_codebooks()
        if codebooks:
            codebooks.save(folder / CODEBOOKS)


class DenseObjective(Objective):
    """InfoNCE on vectors of one encoder: warm-up, dense and conventional stage.

    hard_negatives_only: ignore the documents of other queries.
    live_margin:         drop documents that score above the positive minus this (see `infonce`).
    prefixes:            add the loss on vectors truncated to each of these dimensions (Matryoshka).
    """

    def __init__(
        self,
        encoder: Encoder,
        documents: TokenStore,
        questions: Questions,
        scale: float,
        *,
        hard_negatives_only: bool = False,
        live_margin: float | None = None,
        prefixes: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.encoder, self.documents, self.questions, self.scale = encoder, documents, questions, scale
        self.hard_negatives_only, self.live_margin, self.prefixes = hard_negatives_only, live_margin, prefixes

    def prepare(self, batch: Batch, random: np.random.Generator) -> PreparedBatch:
        contrast = make_contrast(batch, self.questions.pairs)
        texts = (self.questions.tokens.get_batch(batch.queries), self.documents.get_batch(contrast.documents))
        return PreparedBatch(batch.queries, texts, contrast)

    def compute_terms(self, vectors: Sequence[Tensor], comparison: Contrast) -> dict[str, Tensor]:
        queries, documents = vectors
        losses = {"dense": self.compute_infonce(queries @ documents.T, comparison)}
        for dim in self.prefixes:
            losses[f"first {dim}"] = self.compute_infonce(
                truncate(queries, dim) @ truncate(documents, dim).T, comparison
            )
        return losses

    def compute_infonce(self, scores: Tensor, comparison: Contrast) -> Tensor:
        """Compute the loss of a batch's scores."""
        if self.hard_negatives_only:
            return hard_negative_infonce(self.scale * scores, comparison)
        margin = None if self.live_margin is None else self.scale * self.live_margin
        return infonce(self.scale * scores, comparison.targets, comparison.hidden, margin)


def truncate(vectors: Tensor, dim: int) -> Tensor:
    """Truncate vectors and L2-normalize them again."""
    return functional.normalize(vectors[:, :dim], dim=1)


class QuantizedObjective(DenseObjective):
    """InfoNCE on quantized documents: the sparse stage.

    kind "quantized" is the paper's equation 3, on the quantized side alone; "joint" adds the same loss on the
    unquantized vectors, as the paper's public code does; "dpq" has the loss on the unquantized vectors and the
    reconstruction error.
    """

    def __init__(
        self,
        encoder: Encoder,
        quantizer: TrainableQuantizer,
        documents: TokenStore,
        questions: Questions,
        scale: float,
        *,
        kind: SparseLoss,
        codebook_rate: float,
        reconstruction: float = 0.0,
        live_margin: float | None = None,
        teacher: Callable[[Batch, Contrast], TeacherScores] | None = None,
        taught_weight: float = 1.0,
        crops: CropSampler | None = None,
    ) -> None:
        super().__init__(encoder, documents, questions, scale, live_margin=live_margin)
        self.quantizer, self.kind, self.codebook_rate = quantizer, kind, codebook_rate
        self.reconstruction, self.teacher, self.taught_weight = reconstruction, teacher, taught_weight
        self.crops = crops

    def prepare(self, batch: Batch, random: np.random.Generator) -> PreparedBatch:
        prepared = (
            super().prepare(batch, random)
            if self.crops is None
            else self._prepare_with_crops(batch, self.crops, random)
        )
        if self.teacher is None:
            return prepared
        return prepared._replace(
            comparison=prepared.comparison._replace(teacher=self.teacher(batch, prepared.comparison))
        )

    def _prepare_with_crops(self, batch: Batch, crops: CropSampler, random: np.random.Generator) -> PreparedBatch:
        drawn = random.integers(len(self.documents), size=round(crops.share * len(batch.queries)))
        contrast = make_contrast(batch, self.questions.pairs, drawn)
        queries = concat_tokens(
            self.questions.tokens.get_batch(batch.queries), crops.cut(self.documents.get_batch(drawn), random)
        )
        return PreparedBatch(batch.queries, (queries, self.documents.get_batch(contrast.documents)), contrast)

    def compute_terms(self, vectors: Sequence[Tensor], comparison: Contrast) -> dict[str, Tensor]:
        queries, documents = vectors
        losses: dict[str, Tensor] = {}
        if self.kind != "dpq":
            scores = self.quantizer.rotate(queries) @ cast(Tensor, self.quantizer(documents)).T
            losses["codes"] = self.compute_infonce(scores, comparison)
            if comparison.teacher is not None:
                losses["taught"] = self.taught_weight * ranking_divergence(self.scale * scores, comparison.teacher)
        if self.kind != "quantized":
            losses |= super().compute_terms(vectors, comparison)
        if self.reconstruction:
            losses["reconstruction"] = self.reconstruction * self.quantizer.compute_error(documents)
        return losses

    def get_codebooks(self) -> Codebooks:
        return self.quantizer.to_codebooks()

    def make_param_groups(self, rate: float, decay: float) -> list[dict[str, object]]:
        codewords = {"params": [self.quantizer.centroids], "lr": rate * self.codebook_rate, "weight_decay": 0.0}
        return [*super().make_param_groups(rate, decay), codewords]
