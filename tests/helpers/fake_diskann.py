"""A stand-in for diskannpy: exact search by Euclidean distance, with its interface."""

import os
from pathlib import Path

import pytest

SOURCE = """
from typing import NamedTuple

import numpy as np


class Result(NamedTuple):
    identifiers: np.ndarray
    distances: np.ndarray


def build_disk_index(data, index_directory, **settings):
    assert settings["distance_metric"] == "l2"
    np.save(index_directory + "/data.npy", data)


class StaticDiskIndex:
    def __init__(self, index_directory, **settings):
        self.data = np.load(index_directory + "/data.npy")

    def search(self, query, k_neighbors, complexity, beam_width):
        assert complexity >= k_neighbors
        distances = ((self.data - query) ** 2).sum(axis=1)
        order = np.argsort(distances, kind="stable")[:k_neighbors]
        return Result(order, distances[order])
"""


def install_fake_diskann(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the module where processes of this Python find it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "diskannpy.py").write_text(SOURCE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")])))
