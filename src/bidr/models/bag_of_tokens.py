"""Built-in encoder: a weighted bag of word pieces, trained in minutes on two cores."""

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from bidr.models.encoder_interface import Prompts
from bidr.models.static_embeddings import TOKENIZER, WEIGHTS, StaticEmbeddings, embed_pieces
from bidr.models.static_encoder import FOLDER, MAX_LENGTH, MODULES, SHORTEST, load_table
from bidr.models.trainable_encoder import Encoder
from bidr.tokenization.token_store import Tokens, TokenStore


class BagOfTokensEncoder(Encoder):
    """Normalized sum of word-piece vectors, each with a learned weight; saved as a StaticEmbedding."""

    def __init__(self, tokenizer: Tokenizer, table: Tensor) -> None:
        super().__init__()
        self.tokenizer, self.prompts = tokenizer, Prompts()
        self.max_length, self.dim, self.normalized = MAX_LENGTH, table.shape[1], True
        # Direction and weight are separate parameters: Adam then updates the weights of rare and common words alike.
        norms = table.norm(dim=1).clamp(min=1e-6)
        self.directions = nn.Parameter(table / norms.unsqueeze(1))
        self.weights = nn.Parameter(norms)

    @classmethod
    def create(cls, tokenizer: Tokenizer, store: TokenStore, dim: int, seed: int) -> "BagOfTokensEncoder":
        """Create an untrained encoder: random directions, weighted by inverse document frequency."""
        vocabulary = tokenizer.get_vocab_size()
        weights = torch.as_tensor(compute_idf(store, vocabulary), dtype=torch.float32)
        random = torch.Generator().manual_seed(seed)
        directions = functional.normalize(torch.randn(vocabulary, dim, generator=random), dim=1)
        return cls(tokenizer, directions * weights.unsqueeze(1))

    @classmethod
    def create_pretrained(
        cls, tokenizer: Tokenizer, store: TokenStore, static: StaticEmbeddings, seed: int
    ) -> "BagOfTokensEncoder":
        """Create an encoder that starts from pretrained token vectors.

        Each word piece has the direction of the sum of its pretrained vectors, and the weight IDF times the square root
        of their length. Pieces unknown to the pretrained model have random directions, weighted by IDF alone.

        Args:
            tokenizer: That of the store: learned from the corpus, or that of `static`, whose rows are then taken as
                they are.
        """
        vocabulary = tokenizer.get_vocab_size()
        is_same = tokenizer.to_str() == static.tokenizer.to_str()
        sums = static.table if is_same else embed_pieces(static, list_pieces(tokenizer))
        lengths = np.linalg.norm(sums, axis=1)
        is_known = lengths > SHORTEST
        random = np.random.default_rng(seed).standard_normal(sums.shape, dtype=np.float32)
        directions = np.where(is_known[:, None], sums, random)
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        scales = np.sqrt(np.where(is_known, lengths, lengths[is_known].mean() if is_known.any() else 1.0))
        weights = compute_idf(store, len(sums) if is_same else vocabulary)
        mean = weights.mean()
        weights *= scales
        weights *= mean / weights.mean()  # the learning rate fits weights of this size
        return cls(tokenizer, torch.from_numpy((directions * weights[:, None]).astype(np.float32)))

    def forward(self, tokens: Tokens) -> Tensor:
        ids = torch.as_tensor(np.asarray(tokens.ids, dtype=np.int64), device=self.device)
        starts = torch.as_tensor(np.asarray(tokens.offsets[:-1], dtype=np.int64), device=self.device)
        sums = functional.embedding_bag(ids, self.directions, starts, mode="sum", per_sample_weights=self.weights[ids])
        return functional.normalize(sums, dim=1)

    def save(self, folder: Path) -> None:
        inner = folder / FOLDER
        inner.mkdir(parents=True, exist_ok=True)
        (folder / "1_Normalize").mkdir(exist_ok=True)
        (folder / "modules.json").write_text(json.dumps(MODULES, indent=2))
        (folder / "config_sentence_transformers.json").write_text(
            json.dumps({"similarity_fn_name": "cosine"}, indent=2)
        )
        self.tokenizer.save(str(inner / TOKENIZER))
        table = self.directions * self.weights.unsqueeze(1)
        save_file({"embedding.weight": table.detach().cpu().contiguous()}, inner / WEIGHTS)

    @classmethod
    def load(cls, folder: Path) -> "BagOfTokensEncoder":
        tokenizer, table = load_table(folder)
        return cls(tokenizer, torch.from_numpy(table))


def list_pieces(tokenizer: Tokenizer) -> list[str]:
    """List the word pieces in the order of their ids."""
    vocabulary = tokenizer.get_vocab()
    pieces = [""] * (max(vocabulary.values()) + 1)
    for piece, token_id in vocabulary.items():
        pieces[token_id] = piece
    return pieces


def compute_idf(
    store: TokenStore, vocabulary: int, rows_at_once: int = 50_000
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Compute log((n + 1) / (df + 0.5)) for every word piece."""
    frequencies = np.zeros(vocabulary, dtype=np.int64)
    for tokens in _iter_blocks(store, rows_at_once):
        owners = np.repeat(np.arange(len(tokens.offsets) - 1), np.diff(tokens.offsets))
        distinct = np.unique(owners * vocabulary + tokens.ids) % vocabulary
        frequencies += np.bincount(distinct, minlength=vocabulary)
    weights: np.ndarray[tuple[int], np.dtype[np.float64]] = np.log((len(store) + 1) / (frequencies + 0.5))
    return np.maximum(weights, 0.01)


def _iter_blocks(store: TokenStore, rows_at_once: int) -> Iterable[Tokens]:
    for start in range(0, len(store), rows_at_once):
        yield store.get_batch(np.arange(start, min(start + rows_at_once, len(store))))
