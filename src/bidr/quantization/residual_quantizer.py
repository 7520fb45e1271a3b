"""Residual quantizer in torch: beam-search encoding and sequential training."""

import torch
from torch import Tensor

from bidr.quantization.torch_kmeans import fit_kmeans

BEAM_ROWS = {"cpu": 1_024, "cuda": 8_192}
FIT_BEAM, ROUNDS, RIDGE = 5, 3, 1e-2


def search_nearest_sums(vectors: Tensor, codewords: Tensor, beam: int) -> Tensor:
    """Encode by beam search, one codeword per book: (n, M) int64."""
    rows = BEAM_ROWS[vectors.device.type]
    chunks = [vectors[start : start + rows] for start in range(0, len(vectors), rows)]
    return torch.cat([_search(chunk, codewords, beam) for chunk in chunks])


def _search(vectors: Tensor, codewords: Tensor, beam: int) -> Tensor:
    words, norms, count = codewords.shape[1], codewords.square().sum(2), len(vectors)
    residuals, errors = vectors[:, None], vectors.square().sum(1, keepdim=True)
    codes = torch.zeros(count, 1, 0, dtype=torch.int64, device=vectors.device)
    for book, norm in zip(codewords, norms, strict=True):
        next_errors = errors[:, :, None] + norm - 2 * residuals @ book.T
        errors, places = next_errors.flatten(1).topk(min(beam, next_errors.shape[1] * words), dim=1, largest=False)
        parents, chosen = (places // words)[:, :, None], places % words
        codes = torch.cat([codes.gather(1, parents.expand(-1, -1, codes.shape[2])), chosen[:, :, None]], dim=2)
        residuals = residuals.gather(1, parents.expand(-1, -1, vectors.shape[1])) - book[chosen]
    return codes[:, 0]


def sum_codewords(codewords: Tensor, codes: Tensor) -> Tensor:
    """Decode by summing codewords: (n, width)."""
    decoded: Tensor = codewords[torch.arange(len(codewords), device=codes.device), codes].sum(1)
    return decoded


def fit_residual_quantizer(sample: Tensor, books: int, words: int, seed: int = 0) -> Tensor:
    """Train codewords: (books, words, width).

    Each book is fitted to the residuals of the previous ones, then all jointly by least squares, with new codes.
    """
    residuals, fitted, codes = sample, sample.new_empty(0, words, sample.shape[1]), sample.new_empty(0)
    for _ in range(books):
        fitted = torch.cat([fitted, fit_kmeans(residuals, words, seed=seed)[None]])
        codes = search_nearest_sums(sample, fitted, FIT_BEAM)
        residuals = sample - sum_codewords(fitted, codes)
    for _ in range(ROUNDS):
        fitted = solve_codewords(sample, codes, fitted)
        codes = search_nearest_sums(sample, fitted, FIT_BEAM)
    return fitted


def solve_codewords(sample: Tensor, codes: Tensor, codewords: Tensor) -> Tensor:
    """Solve for the best codewords for fixed codes; the ridge keeps rarely used ones near their old values."""
    books, words, width = codewords.shape
    total, ridge = books * words, RIDGE * len(sample) / (books * words)
    places = codes + words * torch.arange(books, device=codes.device)
    gram = ridge * torch.eye(total, device=sample.device)
    targets = ridge * codewords.reshape(total, width)
    ones = torch.ones(len(sample), device=sample.device)
    for first in places.T:
        targets = targets.index_add(0, first, sample)
        for second in places.T:
            gram.view(-1).index_add_(0, first * total + second, ones)
    solved: Tensor = torch.linalg.solve(gram, targets)
    return solved.view(books, words, width)
