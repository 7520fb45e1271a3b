"""One small data set, model and index for all tests of the command line, and how the command is run."""

import os
from pathlib import Path
from typing import NamedTuple

import pytest
from cli_data import TINY, beir_folder

from bidr.cli import main


class Made(NamedTuple):
    """Where things are; nobody may change them."""

    data: Path
    model: Path
    index: Path


class Ran(NamedTuple):
    code: int
    out: str
    err: str


class Run:
    """Runs `bidr` in this process."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self.capfd = capfd

    def __call__(self, *args: object) -> Ran:
        self.capfd.readouterr()
        code = main([str(arg) for arg in args])
        return Ran(code, *self.capfd.readouterr())

    def refused(self, *args: object) -> str:
        """The one line that bad input gives; what went before it was progress of work that had to be done first."""
        code, out, err = self(*args)
        lines = err.splitlines()
        assert (code, out, len(lines)) == (2, "", 1), err
        assert lines[0].startswith("bidr: ")
        return lines[0]


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
