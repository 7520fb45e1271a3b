"""Who writes an index next: nobody is kept from it by others who write all the time, or by those who were killed."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from made_index import small_index

from bidr.errors import IndexFolderError
from bidr.index import generation
from bidr.index.generation import LOCK, only_writer, wanted

WAITING = """
import sys
from pathlib import Path
from bidr.index.generation import only_writer
with only_writer(Path(sys.argv[1]), 60):
    print("has it", flush=True)
"""


def until(holds, seconds=20):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_whoever_waits_comes_before_those_who_take_it_again(tmp_path, monkeypatch):
    """Two write again and again, and let go of the index for a moment only; a build has its turn after theirs."""
    monkeypatch.setattr(generation, "WAIT", 10.0)
    turns, stop = [], threading.Event()

    def steadily():
        while not stop.is_set():
            with only_writer(tmp_path, 20):
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
    with only_writer(tmp_path):
        assert not wanted(tmp_path)
        waiting = subprocess.Popen([sys.executable, "-c", WAITING, str(tmp_path)], stdout=subprocess.PIPE)
        until(lambda: wanted(tmp_path))
        os.kill(waiting.pid, signal.SIGKILL)
        waiting.communicate()
        assert not wanted(tmp_path)
        waiting = subprocess.Popen([sys.executable, "-c", WAITING, str(tmp_path)], stdout=subprocess.PIPE)
        until(lambda: wanted(tmp_path))
        with pytest.raises(IndexFolderError, match="another process is writing"), only_writer(tmp_path):
            pass
    # It is free, and kept for the one that waits.
    assert waiting.communicate(timeout=20)[0] == b"has it\n"
    with only_writer(tmp_path):
        pass


def test_waiting_is_told_and_ends(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(generation, "SAID_AFTER", 0.05)
    started = time.monotonic()
    with only_writer(tmp_path), pytest.raises(IndexFolderError, match="another process"), only_writer(tmp_path, 0.3):
        pass
    assert 0.3 <= time.monotonic() - started < 10
    assert "waiting for it, up to 0 s" in capsys.readouterr().err
    assert (tmp_path / LOCK).exists()
