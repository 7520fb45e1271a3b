"""bidr bench: figures of a peer become a row, a failure becomes its reason, and the figures are correct."""

import mmap
import subprocess
import sys
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from bidr.bench import install as install_module
from bidr.bench import run
from bidr.bench.install import RANKING, find_interpreter, install
from bidr.bench.launch import PeerError, run_harness
from bidr.bench.peers import harness
from bidr.bench.recall_plot import compute_pareto_front, render_svg
from bidr.bench.report import find_fastest, render_tables
from bidr.bench.variants import NAMES, Variant, list_variants
from bidr.cli import main
from bidr.data.vector_source import VectorSource
from bidr.index.vectors import VectorWriter

EXACT = """
import numpy as np, os
print("what a library says goes elsewhere")
def build(vectors, folder, settings):
    np.save(folder / "rows.npy", vectors)
def open_index(folder, settings):
    rows = np.load(folder / "rows.npy")
    def search(query, count, setting):
        return np.argsort(-(rows @ query), kind="stable")[:count]
    return search
"""


@pytest.fixture
def prepared(tmp_path: Path) -> run.BenchmarkData:
    random = np.random.default_rng(0)
    documents, queries = random.standard_normal((1_500, 16)), random.standard_normal((12, 16))
    return run.prepare(tmp_path, VectorSource(documents, "d", "cosine"), VectorSource(queries, "q", "cosine"), 10)


def run_peer(
    prepared: run.BenchmarkData,
    code: str,
    monkeypatch: pytest.MonkeyPatch,
    variant: Variant,
    seconds: float = 60,
    rounds: int = 1,
) -> run.Row:
    """Run the benchmark of one peer whose adapter is the given code."""
    (prepared.folder / "made.py").write_text(code)
    real = run_harness

    def run_with_adapter(python: str, request: dict[str, object], seconds: float) -> list[dict[str, object]]:
        return real(python, {**request, "adapter": str(prepared.folder / "made.py")}, seconds)

    monkeypatch.setattr(run, "run_harness", run_with_adapter)
    return run.compare([variant], prepared, lambda peer: sys.executable, {}, run.Limits(1, seconds, 2, rounds))[0]


def make_variant(rank: str | None = "random", on_disk: bool = False) -> Variant:
    return Variant("made", "made", {}, [{"candidates": 100}, {"candidates": 400}], rank, on_disk)


@pytest.mark.parametrize(
    ("rank", "said"), [("random", "numpy, MADV_RANDOM"), ("memmap", "numpy, no advice"), (None, "itself")]
)
def test_a_peer_with_exact_results_has_full_recall(
    prepared: run.BenchmarkData, monkeypatch: pytest.MonkeyPatch, rank: str | None, said: str
) -> None:
    row = run_peer(prepared, EXACT, monkeypatch, make_variant(rank))
    assert "error" not in row, row
    assert [point["setting"]["candidates"] for point in row["points"]] == [100, 400]
    for point in row["points"]:
        assert point["recall@10"] == 1.0
        assert point["recall@100"] > 0.99  # fp16 may swap the last
        assert point["ranked_by"] == said
        assert point["cpu_ms"] > 0
        assert point["p99_ms"] >= point["p50_ms"] > 0
    assert row["build"]["disk_bytes"] == pytest.approx(1_500 * 64, rel=0.01)
    shared = prepared.rows.stat().st_size / 1_500 if rank else 0  # the vectors that it is ranked by
    assert row["disk_per_document"] == pytest.approx(64 + shared, rel=0.01)
    assert "made" in render_tables([row])


def test_a_failed_round_keeps_the_earlier_ones(prepared: run.BenchmarkData, monkeypatch: pytest.MonkeyPatch) -> None:
    once = EXACT.replace(
        "def open_index(folder, settings):",
        """def open_index(folder, settings):
    tries = folder / "tries"
    tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
    assert len(tries.read_text()) < 2, "not again"
""",
    )
    row = run_peer(prepared, once, monkeypatch, make_variant(None), rounds=3)
    assert len(row["points"]) == 2
    assert row["stopped"] == "AssertionError: not again"
    assert "not again" in render_tables([row])
    assert "of 0.95" in render_tables([row])


