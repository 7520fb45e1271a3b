"""DiskANN in a process of its own."""

import sys
from pathlib import Path

import numpy as np
import pytest
from fake_diskann import install_fake_diskann

from bidr.bench.launch import PeerError
from bidr.experiments.reproduce import diskann_baseline
from bidr.experiments.reproduce.diskann_baseline import find_diskann, search_diskann


def test_results_are_those_with_the_largest_inner_products(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_fake_diskann(tmp_path / "modules", monkeypatch)
    random = np.random.default_rng(0)
    vectors = (random.normal(size=(500, 12)) * random.uniform(1, 3, (500, 1))).astype(np.float32)
    queries = random.normal(size=(7, 12)).astype(np.float32)
    result = search_diskann(sys.executable, vectors, queries, 4, 200)
    exact = (-(queries @ vectors.T)).argsort(axis=1)[:, :100]
    assert result.rows[:, :10].tolist() == exact[:, :10].tolist()
    assert result.rows.shape == (7, 100)
    assert result.values["ms_per_query"] > 0
    assert result.ram["total"] == result.ram["anonymous"]


def test_a_failure_is_the_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.eye(8, dtype=np.float32)
    (tmp_path / "diskannpy.py").write_text("raise ImportError('no AVX2')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(PeerError, match="no AVX2"):
        search_diskann(sys.executable, vectors, vectors, 4, 200)
    monkeypatch.setattr(diskann_baseline, "install", lambda folder, peers: {"diskann": "cannot be installed: no"})
    with pytest.raises(PeerError, match="cannot be installed: no"):
        find_diskann(tmp_path)
