"""Small indexes for tests: clustered vectors, codebooks as an OPQ would fit them, and a folder built from both."""

from pathlib import Path

import faiss
import numpy as np

from bidr.data.types import Document
from bidr.index.builder.build import build_index
from bidr.index.reader import IndexReader
from bidr.index.storage.manifest import ModelReference
from bidr.quantization.codebooks import Codebooks
from bidr.search.types import QueryVectors


def clustered(count: int, dim: int, seed: int = 0, spread: float = 0.8) -> np.ndarray:
    """Unit vectors around a few hundred centres, with the falling spectrum of real text vectors."""
    random = np.random.default_rng(seed)
    spectrum = np.arange(1, dim + 1, dtype=np.float32) ** -0.5
    centres = _unit(np.random.default_rng(99).standard_normal((400, dim)).astype(np.float32) * spectrum)
    noise = _unit(random.standard_normal((count, dim)).astype(np.float32) * spectrum)
    return _unit(centres[random.integers(0, len(centres), count)] + spread * noise)


def fitted(vectors: np.ndarray, books: int, words: int = 256, rounds: int = 6) -> Codebooks:
    """Codebooks in a random rotation, fitted by Faiss."""
    dim = vectors.shape[1]
    random = np.random.default_rng(1)
    rotation = np.linalg.qr(random.standard_normal((dim, dim)))[0].astype(np.float32)
    quantizer = faiss.ProductQuantizer(dim, books, words.bit_length() - 1)
    quantizer.cp.niter = rounds
    quantizer.cp.min_points_per_centroid = 1
    quantizer.train(vectors[:10_000] @ rotation.T)
    return Codebooks(rotation, faiss.vector_to_array(quantizer.centroids).reshape(books, words, -1))


def random_codebooks(dim: int, books: int, words: int = 16, seed: int = 0) -> Codebooks:
    random = np.random.default_rng(seed)
    rotation = np.linalg.qr(random.standard_normal((dim, dim)))[0].astype(np.float32)
    return Codebooks(rotation, random.standard_normal((books, words, dim // books)).astype(np.float32))


def documents(count: int) -> list[Document]:
    return [Document(f"doc-{row}", f"Title {row}", f"Text of {row}, öäü 漢") for row in range(count)]


def small_index(folder: Path, count: int = 60, dim: int = 16, *, seed: int = 0, **options: object) -> Path:
    """An index of a few documents with texts, by the model "fp-a"."""
    vectors = clustered(count, dim, seed)
    codebooks = random_codebooks(dim, 4)
    settings = {"documents": documents(count), "model": ModelReference("fp-a", "runs/a"), "engine": "scan", **options}
    return build_index(folder, codebooks=codebooks, codes=codebooks.encode(vectors), vectors=vectors, **settings)


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def index_of(folder, vectors, **options):
    codebooks = random_codebooks(vectors.shape[1], 4)
    build_index(folder, codebooks=codebooks, codes=codebooks.encode(vectors), vectors=vectors, **options)
    return IndexReader.open(folder)


def both(queries: np.ndarray) -> QueryVectors:
    return QueryVectors(queries, queries)
