"""The disk is measured with a temporary file that is removed, past the page cache."""

from pathlib import Path

import pytest

from bidr.errors import ConfigError, StorageError
from bidr.planning import disk_benchmark
from bidr.planning.disk_benchmark import DiskSpeed, measure_disk


def test_random_reads_are_measured_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_benchmark, "FILE_BYTES", 8 << 20)
    monkeypatch.setattr(disk_benchmark, "MIN_FILE_BYTES", 4 << 20)
    try:
        speed = measure_disk(tmp_path, seconds=0.1)
    except ConfigError as error:
        pytest.skip(str(error))
    assert list(speed.iops) == [1, 8, 32]
    assert all(iops > 0 for iops in speed.iops.values())
    assert speed.file_bytes == 8 << 20
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_not_filled_further(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_benchmark, "MAX_SPACE_SHARE", 1e-9)
    with pytest.raises(StorageError, match="bytes free, expected"):
        measure_disk(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_query_waits_for_one_read_or_for_the_queue() -> None:
    speed = DiskSpeed({1: 10_000.0, 8: 50_000.0, 32: 100_000.0}, 1 << 30)
    assert speed.estimate_ms(0) == 0
    assert speed.estimate_ms(5) == pytest.approx(0.1)
    assert speed.estimate_ms(500) == pytest.approx(5.0)
