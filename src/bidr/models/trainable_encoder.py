"""Base class of trainable encoders, saved in the layout of sentence-transformers."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from bidr.models.encoder_interface import TextEncoder
from bidr.tokenization.token_store import Tokens


class Encoder(nn.Module, TextEncoder, ABC):
    """A torch module that encodes ragged batches of tokens."""

    @abstractmethod
    def forward(self, tokens: Tokens) -> Tensor:
        """Encode: one vector per text, (n, dim) float32."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write a folder that `load_encoder` and `SentenceTransformer(...)` both read."""

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def expect_steps(self, steps: int) -> None:
        """Prepare for a number of training steps, for example by compiling layers."""

    def encode(self, tokens: Tokens) -> Tensor:
        return cast(Tensor, self(tokens))
