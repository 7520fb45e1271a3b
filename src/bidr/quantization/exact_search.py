"""Exhaustive top-k search over vectors and over codes, blockwise, on any torch device."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bidr.quantization.codebooks import Codebooks
from bidr.utils.array_types import Codes, Floats

QUERY_ROWS = 1_024
DOCUMENT_ROWS = 65_536


class TopK(NamedTuple):
    """Best rows per query, best first; -1 where there are fewer than k."""

    scores: Floats
    rows: npt.NDArray[np.int64]


def search_vectors(queries: Floats, vectors: Floats, k: int, *, device: str = "cpu") -> TopK:
    """Find the k rows with the largest inner products."""

    def load_block(start: int, stop: int) -> Tensor:
        return torch.as_tensor(vectors[start:stop].astype(np.float32), device=device)

    return _search(queries, load_block, len(vectors), k, device)


def search_codes(queries: Floats, codebooks: Codebooks, codes: Codes, k: int, *, device: str = "cpu") -> TopK:
    """Find the k rows with the largest asymmetric scores."""
    centroids = torch.as_tensor(codebooks.centroids, device=device)
    books = torch.arange(codebooks.books, device=device)

    def load_block(start: int, stop: int) -> Tensor:
        numbers = torch.as_tensor(codes[start:stop].astype(np.int64), device=device)
        return centroids[books, numbers].flatten(1)

    return _search(codebooks.rotate(queries), load_block, len(codes), k, device)


def _search(queries: Floats, load_block: Callable[[int, int], Tensor], count: int, k: int, device: str) -> TopK:
    k = min(k, count)
    best_scores = torch.full((len(queries), k), -torch.inf)
    best_rows = torch.full((len(queries), k), -1, dtype=torch.int64)
    for start in range(0, count, DOCUMENT_ROWS):
        documents = load_block(start, min(start + DOCUMENT_ROWS, count))
        for first in range(0, len(queries), QUERY_ROWS):
            part = slice(first, first + QUERY_ROWS)
            query_block = torch.as_tensor(np.asarray(queries[part], dtype=np.float32), device=device)
            scores, rows = (query_block @ documents.T).topk(min(k, len(documents)), dim=1)
            merged = torch.cat([best_scores[part].to(device), scores], dim=1)
            numbers = torch.cat([best_rows[part].to(device), rows + start], dim=1)
            scores, order = merged.topk(k, dim=1)
            best_scores[part] = scores.cpu()
            best_rows[part] = numbers.gather(1, order).cpu()
    return TopK(best_scores.numpy(), best_rows.numpy())
