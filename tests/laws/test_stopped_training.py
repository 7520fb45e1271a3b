"""Ctrl-C and SIGTERM: what was learned is kept, and going on gives what was never interrupted, byte for byte."""

import signal
import subprocess
import sys
import time
from pathlib import Path

from cli_data import TINY, Made, Run
from cli_fixtures import bidr, isolated_state, made  # noqa: F401 - fixtures

LONG = [*TINY, "--warmup.epochs", "16", "--dense.epochs", "16", "--batch-size", "4"]
INTO_AN_EPOCH = 0.05  # seconds; an epoch has 60 steps of a few milliseconds


def start(data: Path, out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bidr.cli", "train", "--data", str(data), "--out", str(out), *LONG]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def stop_at(process: subprocess.Popen[str], sign: str, number: signal.Signals) -> list[str]:
    """Send a signal once a line of progress begins so; the lines from there to the end."""
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(sign):
            time.sleep(INTO_AN_EPOCH)
            process.send_signal(number)
            break
    _, rest = process.communicate(timeout=240)
    return rest.splitlines()


def files(folder: Path) -> dict[str, bytes]:
    """The model, and what each stage says about itself."""
    found = [path for path in folder.rglob("*") if path.is_file()]
    work = folder / "work"
    kept = [path for path in found if work not in path.parents or path.name == "done.json"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in kept}


def test_a_run_stopped_twice_and_resumed_equals_an_uninterrupted_one(bidr: Run, made: Made, tmp_path: Path) -> None:  # noqa: F811
    whole = start(made.data, tmp_path / "whole")
    assert whole.communicate(timeout=480)[0].startswith("model ")
    out = tmp_path / "stopped"
    for stage, number in (("warmup", signal.SIGINT), ("dense-random-walk", signal.SIGTERM)):
        process = start(made.data, out)
        lines = stop_at(process, f"{stage}: epoch 2/16", number)
        assert process.returncode == 130
        assert lines[-1].startswith(f"bidr: stopped in stage '{stage}', epoch ")
        assert "run the same command again" in lines[-1]
        assert "Traceback" not in "\n".join(lines)
        assert (out / "work" / stage / "checkpoint.pt").exists()
        assert not (out / "model.json").exists()
        assert f"stages begun     {stage}" in bidr("inspect", out).out
    process = start(made.data, out)
    shown, progress = process.communicate(timeout=480)
    assert process.returncode == 0
    assert "dense-random-walk: resumed in epoch " in progress
    assert "warmup 1/16" not in progress
    assert shown.startswith("model ")
    assert files(out) == files(tmp_path / "whole")
