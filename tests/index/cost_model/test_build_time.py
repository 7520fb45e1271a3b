"""The build-time estimate covers every step of a build, with the number of operations that it performs."""

import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sample_index import clustered, documents, random_codebooks

from bidr.data.vector_source import VectorSource
from bidr.errors import BidrError, ConfigError
from bidr.index.builder import coarse_clustering, reorder
from bidr.index.builder.build import build_index
from bidr.index.builder.clustering_vectors import DecodedCodes, VectorInput
from bidr.index.cost_model.build_time import (
    DEFAULT_RATES,
    Rates,
    count_bisections,
    count_clusters,
    estimate_build_times,
    scale_default_rates,
)
from bidr.index.cost_model.sizes import BITS, ENGINES, Shape
from bidr.index.engines import block_centroids
from bidr.index.engines.graph import construction as graph_build
from bidr.pipeline.build import build_vectors
from bidr.planning import calibration
from bidr.planning.calibration import CalibrationConfig, MachineRates, calibrate, calibrate_in_process
from bidr.quantization.opq_config import PlainCodes
from bidr.utils.step_timer import StepTime, record_steps, time_step

DIM, TOLERANCE, SECONDS_PER_ROW = 48, 0.10, 100e-6
SMALL_SIZES = {"DOCUMENTS": 6_000, "DOCUMENTS_PER_PASS": 3_000, "PASSES": 2, "FIT_ROWS": 3_000, "LARGE_CLUSTER": 500}
SMALL_SIZES |= {"RANGES": 2, "PIECES": 2_000, "PACKED_GROUPS": 512}
ZERO_RATES = Rates(*[0.0] * len(Rates._fields))._replace(row_bytes=1.0)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_estimate_covers_every_step_of_a_build(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_centroids, "MIN_BLOCKS", 16)
    monkeypatch.setattr(coarse_clustering, "MIN_ORDERED_DOCUMENTS", 500)
    monkeypatch.setattr("bidr.index.cost_model.build_time.MIN_ORDERED_DOCUMENTS", 500)
    vectors, books = clustered(600, DIM), random_codebooks(DIM, 6)
    options: dict[str, Any] = {"documents": documents(600), "lexical": "prepend"}
    with record_steps() as times:
        build_index(
            tmp_path / "a", codebooks=books, codes=books.encode(vectors), vectors=vectors, engine=engine, **options
        )
    shape = Shape(600, DIM, engine, 4, 3)
    planned = estimate_build_times(shape, DEFAULT_RATES[4], postings=5)
    assert planned.keys() - {"coding"} == times.keys()
    assert all(cost.cpu > 0 for cost in planned.values())
    with record_steps() as times:
        build_vectors(vectors, None, tmp_path / "b", engine=engine, plain=PlainCodes(3, 16))
    assert estimate_build_times(shape, DEFAULT_RATES[4], has_ids=False).keys() == times.keys()


@pytest.mark.parametrize(("engine", "count"), [("scan", 3_000), ("lists", 3_000), ("lists", 9_000), ("hnsw", 3_000)])
def test_the_estimate_matches_the_number_of_compared_centroids(
    tmp_path: Path, engine: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coarse_clustering, "MIN_ORDERED_DOCUMENTS", 500)
    monkeypatch.setattr("bidr.index.cost_model.build_time.MIN_ORDERED_DOCUMENTS", 500)
    pairs, steps = list[int](), list[list[str]]()
    make_search = coarse_clustering.make_centroid_search

    class CountingSearch:
        def __init__(self, centroids: np.ndarray) -> None:
            self.inner, self.lists = make_search(centroids), len(centroids)
            steps.append(list(times)[-1:])

        def search(self, block: np.ndarray) -> np.ndarray:
            pairs.append(len(block) * self.lists)
            return self.inner.search(block)

    monkeypatch.setattr(coarse_clustering, "make_centroid_search", CountingSearch)
    vectors, books = clustered(count, DIM), random_codebooks(DIM, 6)
    with record_steps() as times:
        build_index(tmp_path, codebooks=books, codes=books.encode(vectors), vectors=vectors, engine=engine)
    assert steps == [["clusters"]] * (coarse_clustering.ROUNDS + 1)
    shape = Shape(count, DIM, engine, 4, 3)
    assert sum(pairs) == pytest.approx(estimate_build_times(shape, ZERO_RATES._replace(comparing=1.0))["clusters"].cpu)


