"""What each stage minimises: modules that hold what learns and turn a batch into losses.

A step has three parts, so that they can be shared out. `prepare` collects what a batch compares: arrays only, made
ahead of the device. The texts it names are encoded, by one process or several, at once or in parts. `terms` compares
the vectors.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from torch import Tensor, nn
from torch.nn import functional

from bidr.models.encoder import Encoder
from bidr.models.trainable_quantizer import TrainableQuantizer
from bidr.quantization.codebooks import Codebooks
from bidr.tokenization.token_store import Tokens, TokenStore
from bidr.training.data import Questions
from bidr.training.losses.cropped_queries import CropSampler, concat_tokens
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
    """A batch before the device sees it.

    queries: the rows that name the batch.
    texts:   what is to be encoded, one vector a text.
    given:   what `terms` needs besides the vectors.
    """

    queries: Rows
    texts: tuple[Tokens, ...]
    given: Any


class Objective(nn.Module):
    """A stage's learning parts; groups say what learns how fast."""

    encoder: Encoder
    questions: Questions

    def name_queries(self, rows: Rows) -> str:
        """What a person finds train queries by: ids, or else row numbers."""
        known: Questions | None = getattr(self, "questions", None)
        if known and known.ids:
            return ", ".join(repr(known.ids[row]) for row in rows.tolist())
        return "number " + ", ".join(map(str, rows.tolist()))

    def prepare(self, batch: Batch, random: np.random.Generator) -> PreparedBatch:
        """Collect what a batch compares. Called from another thread: nothing that learns may be looked at."""
        raise NotImplementedError

    def terms(self, vectors: Sequence[Tensor], given: Any) -> dict[str, Tensor]:
        """The losses by name, from a matrix of vectors for each of the batch's texts; their sum is minimised."""
        raise NotImplementedError

    def groups(self, rate: float, decay: float) -> list[dict[str, object]]:
        return [{"params": list(self.encoder.parameters()), "lr": rate, "weight_decay": decay}]

    def codebooks(self) -> Codebooks | None:
        """What it learned of codes; None: nothing."""
        return None

    def keep(self, folder: Path) -> None:
        """Leave what it learned besides the encoder."""
        codebooks = self.codebooks()
        if codebooks:
            codebooks.save(folder / CODEBOOKS)


class DenseObjective(Objective):
    """Queries against documents, both by one encoder: warm-up, the dense stage, the conventional way.

    alone:       each query is told apart from its own negatives only, not from what others brought.
    live_margin: leave out what scores above the positive minus this (see `info_nce`).
    prefixes:    compare the vectors cut off at each of these dimensions too (Matryoshka).
    """

    def __init__(
        self,
        encoder: Encoder,
        documents: TokenStore,
        questions: Questions,
        scale: float,
        *,
        alone: bool = False,
        live_margin: float | None = None,
        prefixes: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.encoder, self.documents, self.questions, self.scale = encoder, documents, questions, scale
        self.alone, self.live_margin, self.prefixes = alone, live_margin, prefixes

    def prepare(self, batch: Batch, random: np.random.Generator) -> PreparedBatch:
        compared = make_contrast(batch, self.questions.pairs)
        texts = (self.questions.tokens.get_batch(batch.queries), self.documents.get_batch(compared.documents))
        return PreparedBatch(batch.queries, texts, compared)

    def terms(self, vectors: Sequence[Tensor], given: Contrast) -> dict[str, Tensor]:
        queries, documents = vectors
        found = {"dense": self.compare(queries @ documents.T, given)}
        for dim in self.prefixes:
            found[f"first {dim}"] = self.compare(prefix(queries, dim) @ prefix(documents, dim).T, given)
        return found

    def compare(self, scores: Tensor, given: Contrast) -> Tensor:
        """The loss of a batch's scores."""
        if self.alone:
            return hard_negative_infonce(self.scale * scores, given)
        margin = None if self.live_margin is None else self.scale * self.live_margin
        return infonce(self.scale * scores, given.targets, given.hidden, margin)


def prefix(vectors: Tensor, dim: int) -> Tensor:
    """Vectors cut off and brought back to length 1."""
    return functional.normalize(vectors[:, :dim], dim=1)


class QuantizedObjective(DenseObjective):
    """Queries against documents as their codes say them: the sparse stage.

    kind "quantized" is the paper's equation 3, on the quantized side alone; "joint" adds the same loss on the
    unquantized vectors, as the paper's public code does; "dpq" has that of the unquantized vectors only, and brings
    codewords and vectors together by the error of reconstruction.
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
        found = super().prepare(batch, random) if self.crops is None else self._with_crops(batch, self.crops, random)
        if self.teacher is None:
            return found
        return found._replace(given=found.given._replace(taught=self.teacher(batch, found.given)))

    def _with_crops(self, batch: Batch, crops: CropSampler, random: np.random.Generator) -> PreparedBatch:
        drawn = random.integers(len(self.documents), size=round(crops.share * len(batch.queries)))
        compared = make_contrast(batch, self.questions.pairs, drawn)
        asked = concat_tokens(
            self.questions.tokens.get_batch(batch.queries), crops.cut(self.documents.get_batch(drawn), random)
        )
        return PreparedBatch(batch.queries, (asked, self.documents.get_batch(compared.documents)), compared)

    def terms(self, vectors: Sequence[Tensor], given: Contrast) -> dict[str, Tensor]:
        queries, documents = vectors
        found: dict[str, Tensor] = {}
        if self.kind != "dpq":
            scores = self.quantizer.rotate(queries) @ cast(Tensor, self.quantizer(documents)).T
            found["codes"] = self.compare(scores, given)
            if given.taught is not None:
                found["taught"] = self.taught_weight * ranking_divergence(self.scale * scores, given.taught)
        if self.kind != "quantized":
            found |= super().terms(vectors, given)
        if self.reconstruction:
            found["reconstruction"] = self.reconstruction * self.quantizer.compute_error(documents)
        return found

    def codebooks(self) -> Codebooks:
        return self.quantizer.to_codebooks()

    def groups(self, rate: float, decay: float) -> list[dict[str, object]]:
        codewords = {"params": [self.quantizer.centroids], "lr": rate * self.codebook_rate, "weight_decay": 0.0}
        return [*super().groups(rate, decay), codewords]
