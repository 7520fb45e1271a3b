"""Build times: every step of a build is planned for, by as much work as it really does."""

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
from bidr.index.builder import coarse_clustering as clusters
from bidr.index.builder import reorder as arrange
from bidr.index.builder.build import build_index
from bidr.index.builder.cluster_input import DecodedCodes, VectorInput
from bidr.index.cost_model.build_time import BUILT_IN, Rates, build_times, built_in, halvings, lists_of
from bidr.index.cost_model.sizes import BITS, ENGINES, Shape
from bidr.index.engines import block_centroids as means
from bidr.index.engines.graph import build as linking
from bidr.pipeline.build import build_vectors
from bidr.planning import calibration as measuring
from bidr.planning.calibration import Asked, Measured, measure, measure_here
from bidr.quantization.opq import PlainCodes
from bidr.utils.step_timer import StepTime, record_steps, time_step

DIM, NEAR, A_ROW = 48, 0.10, 100e-6
FEW = {"DOCUMENTS": 6_000, "IN_A_PASS": 3_000, "PASSES": 2, "FIT_ROWS": 3_000, "LARGE": 500}
FEW |= {"RANGES": 2, "PIECES": 2_000, "PACKED": 512}
NONE = Rates(*[0.0] * len(Rates._fields))._replace(row_bytes=1.0)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_step_of_a_build_is_planned_for(tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(means, "MIN_BLOCKS", 16)
    monkeypatch.setattr(clusters, "MIN_ORDERED_DOCUMENTS", 500)
    monkeypatch.setattr("bidr.index.cost_model.build_time.ORDERED_DOCUMENTS", 500)
    vectors, books = clustered(600, DIM), random_codebooks(DIM, 6)
    named = {"documents": documents(600), "lexical": "prepend"}
    with record_steps() as spent:
        build_index(
            tmp_path / "a", codebooks=books, codes=books.encode(vectors), vectors=vectors, engine=engine, **named
        )
    shape = Shape(600, DIM, engine, 4, 3)
    planned = build_times(shape, BUILT_IN[4], postings=5)
    assert planned.keys() - {"coding"} == spent.keys()
    assert all(took.cpu > 0 for took in planned.values())
    with record_steps() as spent:
        build_vectors(vectors, None, tmp_path / "b", engine=engine, plain=PlainCodes(3, 16))
    assert build_times(shape, BUILT_IN[4], named=False).keys() == spent.keys()


@pytest.mark.parametrize(("engine", "count"), [("scan", 3_000), ("lists", 3_000), ("lists", 9_000), ("hnsw", 3_000)])
def test_as_many_centroids_are_compared_as_planned(
    tmp_path: Path, engine: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "MIN_ORDERED_DOCUMENTS", 500)
    monkeypatch.setattr("bidr.index.cost_model.build_time.ORDERED_DOCUMENTS", 500)
    pairs, begun = list[int](), list[list[str]]()
    finder = clusters.make_centroid_search

    class Counting:
        def __init__(self, centroids: np.ndarray) -> None:
            self.nearest, self.lists = finder(centroids), len(centroids)
            begun.append(list(spent)[-1:])

        def search(self, block: np.ndarray) -> np.ndarray:
            pairs.append(len(block) * self.lists)
            return self.nearest.search(block)

    monkeypatch.setattr(clusters, "make_centroid_search", Counting)
    vectors, books = clustered(count, DIM), random_codebooks(DIM, 6)
    with record_steps() as spent:
        build_index(tmp_path, codebooks=books, codes=books.encode(vectors), vectors=vectors, engine=engine)
    assert begun == [["clusters"]] * (clusters.ROUNDS + 1)
    shape = Shape(count, DIM, engine, 4, 3)
    assert sum(pairs) == pytest.approx(build_times(shape, NONE._replace(comparing=1.0))["clusters"].cpu)


@pytest.mark.parametrize(
    ("engine", "fits"), [("scan", True), ("lists", True), ("lists", False), ("hnsw", True), ("hnsw", False)]
)
def test_as_many_vectors_are_read_and_codes_turned_as_planned(
    tmp_path: Path, engine: str, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists are divided by vectors where the codes are of them, else by codes, as the order of a scan and a graph."""
    for module in ("bidr.index.builder.coarse_clustering", "bidr.index.cost_model.build_time"):
        monkeypatch.setattr(f"{module}.ORDERED_DOCUMENTS", 500)
    monkeypatch.setattr(means, "MIN_BLOCKS", 16)
    monkeypatch.setattr(clusters, "POINTS_PER_LIST", 20)
    vectors, books = clustered(3_000, DIM), random_codebooks(DIM, 6)
    codes = books.encode(vectors if fits else vectors[::-1])
    shape, seen = Shape(3_000, DIM, engine, 4, 3), dict.fromkeys(["vectors", "sample", "codes"], 0)
    sample = clusters.get_sample_size(3_000, lists_of(shape))
    for kind in (VectorInput, DecodedCodes):

        def floats(self: VectorInput, rows: np.ndarray, real: Callable[..., np.ndarray] = kind.floats) -> np.ndarray:
            of = "codes" if isinstance(self, DecodedCodes) else "vectors" if self.array is vectors else "sample"
            if len(self) in (3_000, sample):  # not where k-means begins
                seen[of] += len(rows)
            return real(self, rows)

        monkeypatch.setattr(kind, "floats", floats)
    build_index(tmp_path, codebooks=books, codes=codes, vectors=vectors, engine=engine)

    def planned(**one: float) -> float:
        return sum(took.cpu for took in build_times(shape, NONE._replace(**one), fits=fits).values())

    assert planned(turning=1.0) == pytest.approx(seen["codes"])
    assert planned(reading=1.0) == pytest.approx(seen["vectors"])
    assert clusters.ROUNDS * planned(sampling=1.0) == pytest.approx(seen["sample"])
    assert (seen["vectors"] > 0) == (engine == "lists" and fits)


def test_a_model_makes_its_codes_itself() -> None:
    for engine in ENGINES:
        fitted, learned = (build_times(Shape(100_000, 384, engine), BUILT_IN[8], fits=fits) for fits in (True, False))
        assert fitted.keys() - learned.keys() == {"codebooks", "coding"}
        assert (fitted["clusters"].cpu < learned["clusters"].cpu) == (engine == "lists")


@pytest.mark.parametrize("size", [45, 170, 1_000])
def test_clusters_are_halved_as_often_as_planned(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    looked, furthest = list[int](), arrange._find_furthest
    monkeypatch.setattr(
        arrange, "_find_furthest", lambda own, rows, at: looked.append(len(rows)) or furthest(own, rows, at)
    )
    monkeypatch.setattr(arrange, "_bisect_in_place", arrange._bisect_in_place.py_func)
    vectors = clustered(4_000, DIM)
    own, offsets, order = VectorInput(vectors), np.arange(0, 4_000, size), np.arange(4_000)
    for part, ways in (
        (32, lambda: arrange.order_in_blocks(own, offsets, order, 32)),
        (4, lambda: arrange.order_for_graph(own, clusters.Clusters(vectors[: len(offsets) - 1], offsets, order))),
    ):
        looked.clear()
        list(ways())
        among = 0 if part == 32 else (len(offsets) - 1) * halvings(len(offsets) - 1, 1)  # the centroids themselves
        assert (sum(looked) / 2 - among) / offsets[-1] == pytest.approx(halvings(size, part), rel=0.15)


def test_links_are_looked_for_among_as_many_as_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linking, "POOL_FACTOR", 4)
    asked, near = list[tuple[int, int]](), linking.select_pieces
    monkeypatch.setattr(
        linking,
        "select_pieces",
        lambda means, mine, count: asked.append((len(means), count)) or near(means, mine, count),
    )
    books, vectors = random_codebooks(DIM, 6), clustered(4_096, DIM)
    list(linking.choose_links(books, books.encode(vectors), 100))
    planned = build_times(Shape(4_096, DIM, "hnsw", 4, 3), NONE._replace(piecing=1.0))["links"].cpu
    assert sum(pieces for pieces, _ in asked) == planned


def test_a_file_is_found_again_for_every_block_of_rows() -> None:
    """Small files are brought whole by each block; of large ones every row brings its own stretch."""
    rates = NONE._replace(finding=1.0, row_bytes=1_024.0)
    small, large = (
        build_times(Shape(count, 256, "lists"), rates)["vectors"].cpu / count for count in (16_384, 100_000_000)
    )
    assert small == pytest.approx(16_384 * 1_024 / (1 << 16) / 8_192, rel=NEAR)
    assert large == pytest.approx(1, rel=NEAR)


def test_built_in_rates_are_those_of_their_dimensions_and_grow() -> None:
    for bits in BITS:
        assert built_in(bits, 384, 1_000) == pytest.approx(BUILT_IN[bits])
        wider = built_in(bits, 768, 1_000)
        assert all(more >= less for more, less in zip(wider, BUILT_IN[bits], strict=True))
        assert wider.fitting > 2 * BUILT_IN[bits].fitting
        assert built_in(bits, 384).naming < BUILT_IN[bits].naming


def test_more_cores_help_with_what_they_share() -> None:
    for engine in ENGINES:
        times = build_times(Shape(10_000_000, 384, engine), BUILT_IN[8])
        assert all(took.clock(1) == pytest.approx(took.cpu) for took in times.values())
        assert times["vectors"].clock(16) == times["vectors"].cpu
        assert times["coding"].clock(16) < times["coding"].cpu / 4
        assert times["clusters"].clock(16) < times["clusters"].cpu / 8
        assert times["codebooks"].clock(2) == pytest.approx(0.65 * times["codebooks"].cpu)


@pytest.mark.parametrize(("size", "at_once"), [(8_000, 2), (3_000, 5), (100, 6)])
def test_large_lists_are_divided_by_few_cores(size: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many at a time as are in memory together; the plan does not count with more cores than that."""
    running, most, halve = list[int](), list[int](), arrange._bisect_list

    def watched(*given: Any) -> np.ndarray:
        running.append(1)
        most.append(len(running))
        time.sleep(0.05)
        running.pop()
        return halve(*given)

    monkeypatch.setattr(arrange, "available_cpus", lambda: 6)
    monkeypatch.setattr(arrange, "_bisect_list", watched)
    offsets, vectors = np.arange(0, 32_001, size), clustered(32_000, 4)
    list(arrange.order_in_blocks(VectorInput(vectors), offsets, np.arange(32_000), 32))
    assert max(most) == at_once
    lists = 1_000_000
    shape = replace(Shape(size * lists, 4, "lists"), learned=lists)
    order = build_times(shape, NONE._replace(parting=1.0))["order"]
    assert order.cpu / order.clock(6) == pytest.approx(at_once, rel=0.05)
    assert order.cpu / order.clock(2) == pytest.approx(5 / 3 if at_once == 5 else 2, rel=0.01)


def test_a_step_within_another_is_counted_once() -> None:
    with record_steps() as spent, time_step("outer"):
        with time_step("inner"):
            sum(range(2_000_000))
        with time_step("inner"):
            sum(range(2_000_000))
    assert list(spent) == ["outer", "inner"]
    assert spent["inner"].cpu > 3 * spent["outer"].cpu
    with time_step("nobody asks"):
        pass
    assert sum(spent.values(), StepTime()).clock >= spent["inner"].clock


def test_vectors_to_measure_on_are_looked_at_first(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.ones((100, 8), dtype=np.float32))
    with pytest.raises(ConfigError, match=r"dim: given 16, but .*v.npy has 8 dimensions; give --dim 8"):
        measure(Asked(16, 4, [8], vectors=str(tmp_path / "v.npy")))
    with pytest.raises(ConfigError, match=r"v.npy has 100, expected 26,000 or more to measure on"):
        measure(Asked(8, 4, [8], vectors=str(tmp_path / "v.npy")))


def test_measuring_that_fails_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "Traceback\nMemoryError: no room")
    monkeypatch.setattr(measuring.subprocess, "run", lambda *a, **b: failed)
    with pytest.raises(BidrError, match=r"steps of a build failed .MemoryError: no room.; plan without it"):
        measure(Asked(8, 4, [8]))


def test_rates_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, on few documents."""
    for name, value in FEW.items():
        monkeypatch.setattr(measuring, name, value)
    found = measure_here(Asked(32, 4, [8, 4], text_bytes=100, lexical=True))
    assert list(found) == [8, 4]
    for rates in found.values():
        small = {"ordering", "summing", "grouping", "halving", "blocking", "parting", "finding"}  # may vanish in noise
        assert all(rate > 0 for name, rate in rates._asdict().items() if name not in small)
        assert rates.row_bytes == 128


@pytest.mark.parametrize(
    ("slow", "own"), [(DecodedCodes, {"turning"}), (VectorSource, {"reading", "sampling", "coding"})]
)
def test_a_rate_is_of_nothing_besides(slow: type, own: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes that are slow to turn, vectors that are slow to read: other rates stay as they are."""
    for name, value in FEW.items():
        monkeypatch.setattr(measuring, name, value)
    read = slow.__getitem__

    def slowly(self: Any, rows: Any) -> np.ndarray:
        found, started = read(self, rows), time.process_time()
        while time.process_time() - started < A_ROW * len(found):
            pass
        return found

    monkeypatch.setattr(slow, "__getitem__", slowly, raising=False)
    (rates,) = measure_here(Asked(32, 4, [8], text_bytes=None)).values()
    each = {"turning", "reading", "sampling", "coding", "comparing", "summing", "grouping", "blocking", "averaging"}
    assert {name for name in each if getattr(rates, name) >= A_ROW} == own


@pytest.mark.slow
def test_rates_of_this_machine(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", clustered(30_000, DIM).astype(np.float16))
    found = measure(Asked(DIM, 6, [8, 4], vectors=str(tmp_path / "v.npy")))
    assert isinstance(found, Measured)
    assert found.rates[8].row_bytes == 2 * DIM
    assert found.rates[8].fitting > found.rates[4].fitting > 0