@pytest.mark.parametrize(
    ("engine", "same_space"), [("scan", True), ("lists", True), ("lists", False), ("hnsw", True), ("hnsw", False)]
)
def test_the_estimate_matches_the_rows_read_and_decoded(
    tmp_path: Path, engine: str, same_space: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists are clustered by vectors if the codes encode them, otherwise by codes, as for the other engines."""
    for module in ("bidr.index.builder.coarse_clustering", "bidr.index.cost_model.build_time"):
        monkeypatch.setattr(f"{module}.MIN_ORDERED_DOCUMENTS", 500)
    monkeypatch.setattr(block_centroids, "MIN_BLOCKS", 16)
    monkeypatch.setattr(coarse_clustering, "POINTS_PER_LIST", 20)
    vectors, books = clustered(3_000, DIM), random_codebooks(DIM, 6)
    codes = books.encode(vectors if same_space else vectors[::-1])
    shape, rows_read = Shape(3_000, DIM, engine, 4, 3), dict.fromkeys(["vectors", "sample", "codes"], 0)
    sample = coarse_clustering.get_sample_size(3_000, count_clusters(shape))
    for kind in (VectorInput, DecodedCodes):

        def to_floats(
            self: VectorInput, rows: np.ndarray, real: Callable[..., np.ndarray] = kind.to_floats
        ) -> np.ndarray:
            name = "codes" if isinstance(self, DecodedCodes) else "vectors" if self.array is vectors else "sample"
            if len(self) in (3_000, sample):  # not the initial centroids
                rows_read[name] += len(rows)
            return real(self, rows)

        monkeypatch.setattr(kind, "to_floats", to_floats)
    build_index(tmp_path, codebooks=books, codes=codes, vectors=vectors, engine=engine)

    def estimate(**rates: float) -> float:
        return sum(
            cost.cpu
            for cost in estimate_build_times(shape, ZERO_RATES._replace(**rates), fits_codebooks=same_space).values()
        )

    assert estimate(turning=1.0) == pytest.approx(rows_read["codes"])
    assert estimate(reading=1.0) == pytest.approx(rows_read["vectors"])
    assert coarse_clustering.ROUNDS * estimate(sampling=1.0) == pytest.approx(rows_read["sample"])
    assert (rows_read["vectors"] > 0) == (engine == "lists" and same_space)


def test_the_estimate_leaves_out_codes_of_a_model() -> None:
    for engine in ENGINES:
        fitted, learned = (
            estimate_build_times(Shape(100_000, 384, engine), DEFAULT_RATES[8], fits_codebooks=fits)
            for fits in (True, False)
        )
        assert fitted.keys() - learned.keys() == {"codebooks", "coding"}
        assert (fitted["clusters"].cpu < learned["clusters"].cpu) == (engine == "lists")


@pytest.mark.parametrize("size", [45, 170, 1_000])
def test_the_estimate_matches_the_number_of_bisections(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    row_counts, find_furthest = list[int](), reorder._find_furthest
    monkeypatch.setattr(
        reorder,
        "_find_furthest",
        lambda vectors, rows, point: row_counts.append(len(rows)) or find_furthest(vectors, rows, point),
    )
    monkeypatch.setattr(reorder, "_bisect_in_place", reorder._bisect_in_place.py_func)
    vectors = clustered(4_000, DIM)
    source, offsets, order = VectorInput(vectors), np.arange(0, 4_000, size), np.arange(4_000)
    for part, make_order in (
        (32, lambda: reorder.order_in_blocks(source, offsets, order, 32)),
        (
            4,
            lambda: reorder.order_for_graph(
                source, coarse_clustering.Clusters(vectors[: len(offsets) - 1], offsets, order)
            ),
        ),
    ):
        row_counts.clear()
        list(make_order())
        lists = len(offsets) - 1  # a graph bisects the centroids too
        centroid_rows = 0 if part == 32 else lists * count_bisections(lists, 1)
        assert (sum(row_counts) / 2 - centroid_rows) / offsets[-1] == pytest.approx(
            count_bisections(size, part), rel=0.15
        )


def test_the_estimate_matches_the_pieces_that_linking_compares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_build, "POOL_FACTOR", 4)
    calls, select_pieces = list[tuple[int, int]](), graph_build.select_pieces
    monkeypatch.setattr(
        graph_build,
        "select_pieces",
        lambda means, pieces, count: calls.append((len(means), count)) or select_pieces(means, pieces, count),
    )
    books, vectors = random_codebooks(DIM, 6), clustered(4_096, DIM)
    list(graph_build.choose_links(books, books.encode(vectors), 100))
    planned = estimate_build_times(Shape(4_096, DIM, "hnsw", 4, 3), ZERO_RATES._replace(piecing=1.0))["links"].cpu
    assert sum(pieces for pieces, _ in calls) == planned


def test_page_faults_recur_for_every_block_of_rows() -> None:
    """Each block maps all of a small file; of a large file each row causes its own page fault."""
    rates = ZERO_RATES._replace(finding=1.0, row_bytes=1_024.0)
    small, large = (
        estimate_build_times(Shape(count, 256, "lists"), rates)["vectors"].cpu / count
        for count in (16_384, 100_000_000)
    )
    assert small == pytest.approx(16_384 * 1_024 / (1 << 16) / 8_192, rel=TOLERANCE)
    assert large == pytest.approx(1, rel=TOLERANCE)


def test_default_rates_grow_with_the_dimensions() -> None:
    for bits in BITS:
        assert scale_default_rates(bits, 384, 1_000) == pytest.approx(DEFAULT_RATES[bits])
        wider = scale_default_rates(bits, 768, 1_000)
        assert all(large >= small for large, small in zip(wider, DEFAULT_RATES[bits], strict=True))
        assert wider.fitting > 2 * DEFAULT_RATES[bits].fitting
        assert scale_default_rates(bits, 384).naming < DEFAULT_RATES[bits].naming


def test_more_cores_shorten_the_parallel_part() -> None:
    for engine in ENGINES:
        times = estimate_build_times(Shape(10_000_000, 384, engine), DEFAULT_RATES[8])
        assert all(cost.get_wall_time(1) == pytest.approx(cost.cpu) for cost in times.values())
        assert times["vectors"].get_wall_time(16) == times["vectors"].cpu
        assert times["coding"].get_wall_time(16) < times["coding"].cpu / 4
        assert times["clusters"].get_wall_time(16) < times["clusters"].cpu / 8
        assert times["codebooks"].get_wall_time(2) == pytest.approx(0.65 * times["codebooks"].cpu)


@pytest.mark.parametrize(("size", "tasks"), [(8_000, 2), (3_000, 5), (100, 6)])
def test_few_large_lists_are_bisected_in_parallel(size: int, tasks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their number is limited by memory; the estimate uses no more cores than that."""
    running, concurrency, bisect_list = list[int](), list[int](), reorder._bisect_list

    def watch_bisect(*args: Any) -> np.ndarray:
        running.append(1)
        concurrency.append(len(running))
        time.sleep(0.05)
        running.pop()
        return bisect_list(*args)

    monkeypatch.setattr(reorder, "count_available_cpus", lambda: 6)
    monkeypatch.setattr(reorder, "_bisect_list", watch_bisect)
    offsets, vectors = np.arange(0, 32_001, size), clustered(32_000, 4)
    list(reorder.order_in_blocks(VectorInput(vectors), offsets, np.arange(32_000), 32))
    assert max(concurrency) == tasks
    lists = 1_000_000
    shape = replace(Shape(size * lists, 4, "lists"), learned=lists)
    order = estimate_build_times(shape, ZERO_RATES._replace(parting=1.0))["order"]
    assert order.cpu / order.get_wall_time(6) == pytest.approx(tasks, rel=0.05)
    assert order.cpu / order.get_wall_time(2) == pytest.approx(5 / 3 if tasks == 5 else 2, rel=0.01)


def test_the_time_of_a_nested_step_is_counted_once() -> None:
    with record_steps() as times, time_step("outer"):
        with time_step("inner"):
            sum(range(2_000_000))
        with time_step("inner"):
            sum(range(2_000_000))
    assert list(times) == ["outer", "inner"]
    assert times["inner"].cpu > 3 * times["outer"].cpu
    with time_step("not recorded"):
        pass
    assert sum(times.values(), StepTime()).clock >= times["inner"].clock


def test_calibration_checks_its_vectors_first(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.ones((100, 8), dtype=np.float32))
    with pytest.raises(ConfigError, match=r"dim: given 16, but .*v.npy has 8 dimensions; give --dim 8"):
        calibrate(CalibrationConfig(16, 4, [8], vectors=str(tmp_path / "v.npy")))
    with pytest.raises(ConfigError, match=r"v.npy has 100, expected 26,000 or more to measure on"):
        calibrate(CalibrationConfig(8, 4, [8], vectors=str(tmp_path / "v.npy")))


def test_a_failed_calibration_raises_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.CompletedProcess([], 1, "", "Traceback\nMemoryError: no room")
    monkeypatch.setattr(calibration.subprocess, "run", lambda *args, **options: process)
    with pytest.raises(BidrError, match=r"steps of a build failed .MemoryError: no room.; plan without it"):
        calibrate(CalibrationConfig(8, 4, [8]))


def test_calibration_measures_every_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, on few documents."""
    for name, value in SMALL_SIZES.items():
        monkeypatch.setattr(calibration, name, value)
    rates_by_bits = calibrate_in_process(CalibrationConfig(32, 4, [8, 4], text_bytes=100, lexical=True))
    assert list(rates_by_bits) == [8, 4]
    for rates in rates_by_bits.values():
        small = {
            "ordering",
            "summing",
            "grouping",
            "halving",
            "blocking",
            "parting",
            "finding",
        }  # may be 0
        assert all(rate > 0 for name, rate in rates._asdict().items() if name not in small)
        assert rates.row_bytes == 128


@pytest.mark.parametrize(
    ("slow_class", "rate_names"), [(DecodedCodes, {"turning"}), (VectorSource, {"reading", "sampling", "coding"})]
)
def test_a_rate_includes_no_other_step(slow_class: type, rate_names: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow decoding and slow reading change their own rates only."""
    for name, value in SMALL_SIZES.items():
        monkeypatch.setattr(calibration, name, value)
    read = slow_class.__getitem__

    def read_slowly(self: Any, rows: Any) -> np.ndarray:
        block, start = read(self, rows), time.process_time()
        while time.process_time() - start < SECONDS_PER_ROW * len(block):
            pass
        return block

    monkeypatch.setattr(slow_class, "__getitem__", read_slowly, raising=False)
    (rates,) = calibrate_in_process(CalibrationConfig(32, 4, [8], text_bytes=None)).values()
    names = {"turning", "reading", "sampling", "coding", "comparing", "summing", "grouping", "blocking", "averaging"}
    assert {name for name in names if getattr(rates, name) >= SECONDS_PER_ROW} == rate_names


@pytest.mark.slow
def test_calibration_in_a_process(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", clustered(30_000, DIM).astype(np.float16))
    machine = calibrate(CalibrationConfig(DIM, 6, [8, 4], vectors=str(tmp_path / "v.npy")))
    assert isinstance(machine, MachineRates)
    assert machine.rates[8].row_bytes == 2 * DIM
    assert machine.rates[8].fitting > machine.rates[4].fitting > 0
