"""Real builds in processes of their own, killed by the system, and what memory they take."""

import importlib.util
import random
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from sample_index import clustered

from bidr.index.cost_model.build_memory import estimate_build_peaks
from bidr.index.cost_model.sizes import Shape
from bidr.index.live.compaction import predict_peak_ram
from bidr.index.live.live_reader import LiveIndex

DIM, KILLS, BLOCK = 384, 20, 10_000
GIB = 1 << 30


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    """bench/budget.py, which does the same for any vectors."""
    spec = importlib.util.spec_from_file_location("budget", Path(__file__).parents[2] / "bench" / "budget.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["budget"] = module
    spec.loader.exec_module(module)
    return module


def made(path: Path, count: int, dim: int = DIM) -> Path:
    rows = np.lib.format.open_memmap(path, "w+", np.float16, (count, dim))
    for start in range(0, count, BLOCK):
        rows[start : start + BLOCK] = clustered(min(BLOCK, count - start), dim, seed=start)
    rows.flush()
    return path


def command(vectors: Path, engine: str, budget: str) -> list[str]:
    flags = ["--vectors", str(vectors), "--engine", engine, "--bytes-per-doc", "16", "--ram-budget", budget]
    return [sys.executable, "-m", "bidr", "build", *flags, "--out"]


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "count"), [("lists", 1_000_000), ("hnsw", 200_000)])
def test_killed_twenty_times_within_a_gibibyte(tmp_path, bench, engine, count):
    build = command(made(tmp_path / "v.npy", count), engine, "1GiB")
    alone, often = bench.Took(), bench.Took()
    assert bench.run([*build, str(tmp_path / "alone")], alone)
    planned = max(estimate_build_peaks(Shape(count, DIM, engine, 4, 16)).values())
    print(f"{engine}, {count:,}: {alone}; planned {planned >> 20} MiB")
    assert 0.7 * planned < 1024 * alone.anonymous < 1.1 * planned
    chance, killed, builds = random.Random(1), 0, 0
    while killed < KILLS:  # another build where one came to its end early
        builds += 1
        out = tmp_path / f"often{builds}"
        while True:
            kill_after = 6 + chance.uniform(0, 1.5 * alone.wall / KILLS) if killed < KILLS else None
            if bench.run([*build, str(out)], often, kill_after):
                break
            killed += 1
        assert bench.same(tmp_path / "alone", out) == []
        shutil.rmtree(out)
    print(f"killed {killed} times in {builds} builds: {often}")
    assert 1024 * often.anonymous < GIB


@pytest.mark.slow
def test_a_killed_small_build_stays_within_the_predicted_memory(tmp_path, bench):
    build = command(made(tmp_path / "v.npy", 30_000), "lists", "600MiB")
    took, planned = bench.Took(), max(estimate_build_peaks(Shape(30_000, DIM, "lists", 4, 16)).values())
    bench.run([*build, str(tmp_path / "i")], took, 12.0)
    assert bench.run([*build, str(tmp_path / "i")], took)
    assert 0.7 * planned < 1024 * took.anonymous < 1.1 * planned


@pytest.mark.slow
@pytest.mark.parametrize(("dim", "size"), [(96, 16), (384, 32)])
def test_fitting_many_codewords_takes_no_more_than_planned(tmp_path, bench, dim, size):
    took, planned = bench.Took(), max(estimate_build_peaks(Shape(30_000, dim, "scan", 8, size)).values())
    flags = ["--engine", "scan", "--bytes-per-doc", str(size), "--codewords", "256", "--ram-budget", str(planned)]
    build = [sys.executable, "-m", "bidr", "build", "--vectors", str(made(tmp_path / "v.npy", 30_000, dim)), *flags]
    assert bench.run([*build, "--out", str(tmp_path / "i")], took)
    print(f"{dim} dimensions, {size} bytes: {took}; planned {planned >> 20} MiB")
    assert 0.6 * planned < 1024 * took.anonymous < planned


@pytest.mark.slow
def test_a_build_with_attributes_stays_within_the_predicted_memory(tmp_path, bench):
    """Of few dimensions, so that names and attributes are the largest step."""
    count, took = 1_000_000, bench.Took()
    peaks = estimate_build_peaks(Shape(count, 32, "scan", 4, 16), has_ids=True, has_attributes=True)
    planned = max(peaks.values())
    assert planned == peaks["names"]
    build = command(made(tmp_path / "v.npy", count, 32), "scan", str(planned))
    corpus = bench.made_corpus(tmp_path / "corpus", count)
    build[-1:-1] = ["--data", str(corpus)]
    assert bench.run([*build, str(tmp_path / "i")], took)
    print(f"{count:,} with attributes: {took}; planned {planned >> 20} MiB")
    assert 0.6 * planned < 1024 * took.anonymous < planned


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["lists", "hnsw"])
def test_compaction_stays_within_the_predicted_memory_and_resumes_after_kills(tmp_path, bench, engine, capsys):
    count, dim = 150_000, 96
    build = command(made(tmp_path / "v.npy", count, dim), engine, "1GiB")
    build[-1:-1] = ["--data", str(bench.made_corpus(tmp_path / "corpus", count))]
    assert bench.run([*build, str(tmp_path / "i")], bench.Took())
    with LiveIndex.open(tmp_path / "i") as index:
        planned = max(predict_peak_ram(index.latest()).values())
    bench.compacted(tmp_path / "i", str(planned + (1 << 20)), 3, 0)  # and what becomes deleted
    said = capsys.readouterr().out
    print(f"{engine}: planned {planned >> 20} MiB\n{said}")
    peaks = [int(found) << 20 for found in re.findall(r"peak (\d+) MiB anonymous", said)]
    assert len(peaks) == 2
    assert "the same bytes left behind: nothing" in said
    assert all(0.5 * planned < each <= 1.05 * planned for each in peaks)
