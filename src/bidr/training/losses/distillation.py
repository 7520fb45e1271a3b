"""Codes with an encoder of their own that learns to rank as given vectors do, for questions and for passages."""

from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.nn import functional

from bidr.models.encoder import Encoder
from bidr.models.trainable_quantizer import TrainableAdditiveQuantizer
from bidr.quantization.codebooks import Codebooks
from bidr.tokenization.token_store import TokenArray, Tokens, TokenStore
from bidr.training.data import Questions
from bidr.training.losses.cropped_queries import concat_tokens
from bidr.training.losses.infonce import copy_to_device
from bidr.training.losses.objectives import Objective, PreparedBatch
from bidr.training.negatives.samplers import Batch
from bidr.utils.array_types import Rows

Vectors = npt.NDArray[np.floating]


class Passages(NamedTuple):
    """Passages that stand in for questions. rows: the documents they are of; share: how many for a question."""

    tokens: Tokens
    rows: Rows
    vectors: Vectors
    share: float


class TeacherVectors(NamedTuple):
    """The vectors whose ranking is followed, and what their scores are multiplied by before the softmax."""

    queries: Vectors
    documents: Vectors
    passages: Passages
    scale: float


class Given(NamedTuple):
    """A batch's questions and documents as the leader says them."""

    queries: npt.NDArray[np.float32]
    documents: npt.NDArray[np.float32]


class DistillationObjective(Objective):
    """Questions against documents that are sums of codewords: how far their ranking is from the leader's."""

    def __init__(
        self,
        encoder: Encoder,
        quantizer: TrainableAdditiveQuantizer,
        documents: TokenStore,
        questions: Questions,
        leader: TeacherVectors,
        codebook_rate: float,
    ) -> None:
        super().__init__()
        self.encoder, self.quantizer, self.documents, self.questions = encoder, quantizer, documents, questions
        self.leader, self.codebook_rate = leader, codebook_rate

    def prepare(self, batch: Batch, random: np.random.Generator) -> PreparedBatch:
        leader, passages = self.leader, self.leader.passages
        drawn = random.integers(len(passages.rows), size=round(passages.share * len(batch.queries)))
        rows = np.unique(np.concatenate([batch.positives, passages.rows[drawn], batch.negatives.ravel()]))
        asked = concat_tokens(
            self.questions.tokens.get_batch(batch.queries), TokenArray(passages.tokens).get_batch(drawn)
        )
        queries = np.concatenate([leader.queries[batch.queries], passages.vectors[drawn]])
        given = Given(queries.astype(np.float32), np.asarray(leader.documents[rows], dtype=np.float32))
        return PreparedBatch(batch.queries, (asked, self.documents.get_batch(rows)), given)

    def terms(self, vectors: Sequence[Tensor], given: Given) -> dict[str, Tensor]:
        queries, documents = vectors
        found = self.quantizer.adapt(queries) @ cast(Tensor, self.quantizer(documents)).T
        wanted = copy_to_device(found, given.queries) @ copy_to_device(found, given.documents).T
        found, wanted = ((self.leader.scale * scores).log_softmax(1) for scores in (found, wanted))
        return {"following": functional.kl_div(found, wanted, reduction="batchmean", log_target=True)}

    def groups(self, rate: float, decay: float) -> list[dict[str, object]]:
        own = rate * self.codebook_rate
        codewords = {"params": [self.quantizer.codewords], "lr": own, "weight_decay": 0.0}
        adapter = {"params": [self.quantizer.query], "lr": 0.1 * own, "weight_decay": 0.0}
        return [*super().groups(rate, decay), codewords, adapter]

    def codebooks(self) -> Codebooks:
        return self.quantizer.to_additive().to_adapted_codebooks()
