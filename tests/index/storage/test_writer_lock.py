"""Who writes an index next: nobody is kept from it by others who write all the time, or by those who were killed."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from sample_index import clustered, random_codebooks, small_index

import bidr
from bidr.errors import IndexFolderError
from bidr.index.builder.build import build_index
from bidr.index.live import writer as live_writer
from bidr.index.storage import commit as generation
from bidr.index.storage.commit import LOCK_FILE, hold_writer_lock, is_writer_waiting

WAITING = """
import sys
from pathlib import Path
from bidr.index.storage.commit import hold_writer_lock
with hold_writer_lock(Path(sys.argv[1]), 240):
    print("has it", flush=True)
"""


def until(holds, seconds=120):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_whoever_waits_comes_before_those_who_take_it_again(tmp_path, monkeypatch):
    """Two write again and again, and let go of the index for a moment only; a build has its turn after theirs."""
    monkeypatch.setattr(generation, "WRITER_WAIT_SECONDS", 120.0)
    turns, stop = [], threading.Event()
    small_index(tmp_path / "first")  # what is loaded once takes no turns

    def steadily():
        while not stop.is_set():
            with hold_writer_lock(tmp_path, 120):
                turns.append("again")
                time.sleep(0.2)

    others = [threading.Thread(target=steadily) for _ in range(2)]
    for other in others:
        other.start()
    until(lambda: len(turns) > 2)
    before = len(turns)
    try:
        small_index(tmp_path)
    finally:
        stop.set()
        for other in others:
            other.join()
    assert len(turns) - before < 12, "a build waited for more turns than there are others"


def test_a_writer_sees_that_it_is_wanted_and_by_whom_lives(tmp_path):
    with hold_writer_lock(tmp_path):
        assert not is_writer_waiting(tmp_path)
        waiting = subprocess.Popen([sys.executable, "-c", WAITING, str(tmp_path)], stdout=subprocess.PIPE)
        until(lambda: is_writer_waiting(tmp_path))
        os.kill(waiting.pid, signal.SIGKILL)
        waiting.communicate()
        assert not is_writer_waiting(tmp_path)
        waiting = subprocess.Popen([sys.executable, "-c", WAITING, str(tmp_path)], stdout=subprocess.PIPE)
        until(lambda: is_writer_waiting(tmp_path))
        with pytest.raises(IndexFolderError, match="another writer has this index"), hold_writer_lock(tmp_path):
            pass
    # It is free, and kept for the one that waits.
    assert waiting.communicate(timeout=120)[0] == b"has it\n"
    with hold_writer_lock(tmp_path):
        pass


def test_waiting_for_the_lock_is_reported_and_times_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(generation, "NOTICE_AFTER_SECONDS", 0.05)
    started = time.monotonic()
    with (
        hold_writer_lock(tmp_path),
        pytest.raises(IndexFolderError, match="another writer"),
        hold_writer_lock(tmp_path, 0.3),
    ):
        pass
    assert 0.3 <= time.monotonic() - started < 60
    assert "waiting for it, up to 0 s" in capsys.readouterr().err
    assert (tmp_path / LOCK_FILE).exists()


def built(folder, codebooks):
    vectors = clustered(60, 16)
    return build_index(folder, codebooks=codebooks, codes=codebooks.encode(vectors), vectors=vectors, engine="scan")


def test_a_writer_that_waited_for_a_build_uses_its_codebooks(tmp_path, monkeypatch):
    first, then = (random_codebooks(16, 4, seed=seed) for seed in (1, 2))
    built(tmp_path, first)

    def build_first(folder, wait):
        built(folder, then)
        return hold_writer_lock(folder, wait)

    monkeypatch.setattr(live_writer, "hold_writer_lock", build_first)
    vectors = clustered(3, 16, seed=9)
    assert (first.encode(vectors) != then.encode(vectors)).any()
    with bidr.open_writer(tmp_path) as writer:
        writer.add([bidr.Document(f"new-{row}", "", "") for row in range(3)], vectors)
        np.testing.assert_array_equal(writer.view.memtable.codes, then.encode(vectors))


def test_who_waited_for_a_build_with_a_model_is_refused(tmp_path, monkeypatch):
    built(tmp_path, random_codebooks(16, 4))

    def build_first(folder, wait):
        small_index(folder)
        return hold_writer_lock(folder, wait)

    monkeypatch.setattr(live_writer, "hold_writer_lock", build_first)
    with pytest.raises(IndexFolderError, match="built anew with a model"):
        bidr.open_writer(tmp_path)
    with hold_writer_lock(tmp_path):
        pass
