"""The interface of encoders that turn tokens into vectors."""

from abc import ABC, abstractmethod
from typing import NamedTuple

from tokenizers import Tokenizer as Vocabulary

from bidr.tokenization.token_store import Tokens
from bidr.tokenization.tokenizer import TextTokenizer
from bidr.utils.array_types import Floats


class Prompts(NamedTuple):
    """Prefixes of queries and documents that the model was trained with."""

    query: str = ""
    document: str = ""


class TextEncoder:
    """Base of encoders: tokenizer, prompts and dimensions; independent of torch."""

    tokenizer: Vocabulary
    prompts: Prompts
    max_length: int
    """Maximum number of tokens of a text."""
    dim: int
    normalized: bool
    """Whether vectors have length 1; the scale of the scores depends on it."""

    def get_tokenizer(self, max_length: int) -> TextTokenizer:
        """Return the tokenizer for a maximum length; cached by length."""
        length = min(max_length, self.max_length)
        by_length: dict[int, TextTokenizer] = self.__dict__.setdefault("_tokenizers", {})
        if length not in by_length:
            by_length[length] = TextTokenizer(self.tokenizer, length)
        return by_length[length]


class ArrayEncoder(TextEncoder, ABC):
    """An encoder that returns numpy arrays and needs no torch."""

    @abstractmethod
    def encode(self, tokens: Tokens) -> Floats:
        """Return one vector for each text: (n, dim) float32."""

    @abstractmethod
    def hash_weights(self) -> str:
        """Hash the weights."""
