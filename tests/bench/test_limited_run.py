"""bidr bench --memory-limit: settings are chosen on other queries than reported, within a cgroup that counts."""

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from bidr.bench import limited_run, run
from bidr.bench.launch import run_harness
from bidr.bench.limited_report import find_quickest, render_limited_tables
from bidr.bench.limited_run import LimitedConfig, choose_settings, divide_queries, parse_memory_limit, prepare_limited
from bidr.bench.limited_variants import PEERS, list_limited_variants
from bidr.bench.memory_cgroup import MemoryCgroup
from bidr.bench.recall_plot import LIMITED_AXES, render_svg
from bidr.bench.variants import Variant
from bidr.cli import main
from bidr.data.vector_source import VectorSource
from bidr.errors import ConfigError

MAPPED = """
import mmap
import numpy as np
def build(vectors, folder, settings):
    np.save(folder / "rows.npy", vectors)
def open_index(folder, settings):
    rows = np.load(folder / "rows.npy", mmap_mode="r")
    rows._mmap.madvise(mmap.MADV_RANDOM)
    held = np.ones(1 << 20)
    def search(query, count, setting):
        assert held.all()
        return np.argsort(-(rows[: setting["rows"]] @ query), kind="stable")[:count]
    return search
"""
MIB = 1 << 20


def test_queries_of_different_use_are_different() -> None:
    parts = divide_queries(1_000, 100)
    ranges = [set(range(*part)) for part in parts]
    assert sum(map(len, ranges)) == len(set.union(*ranges)) == 1_000
    assert len(ranges[0]) == len(ranges[1]) == 100
    with pytest.raises(ConfigError, match=r"given 200 with 1,000 queries, expected 1,200 or more.*--query-count 166"):
        divide_queries(1_000, 200)


@pytest.mark.parametrize(("text", "size"), [("10%", 100), ("0.5 %", 5), ("100%", 1_000), ("2MiB", 2 * MIB)])
def test_a_limit_is_a_share_or_a_size(text: str, size: int) -> None:
    assert parse_memory_limit(text, 1_000) == size


@pytest.mark.parametrize("text", ["0%", "101%", "x%", "ten"])
def test_other_limits_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--memory-limit: given"):
        parse_memory_limit(text, 1_000)


def test_the_quickest_setting_for_each_recall_is_reported_once() -> None:
    points = [
        {"setting": {"ef": ef}, "recall@10": recall, "p50_ms": ms}
        for ef, recall, ms in ((1, 0.8, 0.1), (2, 0.96, 0.9), (3, 0.955, 0.5), (4, 0.97, 0.7))
    ]
    assert choose_settings(points, (0.95, 0.955, 0.96)) == [{"ef": 3}, {"ef": 4}]
    assert choose_settings(points, (0.99,)) == [{"ef": 4}], "the most recall, where a target is not reached"


def test_a_peer_is_measured_within_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        MemoryCgroup.create().remove()
    except ConfigError as error:
        pytest.skip(str(error))
    random = np.random.default_rng(0)
    documents, queries = random.standard_normal((12_000, 256)), random.standard_normal((60, 256))
    prepared, parts = prepare_limited(
        tmp_path, VectorSource(documents, "d", "cosine"), VectorSource(queries, "q", "cosine"), 10
    )
    (tmp_path / "mapped.py").write_text(MAPPED)

    def run_with_adapter(
        python: str, request: dict[str, object], seconds: float, threads: int = 1
    ) -> list[dict[str, object]]:
        return run_harness(python, {**request, "adapter": str(tmp_path / "mapped.py")}, seconds, threads)

    for module in (limited_run, run):
        monkeypatch.setattr(module, "run_harness", run_with_adapter)
    grid = [{"rows": 6_000}, {"rows": 12_000}]
    variant = Variant("mapped", "mapped", {}, grid, None, on_disk=True)
    config = LimitedConfig(4 * MIB, (1, 3), (0.4, 0.99))
    snapshots: list[int] = []
    row = limited_run.compare_limited(
        [variant], prepared, parts, lambda peer: sys.executable, {}, run.Limits(), config, lambda _: snapshots.append(1)
    )[0]
    assert "error" not in row, row["error"]
    assert snapshots
    assert row["index_bytes_per_document"] == pytest.approx(8 * MIB / 12_000, rel=0.2)
    assert [point["setting"] for point in row["points"]] == grid
    assert [point["recall@10"] for point in row["points"]] == [pytest.approx(0.5, abs=0.15), 1.0]
    whole = row["points"][1]
    assert whole["cache_bytes"] < 6 * MIB
    # 12 MB of float32 pass through 4 MiB of page cache for every query.
    assert whole["read_bytes"] > 6 * MIB
    assert whole["p99_ms"] >= whole["p95_ms"] >= whole["p50_ms"] > 0
    assert [level["clients"] for level in whole["clients"]] == [1, 3]
    assert all(level["qps"] > 0 for level in whole["clients"])
    assert find_quickest(row, 0.9) == whole
    text = render_limited_tables([row, {"name": "other", "points": [], "error": "why it failed"}], config.cache)
    assert "why it failed" in text
    assert "rows 12000" in text
    drawn = ET.fromstring(render_svg([row], "title", LIMITED_AXES))
    assert "recall@10" in [element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")]


def test_without_a_cgroup_the_command_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("bidr.bench.memory_cgroup.list_parents", lambda: ())
    for name, count in (("d.npy", 1_000), ("q.npy", 60)):
        np.save(name, np.ones((count, 16), dtype=np.float32))
    flags = ["bench", "--vectors", "d.npy", "--queries", "q.npy", "--code-bytes", "4", "--peers", "ours"]
    assert main([*flags, "--memory-limit", "10%"]) == 2
    assert "no memory cgroup can be created (none is mounted)" in capsys.readouterr().err


def test_each_peer_has_an_adapter_and_a_grid() -> None:
    variants = list_limited_variants(PEERS, 1_000_000, 384, (32, 64))
    assert {variant.peer for variant in variants} == set(PEERS)
    assert all((Path(run.__file__).parent / "peers" / f"{variant.adapter}.py").exists() for variant in variants)
    assert all(len(variant.grid) >= 5 for variant in variants)
