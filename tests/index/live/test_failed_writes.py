"""What a failed write or flush of the log refused: nobody sees it, and that log is never trusted again."""

import errno
import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from sample_live_index import built, contents, expected, some, writer

from bidr.errors import IndexFolderError, StorageError
from bidr.index.live.live_reader import LiveIndex
from bidr.index.live.snapshot import write_snapshot
from bidr.index.live.wal import LOG, WalReader, WalWriter, pack_mark, pack_record, write_log
from bidr.index.storage import commit as generation
from bidr.index.storage.manifest import read_current
from bidr.utils.files import write_atomically

Fails = Callable[[str], bool]


def refuse(monkeypatch: pytest.MonkeyPatch, call: str, fails: Fails, number: int = errno.EIO) -> None:
    """Make a call of `os` fail where the file that it is for is one of those."""
    real = getattr(os, call)

    def made(handle: int, *given: object) -> object:
        if fails(os.readlink(f"/proc/self/fd/{handle}")):
            raise OSError(number, os.strerror(number))
        return real(handle, *given)

    monkeypatch.setattr(os, call, made)


def is_log(path: str) -> bool:
    return path.endswith(f"/{LOG}")


def log_of(index: Path) -> Path:
    return index / read_current(index)[0] / LOG


def seen(index: Path, reader: LiveIndex, copy: Path) -> list[dict]:
    """What everybody sees who can look."""
    write_snapshot(index, copy)
    return [contents(reader.refresh_now()), contents(index), contents(copy)]


@pytest.mark.parametrize("calls", [("fsync",), ("write",), ("pwrite",), ("fsync", "pwrite")], ids=" and ".join)
@pytest.mark.parametrize("recovers", [True, False], ids=["once", "for ever"])
def test_refused_commits_are_not_visible(tmp_path, monkeypatch, calls, recovers):
    index = built(tmp_path / "i")
    reader = LiveIndex.open(index)
    live = writer(index)
    live.add(*some([6]))
    with monkeypatch.context() as patch:
        left = [1]

        def fails(path: str) -> bool:
            left[0] -= path.startswith(str(index))
            return path.startswith(str(index)) and (left[0] >= 0 or not recovers)

        for call in calls:
            refuse(patch, call, fails)
        with pytest.raises(StorageError, match="input/output error"):
            live.add(*some([7]))
        assert seen(index, reader, tmp_path / "refused") == [expected(range(7))] * 3
        if not recovers:
            for _ in range(2):
                with pytest.raises(StorageError, match="input/output error"):
                    live.add(*some([8]))
            assert contents(live.view) == contents(reader.refresh_now()) == expected(range(7))
    if len(calls) == 1 or recovers:  # else the log could not be sealed, and it is open who has it next
        live.close()
        assert seen(index, reader, tmp_path / "closed") == [expected(range(7))] * 3
        live = writer(index)
    live.add(*some([9]))
    live.close()
    LiveIndex.open(index).verify()
    assert seen(index, reader, tmp_path / "after") == [{**expected(range(7)), **expected([9])}] * 3


def test_commits_are_not_visible_before_the_fsync(tmp_path, monkeypatch):
    """A flush may take seconds, and fail then."""
    index = built(tmp_path / "i")
    reader, shown = LiveIndex.open(index), []
    with writer(index) as live:
        live.add(*some([6]))

        def look(path: str) -> bool:
            if is_log(path):
                shown.extend([contents(reader.refresh_now()), contents(index)])
            return False

        refuse(monkeypatch, "fsync", look)
        live.add(*some([7]))
    assert shown == [expected(range(7))] * 2
    assert contents(reader.refresh_now()) == expected(range(8))


