"""What a stage logs: lines that are there once each, whatever was cut off, and TensorBoard's files when wanted."""

import time

import pytest
from sample_training import CONFIG, dataset

from bidr.errors import ConfigError, MissingExtraError
from bidr.training.engine import logs
from bidr.training.engine.logs import LOG, FolderLogger, check_tensorboard, read_lines
from bidr.training.train import train


def write_steps(log: FolderLogger, first: int, last: int) -> None:
    for number in range(first, last + 1):
        log.log_step(number, 8, {"loss": 1 / number, "loss/dense": 1 / number})
    log.close()


def test_every_tenth_step_is_logged_with_the_speed_since_the_last(tmp_path, monkeypatch):
    clock = iter([0.0, 4.0, 6.0])
    monkeypatch.setattr(logs.time, "monotonic", clock.__next__)
    write_steps(FolderLogger(tmp_path, 0, 0, False), 1, 25)
    assert read_lines(tmp_path / LOG) == [
        {"step": 10, "loss": 0.1, "loss/dense": 0.1, "triples_per_second": 20.0},
        {"step": 20, "loss": 0.05, "loss/dense": 0.05, "triples_per_second": 40.0},
    ]


@pytest.mark.parametrize(("taken", "epochs", "kept"), [(0, 0, []), (25, 0, [10, 20]), (40, 0, [10, 20, 30, 40])])
def test_log_lines_after_the_checkpoint_are_dropped(tmp_path, taken, epochs, kept):
    """The epoch's line is written before its checkpoint: a run killed between the two closes the epoch again."""
    log = FolderLogger(tmp_path, 0, 0, False)
    write_steps(log, 1, 40)
    with (tmp_path / LOG).open("a") as file:
        file.write('{"step": 40, "epoch": 1, "dev/R@10": 0.5}\n{"step": 50, "lo')
    again = FolderLogger(tmp_path, taken, epochs, False)
    write_steps(again, taken + 1, 50)
    assert [line["step"] for line in read_lines(tmp_path / LOG)] == [10, 20, 30, 40, 50]
    assert len(kept) == len([line for line in read_lines(tmp_path / LOG) if line["step"] <= taken])
    closed = FolderLogger(tmp_path, 50, 1, False)
    closed.log_epoch(50, 2, {"dev/R@10": 0.7})
    closed.close()
    assert read_lines(tmp_path / LOG)[-1] == {"step": 50, "epoch": 2, "dev/R@10": 0.7}


def test_tensorboard_has_the_same_values_without_dropped_steps(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write_steps(FolderLogger(tmp_path, 0, 0, True), 1, 40)
    time.sleep(1 - time.time() % 1)  # TensorBoard orders the files of a folder by their second
    write_steps(FolderLogger(tmp_path, 20, 0, None), 21, 30)
    board = EventAccumulator(str(tmp_path)).Reload()
    assert [event.step for event in board.Scalars("loss/dense")] == [10, 20, 30]
    assert {"loss", "loss/dense", "triples_per_second"} <= set(board.Tags()["scalars"])


def test_missing_tensorboard_fails_only_if_required(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "find_spec", lambda name: None)
    assert not check_tensorboard(None)
    assert not check_tensorboard(False)
    with pytest.raises(MissingExtraError, match=r"'\.\[logs\]'"):
        train(dataset(), CONFIG.__class__(**{**vars(CONFIG), "logs": True}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    FolderLogger(tmp_path, 0, 0, None).close()
    assert [path.name for path in tmp_path.iterdir()] == [LOG]


def test_resume_must_and_never_are_enforced(tmp_path):
    out = tmp_path / "run"
    with pytest.raises(ConfigError, match="no run to resume"):
        train(dataset(), CONFIG, out, "must")
    assert not out.exists()
    (out / "work").mkdir(parents=True)
    (out / "work" / "run.json").write_text("{}")
    with pytest.raises(ConfigError, match="'never'; choose another folder"):
        train(dataset(), CONFIG, out, "never")
    assert (out / "work" / "run.json").read_text() == "{}"
