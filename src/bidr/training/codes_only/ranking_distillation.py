"""Distill the ranking by full vectors, and labels, into additive codes of fixed documents.

A step scores questions against a pool of documents by full vectors and by codes, and moves codewords and query adapter
towards the former's softmax. Documents keep their codes, so a step is a few small matrix products.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from bidr.errors import BidrError
from bidr.quantization.additive_quantizer import AdditiveQuantizer
from bidr.training.engine.loop import MAX_SKIPPED_STEPS, schedule
from bidr.utils.array_types import Codes, Floats, Rows


class EncodedVectors(NamedTuple):
    """Documents and questions encoded by one encoder."""

    documents: Floats
    questions: Floats


class DistillationData(NamedTuple):
    """Training data. Rows refer to the documents."""

    full: EncodedVectors
    """Vectors whose ranking is learned (the teacher's)."""
    own: EncodedVectors
    """Vectors that are encoded and searched with (the student's); may be the same."""
    best: Rows
    """The top rows of each question by full vectors."""
    labelled: Rows
    """The labeled rows of each question, padded with -1; (questions, 0) without labels."""


class DistillationSettings(NamedTuple):
    """Optimization settings."""

    steps: int
    batch_size: int
    own: int
    others: int
    rate: float
    adapter_rate: float
    label_weight: float
    temperature: float
    seed: int


class CodesLearner(nn.Module):
    """Codewords and query adapter as parameters; the documents' codes are fixed."""

    def __init__(self, additive: AdditiveQuantizer, codes: Codes, device: str = "cpu") -> None:
        super().__init__()
        self.additive, self.groups = additive, additive.groups
        self.codewords = nn.Parameter(torch.tensor(additive.codewords, device=device))
        self.query = nn.Parameter(torch.tensor(additive.query, device=device))
        books = len(additive.codewords) // self.groups
        codeword_rows = (
            torch.as_tensor(codes.astype(np.int64)) + torch.arange(books).repeat(self.groups) * additive.words
        )
        self.places = codeword_rows.to(device)

    def decode(self, rows: Tensor) -> Tensor:
        """Decode documents as sums of their codewords: (rows, width)."""
        tables = self.codewords.view(self.groups, -1, self.codewords.shape[2])
        places = self.places[rows].view(len(rows), self.groups, -1)
        sums = [functional.embedding_bag(places[:, at], table, mode="sum") for at, table in enumerate(tables)]
        return torch.cat(sums, dim=1)

    def score(self, questions: Tensor, rows: Tensor) -> Tensor:
        return questions @ self.query.T @ self.decode(rows).T

    def export(self) -> AdditiveQuantizer:
        """Export the current codewords and query adapter."""
        words, query = (parameter.detach().cpu().numpy().copy() for parameter in (self.codewords, self.query))
        return self.additive._replace(codewords=words, query=query)


class Distillation:
    """Trains a CodesLearner. Everything that is resumed is in `state_dict`."""

    def __init__(self, learner: CodesLearner, lessons: DistillationData, settings: DistillationSettings) -> None:
        self.learner, self.settings = learner, settings
        self.device = learner.codewords.device
        self.best, self.labelled = (self._to_device(rows) for rows in (lessons.best, lessons.labelled))
        self.documents, self.questions = (self._to_device(vectors) for vectors in lessons.full)
        self.student_questions = self._to_device(lessons.own.questions)
        self.bases = [settings.rate, settings.adapter_rate]
        groups = [
            {"params": [parameter], "lr": rate}
            for parameter, rate in zip(learner.parameters(), self.bases, strict=True)
        ]
        self.optimizer = torch.optim.Adam(groups, betas=(0.9, 0.99))
        self.step, self.skipped, self.total = 0, 0, 0.0

    def state_dict(self) -> dict[str, Any]:
        return {
            "learner": self.learner.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "skipped": self.skipped,
            "total": self.total,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.learner.load_state_dict(state["learner"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.total = state["step"], state["total"]
        self.skipped = state.get("skipped", 0)  # absent in checkpoints of version 0.1

    def train_step(self) -> float:
        """Run one update, a function of seed and step; skip it if loss or gradient is not finite."""
        for group, base in zip(self.optimizer.param_groups, self.bases, strict=True):
            group["lr"] = base * schedule(self.step, self.settings.steps, 0.1)
        questions, pool = self._draw(np.random.default_rng((self.settings.seed, self.step)))
        loss = self.compute_loss(questions, pool)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norms = [parameter.grad.norm() for parameter in self.learner.parameters() if parameter.grad is not None]
        value, *lengths = torch.stack([loss.detach(), *norms]).tolist()
        self.step += 1
        if math.isfinite(value + sum(lengths)):
            self.optimizer.step()
            self.total += value
        else:
            self._skip(value)
        return float(value)

    def _skip(self, value: float) -> None:
        """Count a skipped step; fail after too many, or if no step was finite."""
        self.skipped += 1
        if self.skipped <= MAX_SKIPPED_STEPS and self.skipped < self.settings.steps:
            return
        labels = ", lower frozen.label_weight" if self.labelled.shape[1] and self.settings.label_weight else ""
        rates = "" if self.skipped == self.step else "lower frozen.rate or frozen.adapter_rate, "
        raise BidrError(
            f"codes: loss or gradient was not finite in {self.skipped} of {self.step} steps, the last one step "
            f"{self.step} (loss {value}); {rates}raise frozen.temperature{labels}, or look for vectors that are "
            "far longer than others"
        )

    def _draw(self, random: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Draw questions and their shared pool: some of their top rows, their labels, random others."""
        settings, best = self.settings, self.best
        questions = self._to_device(random.integers(0, len(best), settings.batch_size))
        picked = self._to_device(random.random((len(questions), best.shape[1]))).argsort(1)[:, : settings.own]
        others = self._to_device(random.integers(0, len(self.documents), settings.others))
        parts = [best[questions].gather(1, picked).flatten(), self.labelled[questions].flatten(), others]
        pool = torch.unique(torch.cat(parts))
        return questions, pool[pool >= 0]

    def _to_device(self, array: npt.NDArray[Any]) -> Tensor:
        return torch.as_tensor(array, device=self.device)

    def compute_loss(self, rows: Tensor, pool: Tensor) -> Tensor:
        """Compute the KL divergence from the teacher's softmax over the pool, plus the label loss."""
        scale = 1 / self.settings.temperature
        questions = self.questions[rows]
        teacher = functional.log_softmax(scale * (questions @ self.documents[pool].T), dim=1)
        student = scale * self.learner.score(self.student_questions[rows], pool)
        loss = functional.kl_div(
            functional.log_softmax(student, dim=1), teacher, reduction="batchmean", log_target=True
        )
        if self.labelled.shape[1] and self.settings.label_weight:
            loss = loss + self.settings.label_weight * label_loss(student, self.labelled[rows], pool)
        return loss


def label_loss(scores: Tensor, labelled: Tensor, pool: Tensor) -> Tensor:
    """Mean cross-entropy of each labeled document against the pool without the question's other labels."""
    has_label = labelled >= 0
    positions = torch.searchsorted(pool, labelled.clamp(min=0))
    labeled_scores = scores.gather(1, positions.clamp(max=len(pool) - 1))
    rows = torch.arange(len(scores), device=scores.device).unsqueeze(1).expand_as(positions)
    hidden = torch.tensor(-torch.inf, device=scores.device)
    others = scores.index_put((rows[has_label], positions[has_label]), hidden).logsumexp(1, keepdim=True)
    losses = functional.softplus(others - labeled_scores)[has_label]
    return losses.sum() / max(1, int(has_label.any(1).sum()))
