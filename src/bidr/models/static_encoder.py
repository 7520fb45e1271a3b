"""Encode texts by a table of token vectors, with numpy alone: inference for static encoders."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from bidr.errors import ModelError
from bidr.models.encoder_interface import ArrayEncoder, Prompts
from bidr.models.static_embeddings import TOKENIZER, WEIGHTS, load_static_embeddings
from bidr.tokenization.token_store import Tokens
from bidr.utils.array_types import Floats
from bidr.utils.files import open_to_read
from bidr.utils.jit import njit_cached

FOLDER = "0_StaticEmbedding"
MODULES: list[dict[str, Any]] = [
    {"idx": 0, "name": "0", "path": FOLDER, "type": "sentence_transformers.models.StaticEmbedding"},
    {"idx": 1, "name": "1", "path": "1_Normalize", "type": "sentence_transformers.models.Normalize"},
]
MAX_LENGTH, MODEL2VEC_MAX_LENGTH = 100_000, 512
SHORTEST = np.float32(1e-12)


class StaticEncoder(ArrayEncoder):
    """Normalized sum of token vectors: the built-in encoder, or a pretrained static model."""

    def __init__(self, tokenizer: Tokenizer, table: Floats, max_length: int = MAX_LENGTH) -> None:
        self.tokenizer, self.prompts, self.table = tokenizer, Prompts(), table
        self.max_length, self.dim, self.normalized = max_length, table.shape[1], True

    @classmethod
    def load(cls, folder: Path) -> "StaticEncoder":
        """Load the StaticEmbedding that `BagOfTokensEncoder` saves."""
        return cls(*load_table(folder))

    @classmethod
    def load_pretrained(cls, name: str) -> "StaticEncoder":
        """Load a model of model2vec or sentence-transformers, or that of the wordllama wheel."""
        static = load_static_embeddings(name)
        table = static.table
        if static.is_model2vec:  # it drops unknown tokens and cuts texts
            unknown = getattr(static.tokenizer.model, "unk_token", None)
            row = static.tokenizer.token_to_id(unknown) if unknown else None
            if row is not None:
                table[row] = 0
        return cls(static.tokenizer, table, MODEL2VEC_MAX_LENGTH if static.is_model2vec else MAX_LENGTH)

    def encode(self, tokens: Tokens) -> Floats:
        """Return one vector for each text: (n, dim), of length 1."""
        vectors = np.zeros((len(tokens.offsets) - 1, self.dim), dtype=np.float32)
        _sum_rows(self.table, np.asarray(tokens.ids), np.asarray(tokens.offsets), vectors)
        vectors /= np.maximum(np.sqrt(np.add.reduce(vectors * vectors, axis=1, keepdims=True)), SHORTEST)
        return vectors

    def hash_weights(self) -> str:
        return xxhash.xxh3_128_hexdigest(self.table.tobytes())


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
