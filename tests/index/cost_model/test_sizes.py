"""The sizes that are computed beforehand, beside those of real indexes: the formulas were fitted to none of these."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sample_index import clustered, documents, random_codebooks

from bidr.data.types import Document
from bidr.index.builder.build import build_index
from bidr.index.cost_model.sizes import (
    BITS,
    ENGINES,
    Shape,
    count_cold_pages,
    count_pages_per_row,
    estimate_disk,
    estimate_engine_ram,
    estimate_ram,
)
from bidr.index.engines import block_centroids as means
from bidr.index.lexical.size_estimate import LexicalSize, estimate_lexical_disk
from bidr.index.live.live_reader import LiveIndex
from bidr.index.live.writer import LiveWriter
from bidr.index.reader import IndexReader
from bidr.index.storage import checksums as checks
from bidr.index.vectors import STORAGE_KINDS
from bidr.planning.plan import measure_corpus

DIM, CODE_BYTES = 48, 6
NEAR = 0.10


def build(folder: Path, shape: Shape) -> tuple[float, float]:
    """Builds what the shape says; returns the mean sizes of its ids and texts."""
    vectors = clustered(shape.count, shape.dim)
    books = random_codebooks(shape.dim, shape.books, 1 << shape.bits)
    texts = documents(shape.count)
    build_index(
        folder,
        codebooks=books,
        codes=books.encode(vectors),
        vectors=vectors,
        documents=texts,
        engine=shape.engine,
        stored=shape.stored,
        dims=shape.dims,
        ef_construction=16,
    )
    ids = sum(len(each.id.encode()) for each in texts) / shape.count
    return ids, sum(len((each.title + each.text).encode()) for each in texts) / shape.count


def check(folder: Path, shape: Shape) -> None:
    sizes = build(folder, shape)
    planned = estimate_disk(shape, *sizes)
    with IndexReader.open(folder) as reader:
        measured, found = reader.candidates.ram_bytes, reader.describe()["disk_bytes"]
        generation = reader.generation
    assert estimate_engine_ram(shape).keys() == measured.keys()
    for part, size in estimate_engine_ram(shape).items():
        assert size == pytest.approx(measured[part], rel=NEAR), part
    assert planned.keys() == {*found, "manifest.json"}
    for name, size in found.items():
        assert planned[name] == pytest.approx(size, rel=NEAR), name
    whole = sum(path.stat().st_size for path in generation.iterdir())
    assert sum(planned.values()) == pytest.approx(whole, rel=NEAR)


@pytest.mark.parametrize("count", [1_003, 4_500, 21_000])
@pytest.mark.parametrize("engine", ENGINES)
def test_the_estimate_equals_the_size_of_an_index(tmp_path: Path, engine: str, count: int) -> None:
    for bits in BITS:
        stored = STORAGE_KINDS[bits == 4]
        check(tmp_path / f"{bits}", Shape(count, DIM, engine, bits, CODE_BYTES, stored, live=False))


@pytest.mark.parametrize("bits", BITS)
def test_the_estimate_includes_block_centroids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bits: int) -> None:
    monkeypatch.setattr(means, "MIN_BLOCKS", 16)
    check(tmp_path, Shape(4_500, DIM, "lists", bits, CODE_BYTES, live=False))
    assert list(tmp_path.glob("0*/means.npy"))


def test_the_estimate_includes_truncated_vectors(tmp_path: Path) -> None:
    for kind in STORAGE_KINDS:
        check(tmp_path / kind, Shape(1_003, DIM, "scan", 8, CODE_BYTES, kind, live=False, dims=16))


def test_the_estimate_includes_block_checksums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Shape(4_500, DIM, "lists", 8, CODE_BYTES, live=False)
    monkeypatch.setattr(checks, "WHOLE_FILE_BYTES", 20_000)
    check(tmp_path, shape)
    there = {
        path.name.removesuffix(checks.CHECKSUM_FILE_SUFFIX)
        for path in tmp_path.glob(f"0*/*{checks.CHECKSUM_FILE_SUFFIX}")
    }
    assert there == {"documents.blob", "documents.offsets.npy", "ids.blob", "ids.offsets.npy", "ids.hashes.npy"}


def texts(count: int) -> Iterator[Document]:
    """Words as often as in a language: Zipf's law, new ones all the time; longer and shorter texts."""
    random = np.random.default_rng(0)
    for row in range(count):
        words = random.zipf(1.35, int(random.lognormal(3.5, 0.6)) + 1)
        yield Document(f"{row}", "", " ".join(f"w{word}" for word in words if word < 1 << 40))


