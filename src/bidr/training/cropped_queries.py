"""Cropped queries: random passages of documents as queries for these documents."""

from typing import NamedTuple

import numpy as np

from bidr.models.trainable_encoder import Encoder
from bidr.tokenization.token_store import Tokens
from bidr.utils.array_types import Rows


class CropSampler(NamedTuple):
    """Cuts random passages as long as queries.

    share:            passages per query of a batch.
    lengths:          of the queries, in tokens; passages have the same.
    opening, closing: special tokens that the tokenizer puts around a text, which are kept.
    """

    share: float
    lengths: Rows
    opening: int
    closing: int

    def cut(self, documents: Tokens, random: np.random.Generator) -> Tokens:
        """Cut a random passage of each document."""
        fixed = self.opening + self.closing
        starts, document_lengths = documents.offsets[:-1], np.diff(documents.offsets)
        crop_lengths = np.minimum(random.choice(self.lengths, len(document_lengths)), document_lengths)
        inner = crop_lengths - fixed
        first = (random.random(len(document_lengths)) * (document_lengths - crop_lengths + 1)).astype(np.int64)
        offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(crop_lengths)])
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], crop_lengths)
        shift = np.where(within >= self.opening, np.repeat(first, crop_lengths), 0)
        shift = np.where(
            within >= np.repeat(self.opening + inner, crop_lengths),
            np.repeat(document_lengths - crop_lengths, crop_lengths),
            shift,
        )
        return Tokens(documents.ids[np.repeat(starts, crop_lengths) + within + shift], offsets)


def make_crop_sampler(encoder: Encoder, share: float, lengths: Rows) -> CropSampler:
    """Make a sampler of passages with the given lengths."""
    encoded = encoder.tokenizer.encode("a")
    # Padding tokens are marked as special too.
    mask = [special for special, real in zip(encoded.special_tokens_mask, encoded.attention_mask, strict=True) if real]
    inside = [position for position, special in enumerate(mask) if not special]
    opening, closing = (inside[0], len(mask) - 1 - inside[-1]) if inside else (0, 0)
    return CropSampler(share, np.maximum(lengths, opening + closing + 1), opening, closing)


def concat_tokens(first: Tokens, second: Tokens) -> Tokens:
    """Concatenate two batches of texts."""
    return Tokens(
        np.concatenate([first.ids, second.ids]), np.concatenate([first.offsets, first.offsets[-1] + second.offsets[1:]])
    )
