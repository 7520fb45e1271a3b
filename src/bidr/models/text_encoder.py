"""The interface of encoders that turn tokens into vectors."""

from typing import NamedTuple

from tokenizers import Tokenizer as Vocabulary

from bidr.tokenization.tokenizer import TextTokenizer


class Prompts(NamedTuple):
    """Text put before a query or a document, as the model was trained with."""

    query: str = ""
    document: str = ""


class TextEncoder:
    """What every encoder has: a tokenizer, prompts and a shape. Needs no torch."""

    tokenizer: Vocabulary
    prompts: Prompts
    max_length: int
    """The most tokens the model can read."""
    dim: int
    normalized: bool
    """Whether vectors have length 1; the scale of the scores depends on it."""

    def get_tokenizer(self, max_length: int) -> TextTokenizer:
        """Return what cuts texts into this encoder's tokens; made once for each length."""
        length = min(max_length, self.max_length)
        by_length: dict[int, TextTokenizer] = self.__dict__.setdefault("_tokenizers", {})
        if length not in by_length:
            by_length[length] = TextTokenizer(self.tokenizer, length)
        return by_length[length]
