"""Learning additive codes of documents that stay as they are: by what their full vectors rank, and by labels.

A step scores some questions against a pool of documents, once by full vectors and once by codes, and moves codewords
and query adapter so that the second distribution comes nearer to the first. Which codewords a document has stays fixed
meanwhile, so a step is a few small matrix products.
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
    """Documents and questions as one encoder says them."""

    documents: Floats
    questions: Floats


class DistillationData(NamedTuple):
    """What is learned from. Rows are of the documents."""

    full: EncodedVectors
    """Those whose ranking is learned."""
    own: EncodedVectors
    """Those that are coded and asked with: the same, or of an encoder that learned to follow the other."""
    best: Rows
    """For every question the rows that full vectors rank first."""
    labelled: Rows
    """For every question its labelled rows, -1 where there are fewer; (questions, 0) without labels."""


class DistillationSettings(NamedTuple):
    """How it is learned."""

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
    """Codewords and query adapter as parameters, documents' codes as they were found."""

    def __init__(self, additive: AdditiveQuantizer, codes: Codes, device: str = "cpu") -> None:
        super().__init__()
        self.additive, self.groups = additive, additive.groups
        self.codewords = nn.Parameter(torch.tensor(additive.codewords, device=device))
        self.query = nn.Parameter(torch.tensor(additive.query, device=device))
        each = len(additive.codewords) // self.groups
        places = torch.as_tensor(codes.astype(np.int64)) + torch.arange(each).repeat(self.groups) * additive.words
        self.places = places.to(device)

    def decode(self, rows: Tensor) -> Tensor:
        """Documents as the sums of their codewords: (rows, width)."""
        tables = self.codewords.view(self.groups, -1, self.codewords.shape[2])
        places = self.places[rows].view(len(rows), self.groups, -1)
        sums = [functional.embedding_bag(places[:, at], table, mode="sum") for at, table in enumerate(tables)]
        return torch.cat(sums, dim=1)

    def scores(self, questions: Tensor, rows: Tensor) -> Tensor:
        return questions @ self.query.T @ self.decode(rows).T

    def learned(self) -> AdditiveQuantizer:
        """The codes as they are now."""
        words, query = (each.detach().cpu().numpy().copy() for each in (self.codewords, self.query))
        return self.additive._replace(codewords=words, query=query)


class Distillation:
    """The learning while it runs. What can be resumed is exactly what `state` returns."""

    def __init__(self, learner: CodesLearner, lessons: DistillationData, settings: DistillationSettings) -> None:
        self.learner, self.settings = learner, settings
        self.device = learner.codewords.device
        self.best, self.labelled = (self._on_device(rows) for rows in (lessons.best, lessons.labelled))
        self.documents, self.questions = (self._on_device(vectors) for vectors in lessons.full)
        self.asked = self._on_device(lessons.own.questions)
        self.bases = [settings.rate, settings.adapter_rate]
        groups = [{"params": [one], "lr": rate} for one, rate in zip(learner.parameters(), self.bases, strict=True)]
        self.optimizer = torch.optim.Adam(groups, betas=(0.9, 0.99))
        self.step, self.skipped, self.total = 0, 0, 0.0

    def state(self) -> dict[str, Any]:
        return {
            "learner": self.learner.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "skipped": self.skipped,
            "total": self.total,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.learner.load_state_dict(state["learner"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.total = state["step"], state["total"]
        self.skipped = state.get("skipped", 0)  # a checkpoint of an earlier version does not say

    def train_step(self) -> float:
        """One update; what it draws is a function of seed and step. One whose loss or gradient is not finite changes
        nothing."""
        for group, base in zip(self.optimizer.param_groups, self.bases, strict=True):
            group["lr"] = base * schedule(self.step, self.settings.steps, 0.1)
        asked, pool = self._draw(np.random.default_rng((self.settings.seed, self.step)))
        loss = self.loss(asked, pool)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norms = [one.grad.norm() for one in self.learner.parameters() if one.grad is not None]
        value, *lengths = torch.stack([loss.detach(), *norms]).tolist()
        self.step += 1
        if math.isfinite(value + sum(lengths)):
            self.optimizer.step()
            self.total += value
        else:
            self._skip(value)
        return float(value)

    def _skip(self, value: float) -> None:
        """Count it; many end the learning, and so does it where no step was finite: nothing was learned."""
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
        """Questions, and the pool all of them are compared with: some of their best, their labelled, random others."""
        settings, best = self.settings, self.best
        asked = self._on_device(random.integers(0, len(best), settings.batch_size))
        picked = self._on_device(random.random((len(asked), best.shape[1]))).argsort(1)[:, : settings.own]
        others = self._on_device(random.integers(0, len(self.documents), settings.others))
        parts = [best[asked].gather(1, picked).flatten(), self.labelled[asked].flatten(), others]
        pool = torch.unique(torch.cat(parts))
        return asked, pool[pool >= 0]

    def _on_device(self, array: npt.NDArray[Any]) -> Tensor:
        return torch.as_tensor(array, device=self.device)

    def loss(self, asked: Tensor, pool: Tensor) -> Tensor:
        """How far the codes' distribution over the pool is from the full vectors' (KL), and from the labels."""
        scale = 1 / self.settings.temperature
        questions = self.questions[asked]
        wanted = functional.log_softmax(scale * (questions @ self.documents[pool].T), dim=1)
        found = scale * self.learner.scores(self.asked[asked], pool)
        loss = functional.kl_div(functional.log_softmax(found, dim=1), wanted, reduction="batchmean", log_target=True)
        if self.labelled.shape[1] and self.settings.label_weight:
            loss = loss + self.settings.label_weight * label_loss(found, self.labelled[asked], pool)
        return loss


def label_loss(scores: Tensor, labelled: Tensor, pool: Tensor) -> Tensor:
    """Mean over labelled documents of -log of their share among the pool without the question's other labelled ones."""
    has = labelled >= 0
    places = torch.searchsorted(pool, labelled.clamp(min=0))
    own = scores.gather(1, places.clamp(max=len(pool) - 1))
    rows = torch.arange(len(scores), device=scores.device).unsqueeze(1).expand_as(places)
    hidden = torch.tensor(-torch.inf, device=scores.device)
    others = scores.index_put((rows[has], places[has]), hidden).logsumexp(1, keepdim=True)
    losses = functional.softplus(others - own)[has]
    return losses.sum() / max(1, int(has.any(1).sum()))