def test_memory_is_counted_per_document(prepared: run.BenchmarkData, monkeypatch: pytest.MonkeyPatch) -> None:
    code = EXACT.replace(
        'rows = np.load(folder / "rows.npy")',
        'rows = np.load(folder / "rows.npy")\n    kept = b"x" * (len(rows) * 20_000)',
    ).replace("[:count]", "[:count] if kept else None")
    row = run_peer(prepared, code, monkeypatch, make_variant())
    assert row["ram_per_document"]["anonymous_bytes"] == pytest.approx(20_064, rel=0.05)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import nothing_of_this_name", "No module named 'nothing_of_this_name'"),
        (EXACT.replace("return search", "os.abort()"), "killed by signal 6"),
        (EXACT.replace("np.save(", "raise ValueError('too\\nmany') or ("), "ValueError: too many"),
        (EXACT.replace("return search", "os._exit(0)"), "without figures"),
    ],
)
def test_a_failed_peer_has_a_row_with_the_reason(
    prepared: run.BenchmarkData, monkeypatch: pytest.MonkeyPatch, code: str, why: str
) -> None:
    row = run_peer(prepared, code, monkeypatch, make_variant())
    assert why in row["error"]
    assert why in render_tables([row])


def test_a_peer_is_stopped_at_the_time_limit(prepared: run.BenchmarkData, monkeypatch: pytest.MonkeyPatch) -> None:
    row = run_peer(prepared, "import time\ntime.sleep(60)", monkeypatch, make_variant(), 1)
    assert "not done with build after 1 s" in row["error"]


def test_a_missing_python_is_refused(prepared: run.BenchmarkData) -> None:
    with pytest.raises(PeerError, match="cannot be run"):
        run_harness(str(prepared.folder / "none"), {"phase": "search", "settings": {}}, 10)


def test_eviction_is_verified_by_mincore(tmp_path: Path) -> None:
    path = tmp_path / "some"
    path.write_bytes(bytes(1 << 22))
    assert harness.measure_resident_share(path) > 0.9
    harness.evict(path)
    if harness.measure_resident_share(path) > 0.9:
        pytest.skip("the temporary files of this machine live in memory")
    assert harness.measure_resident_share(path) == 0
    path.read_bytes()
    assert harness.measure_resident_share(path) > 0.9


def test_vectors_that_stay_in_memory_are_not_measured_cold(
    prepared: run.BenchmarkData, monkeypatch: pytest.MonkeyPatch
) -> None:
    with prepared.rows.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as held:
        assert sum(held[::4_096]) >= 0
        row = run_peer(prepared, EXACT, monkeypatch, make_variant())
    assert "stay in memory" in row["not_cold"]["error"]
    assert "stay in memory" in render_tables([row])
    assert len(row["points"]) == 2  # what was measured warm stands
    assert "error" not in row


