"""The writer: what becomes of jobs when one of them, or the disk, fails. And the folder that processes share."""

import threading
import time
from contextlib import ExitStack
from itertools import count

import numpy as np
import pytest
from sample_server import made
from sample_text_index import words_index

from bidr.data.types import Document
from bidr.errors import DataError, StorageError
from bidr.index.live.live_reader import LiveIndex
from bidr.index.storage import commit as generation
from bidr.index.storage.commit import hold_writer_lock
from bidr.server import process as runtime
from bidr.server import write_batcher as writing_module
from bidr.server.config import ServerConfig
from bidr.server.errors import InternalError
from bidr.server.framing import decode_error, encode_error
from bidr.server.worker import make_encoder
from bidr.server.write_batcher import AddJob, DeleteJob, WriteBatcher
from bidr.server.writer_process import WriteServer


def jobs(count):
    return [AddJob([Document(f"d{number}", "", "")], np.ones((1, 2), np.float32), True) for number in range(count)]


@pytest.mark.parametrize(("error", "tries"), [(StorageError("disk full"), 1), (DataError("one is wrong"), 4)])
def test_additions_are_tried_one_by_one_only_where_that_can_help(tmp_path, monkeypatch, error, tries):
    writing, tried = WriteBatcher(tmp_path, None, lambda model: None), []

    def failing(group):
        tried.append(group)
        raise error

    monkeypatch.setattr(writing, "_commit", failing)
    assert writing.apply(jobs(3)) == [error] * 3
    assert len(tried) == tries


def test_steady_writing_keeps_no_build_from_the_index(tmp_path, monkeypatch):
    """Jobs come without a pause, so the writer is never idle; it lets go because the build waits."""
    monkeypatch.setattr(generation, "WRITER_WAIT_SECONDS", 10.0)
    index = made(tmp_path / "index")
    writing, stop, outcomes = WriteBatcher(index, None, lambda model: None), threading.Event(), []

    def steadily():
        for number in count():
            if stop.is_set():
                return writing.release()
            rows = np.ones((1, 16), np.float32)
            outcomes.extend(writing.apply([AddJob([Document(f"d{number}", "", "")], rows, True)]))

    adding = threading.Thread(target=steadily)
    adding.start()
    until(lambda: len(outcomes) > 3)
    try:
        made(index, seed=3)
        until(lambda: "added" in outcomes[-1])
    finally:
        stop.set()
        adding.join()
    assert LiveIndex.open(index).latest().count > 60
    failed = [outcome for outcome in outcomes if "added" not in outcome]
    assert all("another writer has this index" in str(outcome) for outcome in failed)


def test_jobs_wait_commit_for_another_writer(tmp_path, monkeypatch):
    """Not each of them in its turn."""
    index = made(tmp_path / "index")
    writing = WriteBatcher(index, None, lambda model: None)
    monkeypatch.setattr(writing_module, "LOCK_TIMEOUT", 1.0)
    started = time.monotonic()
    with hold_writer_lock(index):
        outcomes = writing.apply([DeleteJob([f"doc-{number}"], True) for number in range(20)])
    assert len(outcomes) == 20
    assert all("another writer has this index" in str(outcome) for outcome in outcomes)
    assert time.monotonic() - started < 10
    monkeypatch.setattr(writing_module, "LOCK_TIMEOUT", 60.0)
    with ExitStack() as held:
        held.enter_context(hold_writer_lock(index))
        threading.Timer(0.2, held.close).start()
        assert writing.apply([DeleteJob(["doc-1"], True)])[0]["deleted"] == 1
    writing.release()


def until(holds, seconds=120):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_what_was_deleted_is_not_there_by_id(tmp_path):
    index = made(tmp_path / "index")
    writing = WriteBatcher(index, None, lambda model: None)
    first, second = writing.apply([DeleteJob(["doc-40", "doc-3"], False), DeleteJob(["doc-41", "doc-40"], True)])
    assert (first["deleted"], second["deleted"]) == (2, 1)
    assert writing.apply([DeleteJob(["doc-3"], False)])[0].status == 404
    writing.release()
    view = LiveIndex.open(index).latest()
    assert view.find_rows(["doc-3", "doc-4", "doc-40", "doc-41", "doc-42"]) == {"doc-4": 4, "doc-42": 42}


def test_hundreds_added_by_text_are_looked_at_for_drift(tmp_path):
    """Documents of the index, which have vectors, are then encoded again beside those that were added."""
    index = words_index(tmp_path)
    settings = ServerConfig(index=index)
    writing = WriteBatcher(index, None, lambda model: make_encoder(settings, model))
    new = [Document(f"new-{number}", "", f"the boat sings below the piano {number}") for number in range(300)]
    assert [found["added"] for found in writing.apply([AddJob(new, None, True)])] == [300]
    assert writing.apply([AddJob(new[:2], None, True)])[0]["replaced"] == 2
    writing.release()


def test_a_fault_of_the_writer_is_the_servers_fault(tmp_path, monkeypatch, capfd):
    writing = WriteBatcher(tmp_path, None, lambda model: None)
    monkeypatch.setattr(writing, "apply", lambda given: 1 / 0)
    (outcome,) = WriteServer(writing, 8, 1.0)._apply(jobs(1))
    told = decode_error(encode_error(outcome))  # as the worker gets it
    assert (type(told), told.status) == (InternalError, 500)
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_a_server_that_starts_does_not_remove_the_folder_of_another_that_starts(tmp_path, monkeypatch):
    """It would between the making of a folder and its lock."""
    monkeypatch.setattr(runtime, "SHARED_MEMORY", tmp_path)
    real, others = runtime.tempfile.mkdtemp, []

    def start():
        with runtime.create_runtime_dir():
            pass

    def meanwhile(**given):
        made = real(**given)
        if not others:
            others.append(threading.Thread(target=start))
            others[0].start()
            others[0].join(0.2)
        return made

    monkeypatch.setattr(runtime.tempfile, "mkdtemp", meanwhile)
    with runtime.create_runtime_dir() as folder:
        others[0].join(60)
        assert not others[0].is_alive()
        assert (folder / runtime.LOCK).exists()
    left = tmp_path / f"{runtime.PREFIX}left"
    left.mkdir()
    start()
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
