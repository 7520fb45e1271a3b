"""Products, codes, indexes and results are byte-identical for any batch size and number of threads."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sample_index import clustered, random_codebooks
from threadpoolctl import threadpool_limits

from bidr.data.vector_source import VectorSource, truncate
from bidr.index.builder import coarse_clustering as clusters
from bidr.index.builder.build import build_index
from bidr.index.builder.clustering_vectors import DecodedCodes
from bidr.index.builder.journal import open_work_folder
from bidr.index.engines.graph import construction as graph_build
from bidr.index.reader import IndexReader
from bidr.pipeline.build import build_vectors
from bidr.quantization import beam_search
from bidr.quantization.additive_quantizer import AdditiveQuantizer
from bidr.quantization.kmeans import CentroidSearcher, add_rows
from bidr.quantization.opq_config import PlainCodes
from bidr.quantization.pq_training import fit_pq
from bidr.utils import reproducible_matmul as matmul

COUNT, DIM = 1_500, 48
VECTORS = clustered(COUNT, DIM)
BOOKS = random_codebooks(DIM, 6)
WIDE_BOOKS = random_codebooks(DIM, 4, 256)
RANDOM = np.random.default_rng(7)


def make_additive(codewords: int) -> AdditiveQuantizer:
    """Make additive codes in two groups, with a map to fewer dimensions and another for queries."""
    maps = RANDOM.standard_normal((2, 32, DIM)).astype(np.float32)
    centroids = RANDOM.standard_normal((6, codewords, 16)).astype(np.float32)
    return AdditiveQuantizer(VECTORS.mean(axis=0), *maps, centroids, centroids)


ADDITIVE, SMALL_ADDITIVE = make_additive(256), make_additive(16)
SUMMED = ADDITIVE.to_adapted_codebooks()
CODES, SUMMED_CODES = BOOKS.encode(VECTORS), ADDITIVE.encode(VECTORS)
MATRIX = RANDOM.standard_normal((70, DIM)).astype(np.float32)
FORTRAN = np.asfortranarray(VECTORS)
BY_ROW: dict[str, Callable[[slice], Any]] = {
    "product": lambda part: matmul.matmul_transposed(VECTORS[part], MATRIX),
    "rotation": lambda part: BOOKS.rotate(VECTORS[part]),
    "codes of 4 bits": lambda part: BOOKS.encode(VECTORS[part]),
    "codes of 8 bits": lambda part: WIDE_BOOKS.encode(VECTORS[part]),
    "sums of 256 codewords": lambda part: ADDITIVE.encode(VECTORS[part]),
    "sums of 16 codewords": lambda part: SMALL_ADDITIVE.encode(VECTORS[part]),
    "adapted queries": lambda part: ADDITIVE.adapt(VECTORS[part]),
    "nearest centroids": lambda part: CentroidSearcher(MATRIX[None]).search(VECTORS[part]),
    "decoded": lambda part: DecodedCodes(BOOKS, CODES[part])[:],
    "decoded sums": lambda part: DecodedCodes(SUMMED, SUMMED_CODES[part])[:],
    "unit vectors": lambda part: VectorSource(3 * VECTORS, "v", "cosine")[part],
    "unit vectors by column": lambda part: VectorSource(FORTRAN, "v", "cosine")[part],
    "cut vectors": lambda part: truncate(VECTORS[part], 17, unit=True),
    "centroids by graph": lambda part: clusters.GraphCentroidSearch(MATRIX).search(VECTORS[part]),
}


def split_rows(sizes: list[int]) -> Iterator[slice]:
    """Split all rows into slices of these sizes, repeated."""
    start, number = 0, 0
    while start < COUNT:
        yield slice(start, min(start + sizes[number % len(sizes)], COUNT))
        start, number = start + sizes[number % len(sizes)], number + 1


@pytest.mark.parametrize("name", BY_ROW)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(1, 300), min_size=1, max_size=3).filter(lambda sizes: sum(sizes) > 20 * len(sizes)))
def test_a_row_does_not_depend_on_the_rows_of_its_batch(name, sizes):
    work = BY_ROW[name]
    all_rows = work(slice(0, COUNT))
    assert np.concatenate([work(part) for part in split_rows(sizes)]).tobytes() == all_rows.tobytes()


@pytest.mark.parametrize("name", BY_ROW)
def test_a_single_row_equals_that_of_a_batch(name):
    work = BY_ROW[name]
    all_rows = work(slice(0, COUNT))
    for row in (0, 1, 7, 31, 1_499):
        assert work(slice(row, row + 1)).tobytes() == all_rows[row : row + 1].tobytes()


@pytest.mark.parametrize("name", BY_ROW)
@pytest.mark.parametrize("threads", [1, 3])
def test_threads_do_not_change_results(name, threads, monkeypatch):
    expected = BY_ROW[name](slice(0, COUNT))
    monkeypatch.setattr(matmul, "count_available_cpus", lambda: threads)
    monkeypatch.setattr(matmul, "TASK_ROWS", 190)
    monkeypatch.setattr(beam_search, "run_in_parts", matmul.run_in_parts)
    assert BY_ROW[name](slice(0, COUNT)).tobytes() == expected.tobytes()


def test_a_transposed_product_is_identical():
    assert matmul.matmul_transposed(VECTORS, MATRIX).tobytes() == matmul.matmul_transposed(MATRIX, VECTORS).T.tobytes()


@pytest.mark.parametrize(
    ("rows", "depth", "columns"), [(1, 1, 1), (5, 3, 31), (6, 384, 32), (97, 40, 33), (200, 7, 100)]
)
def test_products_equal_those_of_numpy(rows, depth, columns):
    left, right = (RANDOM.standard_normal((count, depth)).astype(np.float32) for count in (rows, columns))
    exact = left.astype(np.float64) @ right.T.astype(np.float64)
    bound = depth * np.finfo(np.float32).eps * (np.abs(left) @ np.abs(right).T)
    assert (np.abs(matmul.matmul_transposed(left, right) - exact) <= bound).all()


def test_k_means_sums_do_not_depend_on_the_batch_size():
    nearest = CentroidSearcher(BOOKS.centroids).search(VECTORS)

    def sum_batches(sizes: list[int]) -> bytes:
        sums, counts = np.zeros_like(BOOKS.centroids), np.zeros(BOOKS.centroids.shape[:2], dtype=np.int64)
        for part in split_rows(sizes):
            add_rows(sums, counts, VECTORS[part], nearest[part])
        return sums.tobytes() + counts.tobytes()

    assert sum_batches([1]) == sum_batches([COUNT]) == sum_batches([7, 100, 33])


@pytest.mark.parametrize("rotate", [True, False])
def test_codebooks_do_not_depend_on_threads(rotate, monkeypatch):
    def fit_codebooks(threads: int) -> bytes:
        monkeypatch.setattr(matmul, "count_available_cpus", lambda: threads)
        with threadpool_limits(threads):
            return b"".join(array.tobytes() for array in fit_pq(VECTORS, 6, 16, rotate=rotate, iterations=4)[:2])

    monkeypatch.setattr(matmul, "TASK_ROWS", 190)
    assert fit_codebooks(1) == fit_codebooks(2) == fit_codebooks(5)


@pytest.fixture(params=["scan", "lists", "lists with means", "lists with means by codes", "hnsw"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(clusters, "MIN_ORDERED_DOCUMENTS", 100)
    if request.param.startswith("lists with means"):
        monkeypatch.setattr("bidr.index.engines.block_centroids.MIN_BLOCKS", 16)
    return str(request.param)


def read_index(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "000001").iterdir()}


def build(folder: Path, engine: str) -> dict[str, bytes]:
    """Build an index of existing codebooks; for "by codes", of codes of other vectors."""
    codes = BOOKS.encode(clustered(COUNT, DIM, seed=5)) if engine.endswith("by codes") else CODES
    arrays: dict[str, Any] = {"codebooks": BOOKS, "codes": codes, "vectors": VECTORS}
    with open_work_folder(folder) as work:
        build_index(
            folder, **arrays, engine=engine.split(maxsplit=1)[0], ef_construction=20, work=work.open_subfolder("index")
        )
    return read_index(folder)


def change_batches(monkeypatch: pytest.MonkeyPatch, size: int, threads: int) -> None:
    for module in ("bidr.index.builder.clustering_vectors", "bidr.index.builder.partitioning"):
        monkeypatch.setattr(f"{module}.BLOCK_ROWS", size)
    monkeypatch.setattr("bidr.index.builder.block_centroid_builder.BLOCK_ROWS", size)
    monkeypatch.setattr(clusters, "SORT_BLOCK_ROWS", size)
    for module in ("bidr.index.builder.build", "bidr.index.vectors.vector_writer"):
        monkeypatch.setattr(f"{module}.WRITE_ROWS", -(-size // 32) * 32)
    for name in ("opq_config", "codebooks", "additive_quantizer"):
        monkeypatch.setattr(f"bidr.quantization.{name}.ENCODE_ROWS", size)
    monkeypatch.setattr(matmul, "TASK_ROWS", 100)
    monkeypatch.setattr(matmul, "count_available_cpus", lambda: threads)
    monkeypatch.setattr("bidr.index.builder.reorder.count_available_cpus", lambda: threads)


@pytest.mark.parametrize(("size", "threads"), [(64, 1), (100, 3), (333, 4)])
def test_an_index_does_not_depend_on_batch_size_and_threads(tmp_path, monkeypatch, engine, size, threads):
    expected = build(tmp_path / "usual", engine)
    change_batches(monkeypatch, size, threads)
    with threadpool_limits(threads):
        assert build(tmp_path / "other", engine) == expected


@pytest.mark.parametrize("engine", ["lists"], indirect=True)
def test_an_index_of_bare_vectors_does_not_depend_on_them_either(tmp_path, monkeypatch, engine):
    """The codebooks are fitted during the build."""
    for name in ("usual", "other"):
        with threadpool_limits(1 if name == "usual" else 4):
            build_vectors(VECTORS, None, tmp_path / name, plain=PlainCodes(3), engine=engine)
        change_batches(monkeypatch, 100, 3)
    assert read_index(tmp_path / "usual") == read_index(tmp_path / "other")


def test_links_do_not_depend_on_the_first_group():
    expected = np.concatenate(list(graph_build.choose_links(BOOKS, CODES, 20)))
    for first in (1, 5):
        start = graph_build.ROWS_PER_RANGE // graph_build.GROUP * first
        assert (
            np.concatenate(list(graph_build.choose_links(BOOKS, CODES, 20, start))).tobytes()
            == expected[start:].tobytes()
        )


def test_a_batch_of_queries_equals_single_queries(tmp_path, engine):
    build(tmp_path, engine)
    with IndexReader.open(tmp_path) as reader:
        scores, rows = reader.candidates.search(VECTORS[:50], 40)
        for number in range(50):
            single = reader.candidates.search(VECTORS[number : number + 1], 40)
            assert single[0].tobytes() == scores[number : number + 1].tobytes()
            assert single[1].tobytes() == rows[number : number + 1].tobytes()
