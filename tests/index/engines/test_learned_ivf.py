"""Learned IVF lists: documents are assigned by the means, queries probe by the learned centroids."""

from pathlib import Path

import numpy as np
import pytest
from sample_index import clustered, random_codebooks

from bidr.cli.format_description import describe_index
from bidr.data.types import Document
from bidr.errors import DataError, IndexFolderError, ModelError
from bidr.index.builder.build import build_index
from bidr.index.cost_model.build_memory import estimate_build_peaks
from bidr.index.cost_model.sizes import Shape, estimate_disk
from bidr.index.engines.engine_choice import AUTO_SCAN_DOCUMENTS
from bidr.index.faiss_conversion import import_faiss
from bidr.index.live.document_encoder import EncodedBatch
from bidr.index.live.live_reader import LiveIndex
from bidr.index.live.writer import LiveWriter
from bidr.index.reader import IndexReader
from bidr.quantization.codebooks import Codebooks
from bidr.quantization.learned_ivf import LearnedIvf

COUNT, DIM, LISTS = 400, 16, 12
BOOKS = random_codebooks(DIM, 4)
VECTORS = clustered(COUNT, DIM)
CODES = BOOKS.encode(VECTORS)
QUERIES = clustered(20, DIM, seed=3)


def decode_codes(books: Codebooks, codes: np.ndarray) -> np.ndarray:
    """Decode codes to the space of queries."""
    return books.decode(codes) @ books.rotation


def assign_lists(documents: np.ndarray, lists: LearnedIvf) -> np.ndarray:
    return np.square(documents[:, None] - lists.means[None]).sum(axis=2).argmin(axis=1)


@pytest.fixture(scope="module")
def learned() -> LearnedIvf:
    """Uneven lists: the first is far from all documents but nearest to many queries, the second is large.

    Learned centroids are far from the means, so that the two cannot be confused.
    """
    random = np.random.default_rng(0)
    means = decode_codes(BOOKS, CODES)[random.choice(COUNT, LISTS, replace=False)]
    means[0] = 100
    means[1] = decode_codes(BOOKS, CODES).mean(axis=0)
    centroids = random.standard_normal((LISTS, DIM)).astype(np.float32)
    centroids[0] = 50 * QUERIES.mean(axis=0)
    assert ((QUERIES @ centroids.T).argmax(axis=1) == 0).any()
    sizes = np.bincount(assign_lists(decode_codes(BOOKS, CODES), LearnedIvf(means, centroids)), minlength=LISTS)
    assert sizes[0] == 0
    assert sizes[1] > 2 * np.median(sizes)
    return LearnedIvf(means, centroids)


def build(folder: Path, lists: LearnedIvf | None, books: Codebooks = BOOKS, **options: object) -> Path:
    arrays = {"codebooks": books, "codes": CODES, "vectors": VECTORS, "ids": [f"d{row}" for row in range(COUNT)]}
    build_index(folder, **arrays, lists=lists, **{"engine": "lists", **options})
    return folder


def test_a_query_probes_the_lists_nearest_by_learned_centroids(tmp_path, learned):
    list_of_row = assign_lists(decode_codes(BOOKS, CODES), learned)
    filled = np.unique(list_of_row)
    with IndexReader.open(build(tmp_path / "i", learned)) as reader:
        assert reader.candidates.list_count == len(filled) < LISTS
        for query in QUERIES:
            nearest = filled[np.argsort(-(learned.learned[filled] @ query))]
            for nprobe in (1, 3):
                inside = np.flatnonzero(np.isin(list_of_row, nearest[:nprobe]))
                positions = reader.candidates.search(query[None], len(inside), nprobe)[1][0]
                assert sorted(reader.rows_of(positions)) == inside.tolist()
        default = reader.candidates.search(QUERIES, 1)[1]
        share = reader.candidates.search(QUERIES, 1, round(0.2 * len(filled)))[1]
        np.testing.assert_array_equal(default, share)


def test_probing_all_lists_equals_a_scan(tmp_path, learned):
    with (
        IndexReader.open(build(tmp_path / "lists", learned)) as lists,
        IndexReader.open(build(tmp_path / "scan", learned, engine="scan")) as scan,
    ):
        (expected, _), (scores, places) = (reader.candidates.search(QUERIES, 50, LISTS) for reader in (scan, lists))
        np.testing.assert_allclose(scores, expected, atol=1e-5)
        codes = CODES[lists.rows_of(places)]
        for query, row_scores, row_codes in zip(QUERIES, scores, codes, strict=True):
            np.testing.assert_allclose(decode_codes(BOOKS, row_codes) @ query, row_scores, atol=1e-4)
        assert sorted(lists.order) == list(range(COUNT))
        assert len(lists.candidates.search(QUERIES, COUNT, 1)[1][0]) == COUNT, "visits lists until there are enough"
        assert "learned.safetensors" not in scan.manifest.files, "a scan has no lists"
        np.testing.assert_array_equal(import_faiss(lists.to_faiss("lists"))[1], CODES)


def test_without_learned_lists_an_index_uses_k_means(tmp_path, learned):
    with (
        IndexReader.open(build(tmp_path / "k", None)) as by_k_means,
        IndexReader.open(build(tmp_path / "l", learned)) as by_model,
    ):
        assert "learned.safetensors" not in by_k_means.manifest.files
        assert by_k_means.load_learned_lists() is None
        assert by_k_means.describe()["lists"] == {"count": by_k_means.candidates.list_count, "made_by": "k-means"}
        assert by_model.describe()["lists"] == {"count": by_model.candidates.list_count, "made_by": "model"}
    for name, source in (("k", "by k-means"), ("l", "learned by the model")):
        with LiveIndex.open(tmp_path / name) as index:
            assert source in describe_index(index.describe()).text


