"""bidr bench: what a peer says becomes a row, what it cannot do becomes the reason, and figures are right."""

import mmap
import subprocess
import sys
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from bidr.bench import run
from bidr.bench.curves import front, svg
from bidr.bench.install import RANKING, install
from bidr.bench.launch import PeerError, ask
from bidr.bench.peers import harness
from bidr.bench.report import fastest, tables
from bidr.bench.variants import NAMES, Variant, variants
from bidr.cli import main
from bidr.data.vector_source import VectorSource
from bidr.index.vectors import VectorWriter

EXACT = """
import numpy as np, os
print("what a library says goes elsewhere")
def build(vectors, folder, settings):
    np.save(folder / "rows.npy", vectors)
def opened(folder, settings):
    rows = np.load(folder / "rows.npy")
    def search(query, count, setting):
        return np.argsort(-(rows @ query), kind="stable")[:count]
    return search
"""


@pytest.fixture
def prepared(tmp_path: Path) -> run.Prepared:
    random = np.random.default_rng(0)
    documents, queries = random.standard_normal((1_500, 16)), random.standard_normal((12, 16))
    return run.prepare(tmp_path, VectorSource(documents, "d", "cosine"), VectorSource(queries, "q", "cosine"), 10)


def measured(
    prepared: run.Prepared,
    code: str,
    monkeypatch: pytest.MonkeyPatch,
    variant: Variant,
    seconds: float = 60,
    rounds: int = 1,
) -> run.Row:
    """A row for a made peer: its adapter stands beside a copy of the harness."""
    (prepared.folder / "made.py").write_text(code)
    given = ask

    def asked(python: str, request: dict[str, object], seconds: float) -> list[dict[str, object]]:
        return given(python, {**request, "adapter": str(prepared.folder / "made.py")}, seconds)

    monkeypatch.setattr(run, "ask", asked)
    return run.compare([variant], prepared, lambda peer: sys.executable, {}, run.Limits(1, seconds, 2, rounds))[0]


def made(rank: str | None = "random", on_disk: bool = False) -> Variant:
    return Variant("made", "made", {}, [{"candidates": 100}, {"candidates": 400}], rank, on_disk)


@pytest.mark.parametrize(
    ("rank", "said"), [("random", "numpy, MADV_RANDOM"), ("memmap", "numpy, no advice"), (None, "itself")]
)
def test_a_peer_that_finds_everything(
    prepared: run.Prepared, monkeypatch: pytest.MonkeyPatch, rank: str | None, said: str
) -> None:
    row = measured(prepared, EXACT, monkeypatch, made(rank))
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
    assert "made" in tables([row])


