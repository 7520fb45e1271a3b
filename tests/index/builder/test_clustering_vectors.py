"""What documents are divided by: vectors where the codes are of them, else what codes say."""

from pathlib import Path

import numpy as np
import pytest
from sample_index import clustered, fitted

from bidr.data.types import Document
from bidr.data.vector_source import VectorSource
from bidr.index.builder import coarse_clustering as clusters
from bidr.index.builder.block_centroid_builder import compute_block_centroids
from bidr.index.builder.build import build_index
from bidr.index.builder.clustering_vectors import DecodedCodes, VectorInput, choose_cluster_input
from bidr.index.engines import block_centroids as means
from bidr.index.engines.engine_files import CENTROIDS_FILE, read_codewords
from bidr.index.engines.fast_scan_kernels import BLOCK
from bidr.index.live.document_encoder import EncodedBatch
from bidr.index.live.live_reader import LiveIndex
from bidr.index.live.writer import LiveWriter
from bidr.index.reader import IndexReader
from bidr.quantization.additive_quantizer import fit_additive
from bidr.quantization.codebooks import Codebooks

COUNT, DIM = 1_510, 24
VECTORS = clustered(COUNT, DIM)
OTHERS = clustered(COUNT, DIM, seed=7)
BOOKS = fitted(VECTORS, 6, 16)
CODES = BOOKS.encode(VECTORS)
TWISTED = BOOKS._replace(rotation=BOOKS.rotation * np.linspace(0.5, 1.5, DIM, dtype=np.float32)[:, None])


def in_bytes(vectors: np.ndarray) -> np.ndarray:
    steps = np.abs(vectors).max(axis=1, keepdims=True) / 127
    return np.rint(vectors / steps) * steps


@pytest.mark.parametrize(
    "kind", [np.float32, np.float16, in_bytes, lambda given: VectorSource(3 * given, "v", "cosine")]
)
def test_vectors_count_however_they_are_stored(kind):
    found = choose_cluster_input(BOOKS, CODES, kind(VECTORS))
    assert not isinstance(found, DecodedCodes)
    np.testing.assert_allclose(found[np.array([5, 3])], VECTORS[[5, 3]], atol=0.01)
    assert found[:9].dtype == np.float32


@pytest.mark.parametrize(
    ("books", "vectors"),
    [
        (BOOKS, OTHERS),
        (BOOKS, VECTORS[:, :12]),
        (BOOKS._replace(choosing=BOOKS.centroids), VECTORS),
        (TWISTED, VECTORS),
    ],
    ids=["of another model", "cut", "codewords that learned on", "a rotation that is none"],
)
def test_else_codes_do(books, vectors):
    found = choose_cluster_input(books, books.encode(VECTORS), vectors)
    assert isinstance(found, DecodedCodes)
    np.testing.assert_allclose(found[:9], books.decode(books.encode(VECTORS[:9])) @ books.rotation, atol=1e-5)


def test_codes_with_an_adapter_do():
    additive = fit_additive(VECTORS, 4, 256)
    assert isinstance(choose_cluster_input(additive.to_codebooks(), additive.encode(VECTORS), VECTORS), DecodedCodes)


def built(folder: Path, vectors: np.ndarray, **options: object) -> Path:
    names = [f"d{row}" for row in range(COUNT)]
    build_index(folder, codebooks=BOOKS, codes=CODES, vectors=vectors, ids=names, engine="lists", **options)
    return folder


def nearest(points: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    return np.square(points[:, None] - centroids[None]).sum(axis=2).argmin(axis=1)


def lists_of(reader: IndexReader) -> np.ndarray:
    """The list of each place."""
    offsets = reader.candidates.offsets
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


@pytest.mark.parametrize("own", [True, False])
def test_a_document_is_in_the_list_nearest_to_its_vector_or_decoded_code(tmp_path, own):
    with IndexReader.open(built(tmp_path, VECTORS if own else OTHERS)) as reader:
        centroids = np.load(reader.generation / CENTROIDS_FILE)
        by_vector, by_code = VECTORS[reader.order[:]], DecodedCodes(BOOKS, CODES)[reader.order[:]]
        shares = [np.mean(nearest(points, centroids) == lists_of(reader)) for points in (by_vector, by_code)]
    assert shares[0 if own else 1] > 0.99
    assert shares[1 if own else 0] < 0.9


def test_scans_stand_by_codes(tmp_path, monkeypatch):
    monkeypatch.setattr(clusters, "MIN_ORDERED_DOCUMENTS", 100)
    orders = []
    for name, vectors in (("own", VECTORS), ("other", OTHERS)):
        build_index(tmp_path / name, codebooks=BOOKS, codes=CODES, vectors=vectors, engine="scan")
        with IndexReader.open(tmp_path / name) as reader:
            orders.append(reader.order[:])
    np.testing.assert_array_equal(*orders)


@pytest.mark.parametrize("own", [True, False])
def test_block_centroids_are_means_of_vectors_or_of_decoded_codes(tmp_path, monkeypatch, own):
    monkeypatch.setattr(means, "MIN_BLOCKS", 16)
    with IndexReader.open(built(tmp_path, VECTORS if own else OTHERS)) as reader:
        source = VectorInput(VECTORS) if own else DecodedCodes(BOOKS, CODES)
        expected, words = compute_block_centroids(source[reader.order[:]]), read_codewords(reader.generation)
        stored = np.load(reader.generation / "means.npy")
        codes = np.stack([stored & 15, stored >> 4], axis=2).reshape(len(stored), -1)[:, : len(words)]
        said = Codebooks(np.eye(DIM, dtype=np.float32), words).decode(codes)
        assert len(said) == -(-COUNT // BLOCK)
        # A codeword for each number of a mean: the nearest of 16.
        nearest = np.abs(expected[:, :, None] - words[:, :, 0]).min(axis=2)
        np.testing.assert_allclose(np.abs(said - expected), nearest, atol=1e-6)
        other = compute_block_centroids((DecodedCodes(BOOKS, CODES) if own else VectorInput(VECTORS))[reader.order[:]])
        assert np.square(said - expected).mean() < 0.5 * np.square(said - other).mean()


def coder(documents: list[Document], vectors: np.ndarray) -> EncodedBatch:
    return EncodedBatch(BOOKS.encode(vectors), vectors, np.zeros(len(vectors), dtype=np.float32))


@pytest.mark.parametrize("stored", ["fp16", "int8"])
def test_what_was_added_is_divided_by_vectors_when_it_is_compacted(tmp_path, stored):
    added = clustered(300, DIM, seed=11)
    with LiveWriter(built(tmp_path, VECTORS, stored=stored), coder) as writer:
        writer.add([Document(f"new{row}", "", "") for row in range(len(added))], added)
        writer.delete([f"d{row}" for row in range(50)])
        writer.compact()
    (part,) = LiveIndex.open(tmp_path).latest().segments
    reader = part.reader
    centroids, vectors = np.load(reader.generation / CENTROIDS_FILE), reader.vectors.read(np.arange(reader.count))
    assert reader.count == COUNT + 250
    assert np.mean(nearest(vectors, centroids) == lists_of(reader)) > 0.99
