"""The command under torchrun: one model, one result on standard output, and the same on being stopped."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_data import TINY, Made, Run


def start(data: Path, out: Path, *flags: str) -> subprocess.Popen[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "bidr"]
    command = [*torchrun, "train", "--data", str(data), "--out", str(out), *TINY, *flags]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.mark.slow
def test_two_processes_train_one_model_and_stop_with_torchrun(bidr: Run, made: Made, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start(made.data, out, "--resume", "never", "--tokens-at-once", "500")
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("warmup: epoch 1/3"):
            process.send_signal(signal.SIGTERM)
            break
    _, err = process.communicate(timeout=120)
    assert process.returncode != 0
    assert err.count("bidr: stopped in stage") == 2, err
    assert (out / "work" / "warmup" / "checkpoint.pt").exists()
    process = start(made.data, out, "--resume", "must", "--tokens-at-once", "500")
    shown, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert shown.count("fingerprint ") == 1
    assert err.count("warmup: resumed in epoch") == 1
    assert bidr("inspect", out).code == 0


@pytest.mark.slow
def test_stopped_while_the_first_process_alone_learns_codes_both_say_so(made: Made, tmp_path: Path) -> None:
    flags = ("--recipe", "star-distilled", "--frozen.steps", "100000", "--frozen.measured", "1000")
    process = start(made.data, tmp_path / "out", *flags)
    assert process.stderr is not None
    measured = 0
    for line in process.stderr:
        measured += line.startswith("step ") and "held-out queries" in line
        if measured == 3:
            process.send_signal(signal.SIGTERM)
            break
    _, err = process.communicate(timeout=120)
    assert process.returncode != 0
    assert err.count("bidr: stopped at step ") == 2, err
    assert "unexpected" not in err
    assert len(list((tmp_path / "out" / "work").glob("distilled*/checkpoint.pt"))) == 1