def test_a_round_that_fails_leaves_those_before(prepared: run.Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    once = EXACT.replace(
        "def opened(folder, settings):",
        """def opened(folder, settings):
    tries = folder / "tries"
    tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
    assert len(tries.read_text()) < 2, "not again"
""",
    )
    row = measured(prepared, once, monkeypatch, made(None), rounds=3)
    assert len(row["points"]) == 2
    assert row["stopped"] == "AssertionError: not again"
    assert "not again" in tables([row])
    assert "of 0.95" in tables([row])


def test_memory_is_what_the_documents_take(prepared: run.Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    code = EXACT.replace(
        'rows = np.load(folder / "rows.npy")',
        'rows = np.load(folder / "rows.npy")\n    kept = b"x" * (len(rows) * 20_000)',
    ).replace("[:count]", "[:count] if kept else None")
    row = measured(prepared, code, monkeypatch, made())
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
def test_a_peer_that_cannot_is_a_row_that_says_why(
    prepared: run.Prepared, monkeypatch: pytest.MonkeyPatch, code: str, why: str
) -> None:
    row = measured(prepared, code, monkeypatch, made())
    assert why in row["error"]
    assert why in tables([row])


def test_a_peer_that_does_not_end(prepared: run.Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    row = measured(prepared, "import time\ntime.sleep(60)", monkeypatch, made(), 1)
    assert "not done with build after 1 s" in row["error"]


def test_a_python_that_is_not_there(prepared: run.Prepared) -> None:
    with pytest.raises(PeerError, match="cannot be run"):
        ask(str(prepared.folder / "none"), {"phase": "search", "settings": {}}, 10)


def test_cold_is_proved(tmp_path: Path) -> None:
    path = tmp_path / "some"
    path.write_bytes(bytes(1 << 22))
    assert harness.resident(path) > 0.9
    harness.evict(path)
    if harness.resident(path) > 0.9:
        pytest.skip("the temporary files of this machine live in memory")
    assert harness.resident(path) == 0
    path.read_bytes()
    assert harness.resident(path) > 0.9


def test_what_stays_in_memory_is_not_called_cold(prepared: run.Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    with prepared.rows.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as held:
        assert sum(held[::4_096]) >= 0
        row = measured(prepared, EXACT, monkeypatch, made())
    assert "stay in memory" in row["not_cold"]["error"]
    assert "stay in memory" in tables([row])
    assert len(row["points"]) == 2  # what was measured warm stands
    assert "error" not in row


def test_a_peer_that_reads_its_own_files_is_measured_cold_too(
    prepared: run.Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = '(folder / "vectors.bin").write_bytes(bytes(1 << 22))'
    mapped = EXACT.replace("def opened", f"    {large}\ndef opened")
    row = measured(prepared, mapped, monkeypatch, made(None, on_disk=True))
    if "not_cold" in row:
        pytest.skip("the temporary files of this machine live in memory")
    assert row["cold"]["queries"] == 2
    assert "cold" not in measured(prepared, mapped, monkeypatch, made(None))


def test_the_peak_of_a_build_is_its_own(prepared: run.Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    held = np.ones(50_000_000)  # 400 MB, which a child's getrusage would count
    row = measured(prepared, EXACT, monkeypatch, made())
    assert held[0] == 1
    assert row["build"]["peak_bytes"] < 200e6


def test_recall() -> None:
    exact = np.array([[1, 2, 3, 4], [5, 6, 7, 8]])
    found = np.array([[2, 1, 9, -1], [8, 5, 6, 7]])
    assert run.recall(found, exact, 2) == pytest.approx((1 + 0.5) / 2)
    assert run.recall(found, exact, 4) == pytest.approx((0.5 + 1) / 2)


def test_the_fastest_of_those_that_find_enough() -> None:
    points = [{"recall@100": found, "cpu_ms": ms} for found, ms in ((0.9, 0.1), (0.96, 0.5), (0.97, 0.4), (0.995, 2.0))]
    assert fastest({"points": points}, 0.95) == points[2]
    assert fastest({"points": points}, 0.999) is None


def test_curves_are_well_formed() -> None:
    points = [
        {"recall@100": found, "qps_per_core": speed} for found, speed in ((0.8, 900.0), (0.9, 950.0), (0.99, 20.0))
    ]
    assert front(points) == [(0.9, 950.0), (0.99, 20.0)]
    drawn = ET.fromstring(svg([{"name": "a < b & c", "points": points}, {"name": "none", "points": []}], "title"))
    words = [one.text for one in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert "a < b & c" in words
    assert "none" not in words
    assert ET.fromstring(svg([], "nothing ran")) is not None


def test_each_peer_is_measured_and_has_an_adapter() -> None:
    wanted = variants(NAMES, 193_000, 384, (32,))
    assert {one.peer for one in wanted} == set(NAMES)
    assert all((Path(run.__file__).parent / "peers" / f"{one.adapter}.py").exists() for one in wanted)


def test_no_step_of_a_grid_is_wide_for_anyone() -> None:
    for one in variants(NAMES, 1_000_000, 384, (32,)):
        if one.peer in ("diskann", "lancedb"):  # a query takes tens of milliseconds
            continue
        for name in {name for setting in one.grid for name in setting}:
            steps = sorted({setting[name] for setting in one.grid})
            assert all(after <= 1.7 * before for before, after in pairwise(steps)), one.name


def test_what_needs_no_environment_gets_none(tmp_path: Path) -> None:
    assert install(tmp_path, ("ours", "faiss", "naive")) == {}
    assert not list(tmp_path.iterdir())


ALONE = """
import importlib.metadata, sys
known = set(sys.argv[1:])
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in missing:
            raise ImportError(name)
missing = set(importlib.metadata.packages_distributions()) - known - {"bidr"}
sys.meta_path.insert(0, Missing())
from bidr.bench.peers.harness import ranker
import numpy as np, pathlib
print(ranker("auto", pathlib.Path("vectors.npy"))[0])
"""


def test_candidates_are_ranked_by_our_reads_in_what_a_peer_is_installed_with(tmp_path: Path) -> None:
    """Otherwise a peer would be charged for slower ones."""
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
        (["--asked", "0"], "--asked: given 0"),
        (["--work", "/nowhere/at/all"], "does not exist"),
        (["--vectors", "none.npy"], "does not exist"),
        (["--queries", "other.npy"], "has 8 dimensions"),
        (["--vectors", "few.npy"], "expected 1,000 or more"),
    ],
)
def test_bad_input_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flags: list[str], why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, shape in (("d.npy", (1_000, 16)), ("q.npy", (5, 16)), ("other.npy", (5, 8)), ("few.npy", (50, 16))):
        np.save(tmp_path / name, np.ones(shape, dtype=np.float32))
    assert main(["bench", "--vectors", "d.npy", "--queries", "q.npy", *flags]) == 2
    assert why in capsys.readouterr().err
