"""What every encoder offers: tokens in, vectors out, saved in the layout that sentence-transformers reads."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import NamedTuple, cast

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from bidr.tokenization.token_store import Tokens
from bidr.tokenization.tokenizer import TextTokenizer


class Prompts(NamedTuple):
    """Text put before a query or a document, as the model was trained with."""

    query: str = ""
    document: str = ""


class Encoder(nn.Module, ABC):
    """Turns ragged batches of tokens into vectors."""

    tokenizer: Tokenizer
    prompts: Prompts
    max_length: int
    """The most tokens the model can read."""
    dim: int
    normalised: bool
    """Whether vectors have length 1; the scale of the scores depends on it."""

    @abstractmethod
    def forward(self, tokens: Tokens) -> Tensor:
        """One vector a text: (n, dim) float32."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write a folder that `load_encoder` and `SentenceTransformer(...)` both read."""

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def get_tokenizer(self, max_length: int) -> TextTokenizer:
        """What cuts texts into this encoder's tokens; made once for each length."""
        length = min(max_length, self.max_length)
        made: dict[int, TextTokenizer] = self.__dict__.setdefault("_tokenisers", {})
        if length not in made:
            made[length] = TextTokenizer(self.tokenizer, length)
        return made[length]

    def expect_steps(self, steps: int) -> None:
        """Told before training how many steps will follow: work that pays only over many of them can be done now."""

    def encode(self, tokens: Tokens) -> Tensor:
        return cast(Tensor, self(tokens))
