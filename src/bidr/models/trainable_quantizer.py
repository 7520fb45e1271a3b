"""The trainable quantizer: codewords chosen by nearest distance, gradients passed straight through the choice."""

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from bidr.quantization.additive_quantizer import AdditiveQuantizer
from bidr.quantization.codebooks import Codebooks
from bidr.quantization.residual_quantizer import search_nearest_sums, sum_codewords

Assignment = Literal["nearest", "uniform"]
SINKHORN_ROUNDS, SINKHORN_SHARE = 100, 0.05
SUMMED_BEAM = 4


class TrainableQuantizer(nn.Module):
    """Codebooks as parameters. The rotation stays as OPQ found it; the codewords learn.

    assignment "uniform" chooses codewords, while learning, such that a batch uses all of a book equally.
    """

    rotation: Tensor

    def __init__(self, codebooks: Codebooks, temperature: float = 0.01, assignment: Assignment = "nearest") -> None:
        super().__init__()
        self.assignment = assignment
        self.register_buffer("rotation", torch.tensor(np.asarray(codebooks.rotation)))
        self.centroids = nn.Parameter(torch.tensor(np.asarray(codebooks.centroids)))
        # The softmax of squared distances is flat unless the temperature fits the sub-vectors' size.
        self.temperature = temperature

    def rotate(self, vectors: Tensor) -> Tensor:
        """Queries are only rotated: scores are asymmetric."""
        return vectors @ self.rotation.T

    def forward(self, vectors: Tensor) -> Tensor:
        """Documents as their codewords, in rotated space; differentiable for vectors and codewords."""
        distances = self._distances(self.rotate(vectors))
        soft = functional.softmax(-distances / self.temperature, dim=2)
        hard = functional.one_hot(self._choose(distances), distances.shape[2]).to(soft.dtype)
        choice = hard + soft - soft.detach()
        return torch.einsum("nmp,mpd->nmd", choice, self.centroids).flatten(1)

    def compute_error(self, vectors: Tensor) -> Tensor:
        """Mean squared distance between vectors and their codewords."""
        rotated = self.rotate(vectors)
        chosen = self._choose(self._distances(rotated).detach())
        words = self.centroids[torch.arange(len(self.centroids), device=chosen.device), chosen]
        return (rotated - words.flatten(1)).square().sum(1).mean()

    def _distances(self, rotated: Tensor) -> Tensor:
        books, _, width = self.centroids.shape
        parts = rotated.view(-1, books, width)
        dots = torch.einsum("nmd,mpd->nmp", parts, self.centroids)
        return parts.square().sum(2, keepdim=True) + self.centroids.square().sum(2) - 2 * dots

    def _choose(self, distances: Tensor) -> Tensor:
        balanced = self.assignment == "uniform" and self.training
        return (-balance_assignment(distances.detach()) if balanced else distances).argmin(2)

    def to_codebooks(self) -> Codebooks:
        """The plain arrays as they are now."""
        return Codebooks(self.rotation.cpu().numpy().copy(), self.centroids.detach().cpu().numpy().copy())


def balance_assignment(distances: Tensor) -> Tensor:
    """Shares of (n, books, words) codewords, each document's summing to 1 and each codeword's to n / words: the nearest
    such choice, smoothed (Sinkhorn's iteration)."""
    # In double precision and from centred distances: exponents of plain ones leave the range of floats.
    centred = distances.double() - distances.double().mean(dim=(0, 2), keepdim=True)
    spread = centred.std(dim=(0, 2), keepdim=True).clamp(min=1e-12)
    logits = -centred / (SINKHORN_SHARE * spread)
    ideal = math.log(len(distances) / distances.shape[2])
    for _ in range(SINKHORN_ROUNDS):
        logits = logits - logits.logsumexp(dim=0, keepdim=True) + ideal
        logits = logits - logits.logsumexp(dim=2, keepdim=True)
    return logits.exp()


class TrainableAdditiveQuantizer(nn.Module):
    """Sums of codewords as parameters, with the adapter of the queries; gradients pass the choice as if it were none.

    The documents' map and centre stay as they were fitted.
    """

    centre: Tensor
    document: Tensor

    def __init__(self, additive: AdditiveQuantizer) -> None:
        super().__init__()
        self.groups = additive.groups
        self.register_buffer("centre", torch.tensor(additive.centre))
        self.register_buffer("document", torch.tensor(additive.document))
        self.codewords = nn.Parameter(torch.tensor(additive.codewords))
        self.query = nn.Parameter(torch.tensor(additive.query))

    def adapt(self, queries: Tensor) -> Tensor:
        return queries @ self.query.T

    def forward(self, vectors: Tensor) -> Tensor:
        """Documents as the sums of their codewords; differentiable for vectors and codewords."""
        placed = (vectors - self.centre) @ self.document.T
        parts = zip(placed.chunk(self.groups, dim=1), self.codewords.chunk(self.groups), strict=True)
        found = [
            sum_codewords(words, search_nearest_sums(part.detach(), words.detach(), SUMMED_BEAM))
            for part, words in parts
        ]
        return torch.cat(found, dim=1) + placed - placed.detach()

    def to_additive(self) -> AdditiveQuantizer:
        """The plain arrays as they are now."""
        names = ("centre", "document", "query", "codewords")
        arrays = {name: getattr(self, name).detach().cpu().numpy().copy() for name in names}
        return AdditiveQuantizer(**arrays, chosen_by=arrays["codewords"])