@pytest.mark.parametrize("opened_again", [False, True])
def test_a_log_whose_flush_failed_is_not_appended_to(tmp_path, monkeypatch, opened_again):
    """Though its pages are there, and the next flush of it succeeds."""
    index = built(tmp_path / "i")
    live = writer(index)
    live.add(*some([6]))
    log = log_of(index)
    with monkeypatch.context() as patch:
        refuse(patch, "fsync", lambda path: path.startswith(str(index)))
        with pytest.raises(StorageError):
            live.add(*some([7]))
    if opened_again:
        live.close()
        live = writer(index)
    live.add(*some([8]))
    assert log_of(index) != log
    assert contents(index) == {**expected(range(7)), **expected([8])}
    live.close()


def test_records_that_nobody_acknowledged_are_written_anew(tmp_path):
    """A writer was killed before its flush was over: they are read from the page cache, and may not be on the disk."""
    index = built(tmp_path / "i")
    with writer(index) as live:
        live.add(*some([6]))
        end = log_of(index).stat().st_size
        live.add(*some([7]))
    log = log_of(index)
    log.with_name("acknowledged").write_bytes(pack_mark(end))
    assert contents(index) == expected(range(8))
    with writer(index) as live:
        assert contents(live.view) == expected(range(8))
        live.add(*some([8]))
        assert log_of(index) != log
        reader = WalReader(log_of(index).parent)
        assert len(reader.read()) == 1
        reader.close()
    assert contents(index) == expected(range(9))


def test_a_sealed_log_ends_at_its_mark(tmp_path):
    index = built(tmp_path / "i")
    with writer(index) as live:
        live.add(*some([6]))
    log = log_of(index)
    end = log.stat().st_size
    with log.open("ab") as out:
        out.write(pack_record(b"refused", 0)[0])
    log.with_name("acknowledged").write_bytes(pack_mark(end, sealed=True))
    LiveIndex.open(index).verify()
    assert contents(index) == expected(range(7))
    with writer(index) as live:
        live.add(*some([7]))
        assert log_of(index) != log
    assert contents(index) == expected(range(8))


def test_a_state_that_may_be_in_force_is_not_removed(tmp_path, monkeypatch):
    """CURRENT names it, but that was not flushed, and cannot be read just now."""
    index = built(tmp_path / "i")
    live = writer(index)
    live.add(*some([6]))
    with monkeypatch.context() as patch:

        def put(path: Path, content: bytes) -> None:
            write_atomically(path, content)
            raise StorageError("the disk reports an input/output error")

        patch.setattr(generation, "write_atomically", put)
        patch.setattr(generation, "get_current_name", lambda folder: None)
        with pytest.raises(StorageError):
            live.flush()
    assert contents(index) == contents(live.view) == expected(range(7))
    live.add(*some([7]))
    live.close()
    LiveIndex.open(index).verify()
    assert contents(index) == expected(range(8))


@pytest.mark.parametrize("copy", [True, False])
def test_a_snapshot_that_could_not_be_flushed_leaves_nothing(tmp_path, monkeypatch, copy):
    """Every fsync of it fails once: of a file, of a folder, of the folder that it stands in."""
    index, out = built(tmp_path / "i"), tmp_path / "copy"
    done = False
    for fails_at in range(100):
        with monkeypatch.context() as patch:
            left = [fails_at]

            def fails(path: str, left: list[int] = left) -> bool:
                left[0] -= 1
                return left[0] == -1

            refuse(patch, "fsync", fails)
            try:
                write_snapshot(index, out, copy=copy)
                done = True
                break
            except StorageError:
                assert [path.name for path in tmp_path.iterdir()] == ["i"]
    assert done
    assert fails_at > 3
    assert contents(out) == expected(range(6))


@pytest.mark.parametrize("opener", [WalReader, lambda state: WalWriter(state, 0, 0)])
def test_a_log_that_cannot_be_opened_leaves_no_file_open(tmp_path, opener):
    write_log(tmp_path, tmp_path.name)
    (tmp_path / "acknowledged").unlink()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises((IndexFolderError, OSError)):
            opener(tmp_path)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
