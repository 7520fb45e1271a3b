"""Quality metrics of codes: codeword utilization and reconstruction error."""

from typing import NamedTuple

import numpy as np

from bidr.quantization.additive_quantizer import AdditiveQuantizer, to_additive
from bidr.quantization.codebooks import Codebooks
from bidr.utils.array_types import Codes, Floats


class CodewordUsage(NamedTuple):
    """Codeword utilization over all books."""

    used: float
    """Share of codewords with at least one document."""
    entropy_bits: float
    """Mean entropy of a book; at most log2(words)."""
    least_entropy_bits: float
    """Entropy of the worst book."""


def measure_usage(codes: Codes, words: int) -> CodewordUsage:
    """Measure how evenly documents use the codewords; `words` per book."""
    counts = np.stack([np.bincount(codes[:, book], minlength=words) for book in range(codes.shape[1])])
    shares = counts / counts.sum(axis=1, keepdims=True)
    entropies = -(shares * np.log2(np.where(shares > 0, shares, 1))).sum(axis=1)
    return CodewordUsage(float((counts > 0).mean()), float(entropies.mean()), float(entropies.min()))


def compute_reconstruction_errors(codebooks: Codebooks | AdditiveQuantizer, vectors: Floats, codes: Codes) -> Floats:
    """Compute each vector's squared distance to its reconstruction, relative to its squared norm."""
    if isinstance(codebooks, Codebooks) and codebooks.document is not None:
        codebooks = to_additive(codebooks)
    if isinstance(codebooks, AdditiveQuantizer):
        projected = codebooks.project(vectors)
        chosen = codebooks.chosen_by[np.arange(codes.shape[1]), codes]
        sums = chosen.reshape(len(codes), codebooks.groups, -1, chosen.shape[2]).sum(axis=2)
        decoded = sums.reshape(projected.shape)
    else:
        projected = codebooks.rotate(vectors)
        codewords = codebooks.centroids if codebooks.choosing is None else codebooks.choosing
        decoded = codewords[np.arange(codebooks.books), codes].reshape(projected.shape)
    norms = np.square(projected).sum(axis=1)
    errors: Floats = np.square(projected - decoded).sum(axis=1) / np.maximum(norms, np.finfo(np.float32).tiny)
    return errors
