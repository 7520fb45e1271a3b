"""Killed without warning at any step, in the writing of a checkpoint or of a log, and gone on: the same bytes."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sample_training import files

from bidr.training.engine.logs import LOG, read_lines

STAGES = ("warmup", "sparse", "dense-random-walk", "unify-random-walk")


def run(out: Path, place: str, number: int) -> int:
    script = Path(__file__).parents[1] / "helpers" / "killed_training.py"
    command = [sys.executable, str(script), str(out), place, str(number)]
    return subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, check=False
    ).returncode


def log(folder: Path, stage: str) -> list[dict[str, float]]:
    """A stage's log without what depends on the clock."""
    times = ("seconds", "triples_per_second")
    lines = read_lines(folder / "work" / stage / LOG)
    return [{name: value for name, value in line.items() if name not in times} for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_a_run_killed_at_random_and_resumed_equals_an_uninterrupted_one(tmp_path, seed):
    draw = random.Random(seed)
    assert run(tmp_path / "whole", "never", 0) == 0
    # Of 240 steps the kills take fewer than that, wherever checkpoints fall: each happens.
    kills = [("step", draw.randint(1, 30)) for _ in range(4)]
    kills += [("save", draw.randint(1, 4)), ("log", draw.randint(1, 4))]
    draw.shuffle(kills)
    for place, number in kills:
        assert run(tmp_path / "killed", place, number) == -signal.SIGKILL, (place, number)
    assert run(tmp_path / "killed", "never", 0) == 0
    assert files(tmp_path / "killed") == files(tmp_path / "whole")
    for stage in STAGES:
        lines = log(tmp_path / "killed", stage)
        assert lines == log(tmp_path / "whole", stage)
        assert [line["step"] for line in lines if "epoch" not in line] == [10, 20, 30, 40, 50, 60]
        assert [line["epoch"] for line in lines if "epoch" in line] == [0, 1, 2, 3, 4, 5]