def test_auto_uses_learned_lists_where_it_chooses_lists(tmp_path, learned, monkeypatch):
    monkeypatch.setitem(AUTO_SCAN_DOCUMENTS, 4, COUNT - 1)
    with IndexReader.open(build(tmp_path / "i", learned, engine="auto")) as reader:
        assert reader.describe()["lists"]["made_by"] == "model"
    monkeypatch.setitem(AUTO_SCAN_DOCUMENTS, 4, COUNT)
    with IndexReader.open(build(tmp_path / "i", learned, engine="auto")) as reader:
        assert reader.describe()["lists"] is None


def test_retrained_codewords_leave_documents_in_their_lists(tmp_path, learned):
    moved = BOOKS.centroids + np.random.default_rng(1).standard_normal(BOOKS.centroids.shape).astype(np.float32)
    books = BOOKS._replace(centroids=moved, choosing=BOOKS.centroids)
    with (
        IndexReader.open(build(tmp_path / "before", learned)) as before,
        IndexReader.open(build(tmp_path / "after", learned, books)) as after,
    ):
        np.testing.assert_array_equal(after.order, before.order)
        np.testing.assert_array_equal(after.candidates.offsets, before.candidates.offsets)


def encode_documents(documents: list[Document], vectors: np.ndarray) -> EncodedBatch:
    return EncodedBatch(BOOKS.encode(vectors), vectors, np.zeros(len(vectors), dtype=np.float32))


def test_lists_outlive_the_documents_they_were_built_from(tmp_path, learned):
    folder = build(tmp_path / "i", learned)
    with LiveWriter(folder, encode_documents) as writer:
        writer.add([Document(f"d{row}", "", "") for row in range(COUNT)], VECTORS[::-1])
        writer.compact()
        assert writer.view.count == COUNT
        (part,) = writer.view.segments
        assert part.reader.manifest.engine == "lists"
        np.testing.assert_array_equal(part.reader.load_learned_lists().means, learned.means)


def test_compaction_keeps_lists_and_assigns_added_documents(tmp_path, learned):
    """A list that was empty gets documents, so it must have been kept."""
    added, unseen = clustered(30, DIM, seed=9), 1 - np.minimum(CODES[:1], 1)
    assert not (unseen == CODES).all(axis=1).any()
    added[-1] = decode_codes(BOOKS, unseen)[0]
    codes = np.concatenate([CODES[10:], BOOKS.encode(added)])
    with_list = learned._replace(means=learned.means.copy())
    with_list.means[0] = added[-1]
    with_list.means[1:] = [mean if (mean != added[-1]).any() else 0 for mean in learned.means[1:]]
    assert not (assign_lists(decode_codes(BOOKS, CODES), with_list) == 0).any()
    with LiveWriter(build(tmp_path / "i", with_list), encode_documents) as writer:
        writer.add([Document(f"new{row}", "", "") for row in range(30)], added)
        writer.delete([f"d{row}" for row in range(10)])
        writer.compact()
    index = LiveIndex.open(tmp_path / "i")
    assert index.describe()["lists"]["made_by"] == "model"
    (part,) = index.latest().segments
    reader = part.reader
    list_of_row = assign_lists(decode_codes(BOOKS, codes), with_list)
    assert (list_of_row == 0).any()
    np.testing.assert_array_equal(np.diff(reader.candidates.offsets), np.bincount(list_of_row)[np.unique(list_of_row)])
    for points, expected in zip(reader.load_learned_lists(), with_list, strict=True):
        np.testing.assert_array_equal(points, expected)
    written = np.load(reader.generation / "centroids.npy")
    np.testing.assert_array_equal(written, with_list.learned[np.unique(list_of_row)])


def test_damaged_lists_are_detected(tmp_path, learned):
    path = build(tmp_path / "i", learned) / "000001" / "learned.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with LiveWriter(tmp_path / "i", encode_documents) as writer:
        writer.delete(["d1"])
        with pytest.raises(IndexFolderError, match="damaged"):
            writer.compact()
    with pytest.raises(ModelError, match="not a file of lists"):
        LearnedIvf.load(tmp_path / "nowhere")


@pytest.mark.parametrize("bad", ["width", "count", "nan"])
def test_lists_of_another_space_are_rejected(tmp_path, learned, bad):
    lists = {
        "width": LearnedIvf(learned.means[:, 1:], learned.learned[:, 1:]),
        "count": LearnedIvf(learned.means[1:], learned.learned),
        "nan": LearnedIvf(np.full_like(learned.means, np.nan), learned.learned),
    }[bad]
    with pytest.raises(DataError, match=r"lists:"):
        build(tmp_path / "i", lists)
    assert not (tmp_path / "i" / "CURRENT").exists()


def test_the_cost_model_includes_learned_lists(tmp_path, learned):
    shape = Shape(COUNT, DIM, "lists", 4, 2, learned=LISTS)
    with IndexReader.open(build(tmp_path / "i", learned)) as reader:
        size = reader.manifest.files["learned.safetensors"].size
    assert estimate_disk(shape)["learned.safetensors"] == pytest.approx(size, rel=0.05)
    many = Shape(10_000_000, 768, "lists", learned=200_000)
    assert estimate_build_peaks(many)["clusters"] > 6 * 200_000 * 768 * 4
    few, without = (estimate_build_peaks(Shape(10_000_000, 768, "lists", learned=number)) for number in (256, 0))
    assert few["clusters"] < without["clusters"]
