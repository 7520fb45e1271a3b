"""Distillation: an encoder and its codes learn the ranking by a teacher's vectors."""

from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.nn import functional

from bidr.models.trainable_encoder import Encoder
from bidr.models.trainable_quantizer import TrainableAdditiveQuantizer
from bidr.quantization.codebooks import Codebooks
from bidr.tokenization.token_store import TokenArray, Tokens, TokenStore
from bidr.training.cropped_queries import concat_tokens
from bidr.training.data import Questions
from bidr.training.losses.infonce import copy_to_device
from bidr.training.losses.objectives import Objective, PreparedBatch
from bidr.training.negatives.samplers import Batch
from bidr.utils.array_types import Rows

Vectors = npt.NDArray[np.floating]


class Passages(NamedTuple):
    """Passages used as queries. rows: their documents; share: passages per query of a batch."""

    tokens: Tokens
    rows: Rows
    vectors: Vectors
    share: float


class TeacherVectors(NamedTuple):
    """Vectors whose ranking is learned; scale: inverse temperature of their scores."""

    queries: Vectors
    documents: Vectors
    passages: Passages
    scale: float


class TeacherBatch(NamedTuple):
    """The teacher's vectors of a batch's queries and documents."""

    queries: npt.NDArray[np.float32]
    documents: npt.NDArray[np.float32]


class DistillationObjective(Objective):
    """KL divergence between the ranking by additive codes and the teacher's."""

    def __init__(
        self,
        encoder: Encoder,
        quantizer: TrainableAdditiveQuantizer,
        documents: TokenStore,
        questions: Questions,
        teacher: TeacherVectors,
        codebook_rate: float,
    ) -> None:
        super().__init__()
        self.encoder, self.quantizer, self.documents, self.questions = encoder, quantizer, documents, questions
        self.teacher, self.codebook_rate = teacher, codebook_rate

    def prepare(self, batch: Batch, random: np.random.Generator) -> PreparedBatch:
        teacher, passages = self.teacher, self.teacher.passages
        drawn = random.integers(len(passages.rows), size=round(passages.share * len(batch.queries)))
        rows = np.unique(np.concatenate([batch.positives, passages.rows[drawn], batch.negatives.ravel()]))
        texts = concat_tokens(
            self.questions.tokens.get_batch(batch.queries), TokenArray(passages.tokens).get_batch(drawn)
        )
        queries = np.concatenate([teacher.queries[batch.queries], passages.vectors[drawn]])
        comparison = TeacherBatch(queries.astype(np.float32), np.asarray(teacher.documents[rows], dtype=np.float32))
        return PreparedBatch(batch.queries, (texts, self.documents.get_batch(rows)), comparison)

    def compute_terms(self, vectors: Sequence[Tensor], comparison: TeacherBatch) -> dict[str, Tensor]:
        queries, documents = vectors
        student = self.quantizer.adapt(queries) @ cast(Tensor, self.quantizer(documents)).T
        teacher = copy_to_device(student, comparison.queries) @ copy_to_device(student, comparison.documents).T
        student, teacher = ((self.teacher.scale * scores).log_softmax(1) for scores in (student, teacher))
        return {"following": functional.kl_div(student, teacher, reduction="batchmean", log_target=True)}

    def make_param_groups(self, rate: float, decay: float) -> list[dict[str, object]]:
        codebook_rate = rate * self.codebook_rate
        codewords = {"params": [self.quantizer.codewords], "lr": codebook_rate, "weight_decay": 0.0}
        adapter = {"params": [self.quantizer.query], "lr": 0.1 * codebook_rate, "weight_decay": 0.0}
        return [*super().make_param_groups(rate, decay), codewords, adapter]

    def get_codebooks(self) -> Codebooks:
        return self.quantizer.to_additive().to_adapted_codebooks()
