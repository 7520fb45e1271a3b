"""Codebooks from vectors alone: k-means in every subspace (PQ), with a learned rotation (OPQ). Runs on CPU or GPU."""

import numpy as np
import torch
from torch import Tensor

from bidr.codes.codebooks import Codebooks, Codes, Floats, check_shape
from bidr.errors import DataError

FIT_ROWS = 20_000
# On a CPU, tables of distances that fit the cache take half the time.
CHUNK_ROWS = {"cpu": 512, "cuda": 4_096}


def too_few(given: int, words: int) -> DataError:
    """The error of whoever has fewer vectors than codewords."""
    fewer = ", or take 16 codewords" if words == 256 and given >= 16 else ""
    return DataError(
        f"fitting {words} codewords needs at least {words} vectors: given {given}; give more{fewer} (so few can be "
        "compared one by one, without an index)"
    )


def fit(
    vectors: Floats,
    books: int,
    words: int = 256,
    *,
    rotate: bool = True,
    iterations: int = 20,
    seed: int = 0,
    device: str = "cpu",
) -> Codebooks:
    """Codebooks that reconstruct the vectors well (Euclidean).

    rotate=True alternates codewords and an orthonormal rotation (OPQ); False leaves the axes as they are (PQ).
    At most FIT_ROWS vectors, drawn with the seed, are looked at.
    """
    check_shape(vectors.shape[1], books, words)
    if len(vectors) < words:
        raise too_few(len(vectors), words)
    generator = np.random.default_rng(seed)
    rows = np.sort(generator.choice(len(vectors), min(FIT_ROWS, len(vectors)), replace=False))
    sample = torch.as_tensor(np.asarray(vectors[rows], dtype=np.float32), device=device)
    random = torch.Generator().manual_seed(seed)
    dim = sample.shape[1]
    rotation = _random_rotation(dim, random).to(device) if rotate else torch.eye(dim, device=device)
    centroids = _first_centroids(sample @ rotation.T, books, words, random)
    if rotate:
        for _ in range(iterations):
            rotated = sample @ rotation.T
            codes, centroids = _kmeans_step(rotated, centroids, random)
            rotation = _best_rotation(sample, _lookup(centroids, codes))
    rotated = sample @ rotation.T
    for _ in range(iterations):
        _, centroids = _kmeans_step(rotated, centroids, random)
    return Codebooks(rotation.cpu().numpy(), centroids.cpu().numpy())


def kmeans(vectors: Tensor, count: int, *, iterations: int = 20, seed: int = 0) -> Tensor:
    """The means of so many groups of near vectors: (count, dim)."""
    random = torch.Generator().manual_seed(seed)
    centroids = _first_centroids(vectors, 1, count, random)
    for _ in range(iterations):
        _, centroids = _kmeans_step(vectors, centroids, random)
    return centroids[0]


def assign(vectors: Tensor, centroids: Tensor) -> Tensor:
    """Nearest codeword in every book for vectors that are rotated already: (n, M) int64."""
    books, _, width = centroids.shape
    norms = centroids.square().sum(2)
    # One tensor for all: small ones that stay between the large ones that go would leave memory in pieces.
    codes = torch.empty((len(vectors), books), dtype=torch.int64, device=vectors.device)
    rows = CHUNK_ROWS[vectors.device.type]
    for start in range(0, len(vectors), rows):
        chunk = vectors[start : start + rows]
        dots = torch.einsum("nmd,mpd->nmp", chunk.view(-1, books, width), centroids)
        # Distances in the same place: one more table of them would be most of what a fit of many codewords takes.
        codes[start : start + len(chunk)] = dots.mul_(-2).add_(norms).argmin(2)
    return codes


def encode_on(codebooks: Codebooks, vectors: Floats, device: torch.device) -> Codes:
    """codebooks.encode, on a GPU where that is the device."""
    if device.type == "cpu":
        return codebooks.encode(vectors)
    if codebooks.document is not None:
        from bidr.codes.additive import summed

        return summed(codebooks).encode_on(vectors, device)
    words = codebooks.centroids if codebooks.choosing is None else codebooks.choosing
    rotation, centroids = (torch.as_tensor(array, device=device) for array in (codebooks.rotation, words))
    codes = assign(torch.as_tensor(vectors, device=device) @ rotation.T, centroids)
    found: Codes = codes.to(torch.uint8).cpu().numpy()
    return found


def _lookup(centroids: Tensor, codes: Tensor) -> Tensor:
    decoded: Tensor = centroids[torch.arange(len(centroids), device=codes.device), codes].flatten(1)
    return decoded


def _random_rotation(dim: int, random: torch.Generator) -> Tensor:
    rotation: Tensor = torch.linalg.qr(torch.randn(dim, dim, generator=random))[0]
    return rotation


def _first_centroids(rotated: Tensor, books: int, words: int, random: torch.Generator) -> Tensor:
    rows = torch.randperm(len(rotated), generator=random)[:words]
    return rotated[rows.to(rotated.device)].view(words, books, -1).transpose(0, 1).contiguous()


def _kmeans_step(rotated: Tensor, centroids: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Assign, then move every codeword to the mean of its vectors, an unused one to a vector that is far from its own.

    Not to where most vectors are: those may be copies of one text, which no second codeword tells apart.
    """
    books, words, width = centroids.shape
    codes = assign(rotated, centroids)
    slots = codes + torch.arange(books, device=codes.device) * words
    sums = torch.zeros(books * words, width, device=rotated.device)
    sums.index_add_(0, slots.flatten(), rotated.reshape(-1, width))
    counts = torch.bincount(slots.flatten(), minlength=books * words).view(books, words)
    moved = sums.view(books, words, width) / counts.clamp(min=1).unsqueeze(2)
    for book in (counts == 0).any(1).nonzero().flatten().tolist():
        idle, part = (counts[book] == 0).nonzero().flatten(), rotated.view(-1, books, width)[:, book]
        errors = (part - moved[book, codes[:, book]]).square().sum(1).cpu()
        count = min(len(idle), int((errors > 0).sum()))
        if count:
            rows = torch.multinomial(errors, count, generator=random).to(part.device)
            moved[book, idle[:count]] = part[rows]
    return codes, moved


def _best_rotation(sample: Tensor, decoded: Tensor) -> Tensor:
    """The orthonormal R that brings sample @ R.T closest to what the codes say (Procrustes)."""
    left, _, right = torch.linalg.svd(decoded.T @ sample)
    rotation: Tensor = left @ right
    return rotation
