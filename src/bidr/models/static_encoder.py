"""Encode texts by a table of token vectors, with numpy alone: inference for the built-in encoder."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from bidr.errors import ModelError
from bidr.models.encoder_interface import Prompts, TextEncoder
from bidr.models.static_embeddings import TOKENIZER, WEIGHTS
from bidr.tokenization.token_store import Tokens
from bidr.utils.array_types import Floats
from bidr.utils.files import open_to_read
from bidr.utils.jit import njit_cached

FOLDER = "0_StaticEmbedding"
MODULES: list[dict[str, Any]] = [
    {"idx": 0, "name": "0", "path": FOLDER, "type": "sentence_transformers.models.StaticEmbedding"},
    {"idx": 1, "name": "1", "path": "1_Normalize", "type": "sentence_transformers.models.Normalize"},
]
MAX_LENGTH = 100_000
SHORTEST = np.float32(1e-12)


class StaticEncoder(TextEncoder):
    """Normalized sum of token vectors; reads the StaticEmbedding that `BagOfTokensEncoder` saves."""

    def __init__(self, tokenizer: Tokenizer, table: Floats) -> None:
        self.tokenizer, self.prompts, self.table = tokenizer, Prompts(), table
        self.max_length, self.dim, self.normalized = MAX_LENGTH, table.shape[1], True

    @classmethod
    def load(cls, folder: Path) -> "StaticEncoder":
        return cls(*load_table(folder))

    def encode(self, tokens: Tokens) -> Floats:
        """Return one vector for each text: (n, dim), of length 1."""
        vectors = np.zeros((len(tokens.offsets) - 1, self.dim), dtype=np.float32)
        _sum_rows(self.table, np.asarray(tokens.ids), np.asarray(tokens.offsets), vectors)
        vectors /= np.maximum(np.sqrt(np.add.reduce(vectors * vectors, axis=1, keepdims=True)), SHORTEST)
        return vectors


def load_table(folder: Path) -> tuple[Tokenizer, Floats]:
    """Load the tokenizer and the token vectors of a saved StaticEmbedding."""
    inner = folder / FOLDER
    try:
        for name in (WEIGHTS, TOKENIZER):
            open_to_read(inner / name).close()
        table = load_file(inner / WEIGHTS)["embedding.weight"]
        tokenizer = Tokenizer.from_file(str(inner / TOKENIZER))
        largest = max(tokenizer.get_vocab().values(), default=0)
        if table.ndim != 2 or table.dtype != np.float32 or not table.shape[1] or largest >= len(table):
            raise ValueError(f"{table.dtype} of shape {table.shape} for {largest + 1:,} tokens")
        if not np.isfinite(table).all():
            raise ValueError("a weight is not finite")
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # tokenizers raises plain Exception for a bad file, and panics beside Exception
        raise ModelError(f"{folder}: the encoder cannot be read ({error}); train it again") from error
    return tokenizer, table


@njit_cached()
def _sum_rows(table: Floats, ids: npt.NDArray[Any], offsets: npt.NDArray[Any], sums: Floats) -> None:
    for text in range(len(offsets) - 1):
        for place in range(offsets[text], offsets[text + 1]):
            row = table[ids[place]]
            for column in range(table.shape[1]):
                sums[text, column] += row[column]
