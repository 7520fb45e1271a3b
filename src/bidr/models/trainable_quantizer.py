"""Trainable quantizers with straight-through gradients."""

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
    """Product quantizer with trainable codewords and a fixed rotation.

    assignment "uniform": during training a batch uses all codewords of a book equally.
    """

    rotation: Tensor

    def __init__(self, codebooks: Codebooks, temperature: float = 0.01, assignment: Assignment = "nearest") -> None:
        super().__init__()
        self.assignment = assignment
        self.register_buffer("rotation", torch.tensor(np.asarray(codebooks.rotation)))
        self.centroids = nn.Parameter(torch.tensor(np.asarray(codebooks.centroids)))
        # Squared distances grow with the squared length of the vectors, so the temperature is relative to it: with a
        # fixed one the softmax of long vectors is hard and their gradient vanishes.
        self.temperature = temperature

    def rotate(self, vectors: Tensor) -> Tensor:
        """Rotate queries; they are not quantized (asymmetric scores)."""
        return vectors @ self.rotation.T

    def forward(self, vectors: Tensor) -> Tensor:
        """Quantize documents, in rotated space; differentiable for vectors and codewords."""
        rotated = self.rotate(vectors)
        distances = self._compute_distances(rotated)
        mean_squared_length = rotated.detach().square().sum(1).mean()
        soft = functional.softmax(-distances / (self.temperature * mean_squared_length), dim=2)
        hard = functional.one_hot(self._choose(distances), distances.shape[2]).to(soft.dtype)
        choice = hard + soft - soft.detach()
        return torch.einsum("nmp,mpd->nmd", choice, self.centroids).flatten(1)

    def compute_error(self, vectors: Tensor) -> Tensor:
        """Compute the mean squared quantization error."""
        rotated = self.rotate(vectors)
        chosen = self._choose(self._compute_distances(rotated).detach())
        words = self.centroids[torch.arange(len(self.centroids), device=chosen.device), chosen]
        return (rotated - words.flatten(1)).square().sum(1).mean()

    def _compute_distances(self, rotated: Tensor) -> Tensor:
        books, _, width = self.centroids.shape
        parts = rotated.view(-1, books, width)
        dots = torch.einsum("nmd,mpd->nmp", parts, self.centroids)
        return parts.square().sum(2, keepdim=True) + self.centroids.square().sum(2) - 2 * dots

    def _choose(self, distances: Tensor) -> Tensor:
        balanced = self.assignment == "uniform" and self.training
        return (-balance_assignment(distances.detach()) if balanced else distances).argmin(2)

    def to_codebooks(self) -> Codebooks:
        """Copy the current parameters to arrays."""
        return Codebooks(self.rotation.cpu().numpy().copy(), self.centroids.detach().cpu().numpy().copy())


def balance_assignment(distances: Tensor) -> Tensor:
    """Compute balanced soft assignments (n, books, words) by Sinkhorn iterations.

    The shares of a document sum to 1, those of a codeword to n / words.
    """
    # float64 and centred distances: the exponents of uncentred ones overflow.
    centred = distances.double() - distances.double().mean(dim=(0, 2), keepdim=True)
    spread = centred.std(dim=(0, 2), keepdim=True).clamp(min=1e-12)
    logits = -centred / (SINKHORN_SHARE * spread)
    ideal = math.log(len(distances) / distances.shape[2])
    for _ in range(SINKHORN_ROUNDS):
        logits = logits - logits.logsumexp(dim=0, keepdim=True) + ideal
        logits = logits - logits.logsumexp(dim=2, keepdim=True)
    return logits.exp()


class TrainableAdditiveQuantizer(nn.Module):
    """Additive quantizer with trainable codewords and query adapter, and a fixed document projection."""

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
        """Quantize documents to sums of codewords; differentiable for vectors and codewords."""
        placed = (vectors - self.centre) @ self.document.T
        parts = zip(placed.chunk(self.groups, dim=1), self.codewords.chunk(self.groups), strict=True)
        decoded = [
            sum_codewords(words, search_nearest_sums(part.detach(), words.detach(), SUMMED_BEAM))
            for part, words in parts
        ]
        return torch.cat(decoded, dim=1) + placed - placed.detach()

    def to_additive(self) -> AdditiveQuantizer:
        """Copy the current parameters to arrays."""
        names = ("centre", "document", "query", "codewords")
        arrays = {name: getattr(self, name).detach().cpu().numpy().copy() for name in names}
        return AdditiveQuantizer(**arrays, chosen_by=arrays["codewords"])
