"""Fixtures for tests of the command line: one small data set, model and index, and a way to run the command."""

import os
from pathlib import Path

import pytest
from cli_data import TINY, Made, Run, beir_folder

from bidr.cli import main


@pytest.fixture(autouse=True)
def isolated_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIDR_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("BIDR_DEBUG", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # of subprocesses: their steps are too small to share


@pytest.fixture
def bidr(capfd: pytest.CaptureFixture[str]) -> Run:
    return Run(capfd)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Trained and built through the command line itself."""
    folder = tmp_path_factory.mktemp("cli")
    found = Made(beir_folder(folder / "data"), folder / "model", folder / "index")
    os.environ["BIDR_STATE"] = str(folder / "state")
    assert main(["train", "--data", str(found.data), "--out", str(found.model), *TINY]) == 0
    assert main(["build", "--data", str(found.data), "--model", str(found.model), "--out", str(found.index)]) == 0
    return found
