"""The trainable quantizer: codewords chosen by nearest distance, gradients passed straight through the choice."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from bidr.codes import Codebooks


class Quantizer(nn.Module):
    """Codebooks as parameters. The rotation stays as OPQ found it; the codewords learn."""

    rotation: Tensor

    def __init__(self, codebooks: Codebooks, temperature: float = 0.01) -> None:
        super().__init__()
        self.register_buffer("rotation", torch.tensor(np.asarray(codebooks.rotation)))
        self.centroids = nn.Parameter(torch.tensor(np.asarray(codebooks.centroids)))
        # The softmax of squared distances is flat unless the temperature fits the sub-vectors' size.
        self.temperature = temperature

    def rotate(self, vectors: Tensor) -> Tensor:
        """Queries are only rotated: scores are asymmetric."""
        return vectors @ self.rotation.T

    def forward(self, vectors: Tensor) -> Tensor:
        """Documents as their codewords, in rotated space; differentiable for vectors and codewords."""
        books, words, width = self.centroids.shape
        parts = self.rotate(vectors).view(-1, books, width)
        dots = torch.einsum("nmd,mpd->nmp", parts, self.centroids)
        distances = parts.square().sum(2, keepdim=True) + self.centroids.square().sum(2) - 2 * dots
        soft = functional.softmax(-distances / self.temperature, dim=2)
        hard = functional.one_hot(distances.argmin(2), words).to(soft.dtype)
        choice = hard + soft - soft.detach()
        return torch.einsum("nmp,mpd->nmd", choice, self.centroids).flatten(1)

    def codebooks(self) -> Codebooks:
        """The plain arrays as they are now."""
        return Codebooks(self.rotation.cpu().numpy().copy(), self.centroids.detach().cpu().numpy().copy())