def test_a_peer_that_reads_its_own_files_is_measured_cold_too(
    prepared: run.BenchmarkData, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = '(folder / "vectors.bin").write_bytes(bytes(1 << 22))'
    mapped = EXACT.replace("def open_index", f"    {large}\ndef open_index")
    row = run_peer(prepared, mapped, monkeypatch, make_variant(None, on_disk=True))
    if "not_cold" in row:
        pytest.skip("the temporary files of this machine live in memory")
    assert row["cold"]["queries"] == 2
    assert "cold" not in run_peer(prepared, mapped, monkeypatch, make_variant(None))


def test_peak_memory_excludes_the_parent_process(prepared: run.BenchmarkData, monkeypatch: pytest.MonkeyPatch) -> None:
    held = np.ones(50_000_000)  # 400 MB, which a child's getrusage would count
    row = run_peer(prepared, EXACT, monkeypatch, make_variant())
    assert held[0] == 1
    assert row["build"]["peak_bytes"] < 200e6


def test_recall() -> None:
    exact = np.array([[1, 2, 3, 4], [5, 6, 7, 8]])
    found = np.array([[2, 1, 9, -1], [8, 5, 6, 7]])
    assert run.compute_recall(found, exact, 2) == pytest.approx((1 + 0.5) / 2)
    assert run.compute_recall(found, exact, 4) == pytest.approx((0.5 + 1) / 2)


def test_find_fastest_requires_the_recall() -> None:
    points = [{"recall@100": found, "cpu_ms": ms} for found, ms in ((0.9, 0.1), (0.96, 0.5), (0.97, 0.4), (0.995, 2.0))]
    assert find_fastest({"points": points}, 0.95) == points[2]
    assert find_fastest({"points": points}, 0.999) is None


def test_curves_are_well_formed() -> None:
    points = [
        {"recall@100": found, "qps_per_core": speed} for found, speed in ((0.8, 900.0), (0.9, 950.0), (0.99, 20.0))
    ]
    assert compute_pareto_front(points) == [(0.9, 950.0), (0.99, 20.0)]
    drawn = ET.fromstring(
        render_svg([{"name": "a < b & c", "points": points}, {"name": "none", "points": []}], "title")
    )
    words = [one.text for one in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert "a < b & c" in words
    assert "none" not in words
    assert ET.fromstring(render_svg([], "nothing ran")) is not None


def test_each_peer_is_measured_and_has_an_adapter() -> None:
    wanted = list_variants(NAMES, 193_000, 384, (32,))
    assert {one.peer for one in wanted} == set(NAMES)
    assert all((Path(run.__file__).parent / "peers" / f"{one.adapter}.py").exists() for one in wanted)


def test_the_steps_of_every_grid_are_narrow() -> None:
    for one in list_variants(NAMES, 1_000_000, 384, (32,)):
        if one.peer in ("diskann", "lancedb"):  # a query takes tens of milliseconds
            continue
        for name in {name for setting in one.grid for name in setting}:
            steps = sorted({setting[name] for setting in one.grid})
            assert all(after <= 1.7 * before for before, after in pairwise(steps)), one.name


def test_peers_without_packages_need_no_environment(tmp_path: Path) -> None:
    assert install(tmp_path, ("ours", "faiss", "naive")) == {}
    assert not list(tmp_path.iterdir())


def test_a_peer_without_wheels_for_this_python_gets_an_earlier_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install_module, "which", lambda name: f"/usr/bin/{name}")
    for version, interpreter in (((3, 11, 7), sys.executable), ((3, 13, 0), "/usr/bin/python3.11")):
        monkeypatch.setattr(install_module.sys, "version_info", version)
        assert find_interpreter("diskann") == interpreter
        assert find_interpreter("usearch") == sys.executable


ALONE = """
import importlib.metadata, sys
known = set(sys.argv[1:])
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in missing:
            raise ImportError(name)
missing = set(importlib.metadata.packages_distributions()) - known - {"bidr"}
sys.meta_path.insert(0, Missing())
from bidr.bench.peers.harness import make_ranker
import numpy as np, pathlib
print(make_ranker("auto", pathlib.Path("vectors.npy"))[0])
"""


def test_the_environment_of_a_peer_can_rank_with_bidr(tmp_path: Path) -> None:
    """Otherwise slower reads would count against the peer."""
    with VectorWriter(lambda name: (tmp_path / name).open("wb"), 4, 8, "fp16") as out:
        out.write(np.ones((4, 8), dtype=np.float32))
    names = [*RANKING, "numpy", "llvmlite"]
    said = subprocess.run(
        [sys.executable, "-c", ALONE, *names], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert said.stdout == "bidr's reads\n"


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--peers", "scan"], "unknown peer 'scan'; did you mean 'scann'?"),
        (["--peer-python", "scann"], "expected NAME=PATH"),
        (
            ["--code-bytes", "4", "--skip", "usearch f61"],
            "which is none of the indexes of --peers; did you mean 'usearch f16'?",
        ),
        (["--code-bytes", "7"], "expected a divisor of 8"),
        (["--asked", "0"], "--query-count: given 0"),
        (["--work", "/nowhere/at/all"], "does not exist"),
        (["--vectors", "none.npy"], "does not exist"),
        (["--queries", "other.npy"], "has 8 dimensions"),
        (["--vectors", "few.npy"], "expected 1,000 or more"),
    ],
)
def test_invalid_input_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flags: list[str], why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, shape in (("d.npy", (1_000, 16)), ("q.npy", (5, 16)), ("other.npy", (5, 8)), ("few.npy", (50, 16))):
        np.save(tmp_path / name, np.ones(shape, dtype=np.float32))
    assert main(["bench", "--vectors", "d.npy", "--queries", "q.npy", *flags]) == 2
    assert why in capsys.readouterr().err
