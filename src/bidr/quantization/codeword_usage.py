"""How well the codewords are used: a code whose words lie idle stores less than its bytes."""

from typing import NamedTuple

import numpy as np

from bidr.utils.array_types import Codes


class Usage(NamedTuple):
    """Statistics over all books."""

    used: float
    """Share of codewords that at least one document chose."""
    entropy_bits: float
    """Mean entropy of a book's choices; log2(words) is the most."""
    least_entropy_bits: float
    """Entropy of the worst book."""


def usage(codes: Codes, words: int) -> Usage:
    """Count which codewords the documents chose."""
    counts = np.stack([np.bincount(codes[:, book], minlength=words) for book in range(codes.shape[1])])
    shares = counts / counts.sum(axis=1, keepdims=True)
    entropies = -(shares * np.log2(np.where(shares > 0, shares, 1))).sum(axis=1)
    return Usage(float((counts > 0).mean()), float(entropies.mean()), float(entropies.min()))
