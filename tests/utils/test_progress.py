import pytest

from bidr.utils import progress


def test_the_time_left_ignores_the_first_unit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, *[90.0] * 3, *[110.0] * 2])  # 90 s of compilation, then 10 units in 20 s
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    report = progress._LineReporter("fit", 31, "iterations")
    report()
    report(10)
    first, second = capsys.readouterr().err.splitlines()
    assert first == "fit: 1/31 iterations in 90.0 s, 0.0/s"
    assert second == "fit: 11/31 iterations in 110.0 s, 0.1/s, 40 s left"
