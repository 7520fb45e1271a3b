"""What every encoder offers: tokens in, vectors out, saved in the layout that sentence-transformers reads."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from bidr.models.text_encoder import TextEncoder
from bidr.tokenization.token_store import Tokens


class Encoder(nn.Module, TextEncoder, ABC):
    """Turns ragged batches of tokens into vectors."""

    @abstractmethod
    def forward(self, tokens: Tokens) -> Tensor:
        """One vector a text: (n, dim) float32."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write a folder that `load_encoder` and `SentenceTransformer(...)` both read."""

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def expect_steps(self, steps: int) -> None:
        """Told before training how many steps will follow: work that pays only over many of them can be done now."""

    def encode(self, tokens: Tokens) -> Tensor:
        return cast(Tensor, self(tokens))