@pytest.fixture(scope="module")
def sample() -> LexicalSize:
    """Fitted to 2,000 of 20,000 texts."""
    found = measure_corpus(texts(20_000)).words
    assert found is not None
    return found


@pytest.mark.parametrize("count", [1_003, 4_500, 14_000])
def test_the_estimate_of_a_lexical_index_from_a_sample(tmp_path: Path, count: int, sample: LexicalSize) -> None:
    books, vectors = random_codebooks(8, 2, 16), clustered(count, 8)
    given = {"codebooks": books, "codes": books.encode(vectors), "vectors": vectors}
    path = build_index(tmp_path, **given, documents=texts(count), lexical="prepend", engine="scan")
    found = {file.name: file.stat().st_size for file in path.glob("words.*")}
    planned = estimate_lexical_disk(sample, count)
    assert planned.keys() == found.keys()
    assert sum(planned.values()) == pytest.approx(sum(found.values()), rel=NEAR)
    assert planned["words.places.npy"] == pytest.approx(found["words.places.npy"], rel=NEAR)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "dim"), [(60_000, 96), (150_000, 192), (300_000, 64)])
@pytest.mark.parametrize("engine", ENGINES)
def test_the_same_of_larger_ones(tmp_path: Path, engine: str, count: int, dim: int) -> None:
    for bits in BITS:
        check(tmp_path / f"{bits}", Shape(count, dim, engine, bits, 16, "fp16", live=False))


def test_the_estimate_includes_deletions(tmp_path: Path) -> None:
    shape = Shape(2_000, DIM, "lists", 8, CODE_BYTES)
    build(tmp_path, shape)
    with LiveWriter(tmp_path, lambda documents, vectors: None) as writer:
        writer.delete(["doc-7"])
    with LiveIndex.open(tmp_path) as index:
        view = index.latest()
        deleted = view.candidates.ram_bytes["deleted"]
        view.candidates.search(np.zeros((1, DIM), dtype=np.float32), 5)
        assert view.candidates._allowed[0][0] is view.segments[0]._alive_positions, "searching keeps no copy"
    assert estimate_ram(shape)["deleted"] == pytest.approx(deleted, rel=NEAR)


@pytest.mark.parametrize("stored", STORAGE_KINDS)
def test_the_file_of_vectors_remembers_as_many_blocks(tmp_path: Path, stored: str) -> None:
    shape = Shape(2_345, DIM, "scan", 8, CODE_BYTES, stored)
    build(tmp_path, shape)
    with IndexReader.open(tmp_path) as reader:
        assert estimate_ram(shape)["seen blocks"] == reader.vectors._block_flags.nbytes
        assert estimate_ram(shape)["checksums"] == reader.vectors._expected.nbytes


@pytest.mark.parametrize("dim", [48, 256, 384, 768, 1_000, 3_000])
def test_pages_are_those_that_rows_lie_in(dim: int) -> None:
    size = 2 * dim
    starts = np.arange(4_096) * size
    mean = ((starts + size - 1) // 4_096 - starts // 4_096 + 1).mean()
    assert count_pages_per_row(size) == pytest.approx(mean, rel=1e-9)


def test_checksums_that_do_not_stay_in_memory_are_read_too() -> None:
    few, many = Shape(10**6, 768), Shape(10**9, 768)
    assert count_cold_pages(few, 200) == 200 * 1.25
    assert count_cold_pages(many, 200) == 200 * 2.25
    assert estimate_ram(many)["checksums"] == 0
