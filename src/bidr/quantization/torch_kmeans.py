"""K-means and nearest-codeword assignment in torch."""

import torch
from torch import Tensor

from bidr.quantization.codebooks import Codebooks
from bidr.utils.array_types import Codes, Floats

# On a CPU, distance tables that fit the cache take half the time.
CHUNK_ROWS = {"cpu": 512, "cuda": 4_096}


def fit_kmeans(vectors: Tensor, count: int, *, iterations: int = 20, seed: int = 0) -> Tensor:
    """Cluster vectors by k-means: centroids (count, dim)."""
    random = torch.Generator().manual_seed(seed)
    centroids = vectors[torch.randperm(len(vectors), generator=random)[:count].to(vectors.device)]
    for _ in range(iterations):
        centroids = _run_kmeans_step(vectors, centroids, random)
    return centroids


def assign(vectors: Tensor, centroids: Tensor) -> Tensor:
    """Find the nearest codeword of every book for rotated vectors: (n, M) int64."""
    books, _, width = centroids.shape
    norms = centroids.square().sum(2)
    # Preallocated: small tensors that outlive the large temporary ones would fragment memory.
    codes = torch.empty((len(vectors), books), dtype=torch.int64, device=vectors.device)
    rows = CHUNK_ROWS[vectors.device.type]
    for start in range(0, len(vectors), rows):
        chunk = vectors[start : start + rows]
        dots = torch.einsum("nmd,mpd->nmp", chunk.view(-1, books, width), centroids)
        # In place: a second distance table would dominate the memory use.
        codes[start : start + len(chunk)] = dots.mul_(-2).add_(norms).argmin(2)
    return codes


def encode_on_device(codebooks: Codebooks, vectors: Floats, device: torch.device) -> Codes:
    """Encode like `Codebooks.encode`, on a GPU if `device` is one."""
    if device.type == "cpu":
        return codebooks.encode(vectors)
    if codebooks.document is not None:
        from bidr.quantization.additive_quantizer import to_additive

        return to_additive(codebooks).encode_on(vectors, device)
    words = codebooks.centroids if codebooks.choosing is None else codebooks.choosing
    rotation, centroids = (torch.as_tensor(array, device=device) for array in (codebooks.rotation, words))
    codes = assign(torch.as_tensor(vectors, device=device) @ rotation.T, centroids)
    numbers: Codes = codes.to(torch.uint8).cpu().numpy()
    return numbers


def _run_kmeans_step(vectors: Tensor, centroids: Tensor, random: torch.Generator) -> Tensor:
    """Run one k-means step; an unused centroid moves to a vector with a large error."""
    nearest = assign(vectors, centroids[None])[:, 0]
    sums = torch.zeros_like(centroids).index_add_(0, nearest, vectors)
    counts = torch.bincount(nearest, minlength=len(centroids))
    moved = sums / counts.clamp(min=1).unsqueeze(1)
    idle = (counts == 0).nonzero().flatten()
    if len(idle):
        errors = (vectors - moved[nearest]).square().sum(1).cpu()
        count = min(len(idle), int((errors > 0).sum()))
        if count:
            moved[idle[:count]] = vectors[torch.multinomial(errors, count, generator=random).to(vectors.device)]
    return moved
