"""Documents that nobody asked for ask for themselves: a passage of one stands in for its question."""

from typing import NamedTuple

import numpy as np

from bidr.models.encoder import Encoder
from bidr.tokenization.token_store import Tokens
from bidr.utils.array_types import Rows


class CropSampler(NamedTuple):
    """How passages are cut.

    share:            passages for each question of a batch.
    lengths:          of the questions, tokens; passages are as long.
    opening, closing: tokens that the tokenizer puts around every text, which stay.
    """

    share: float
    lengths: Rows
    opening: int
    closing: int

    def cut(self, documents: Tokens, random: np.random.Generator) -> Tokens:
        """A random passage of each document."""
        fixed = self.opening + self.closing
        starts, whole = documents.offsets[:-1], np.diff(documents.offsets)
        kept = np.minimum(random.choice(self.lengths, len(whole)), whole)
        inner = kept - fixed
        first = (random.random(len(whole)) * (whole - kept + 1)).astype(np.int64)
        offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(kept)])
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], kept)
        shift = np.where(within >= self.opening, np.repeat(first, kept), 0)
        shift = np.where(within >= np.repeat(self.opening + inner, kept), np.repeat(whole - kept, kept), shift)
        return Tokens(documents.ids[np.repeat(starts, kept) + within + shift], offsets)


def crops_of(encoder: Encoder, share: float, lengths: Rows) -> CropSampler | None:
    """Passages as long as the questions; None where none are asked for."""
    return make_crop_sampler(encoder, share, lengths) if share else None


def make_crop_sampler(encoder: Encoder, share: float, lengths: Rows) -> CropSampler:
    """Passages as long as the questions."""
    encoded = encoder.tokenizer.encode("a")
    # A tokenizer that pads says of its padding, too, that it is special.
    mask = [special for special, real in zip(encoded.special_tokens_mask, encoded.attention_mask, strict=True) if real]
    inside = [place for place, special in enumerate(mask) if not special]
    opening, closing = (inside[0], len(mask) - 1 - inside[-1]) if inside else (0, 0)
    return CropSampler(share, np.maximum(lengths, opening + closing + 1), opening, closing)


def concat_tokens(one: Tokens, other: Tokens) -> Tokens:
    """The texts of both, one after the other."""
    return Tokens(
        np.concatenate([one.ids, other.ids]), np.concatenate([one.offsets, one.offsets[-1] + other.offsets[1:]])
    )
