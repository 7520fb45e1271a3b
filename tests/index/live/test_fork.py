"""A writer and a forked child: only the process that opened it writes, and a child takes nothing from it."""

import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest
from sample_live_index import built, contents, expected, some, writer

from bidr.errors import ForkError, IndexFolderError
from bidr.index.live.live_reader import LiveIndex
from bidr.index.live.writer import LiveWriter

PATIENCE = 120


def in_child(act: Callable[[], object]) -> int:
    """Run something in a forked child; its id."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        signal.alarm(PATIENCE)  # a child that hangs is ended, and fails the test
        code = 1
        try:
            act()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def succeeds(child: int) -> None:
    assert os.waitpid(child, 0)[1] == 0


def waiting(act: Callable[[], object] = lambda: None) -> tuple[int, Callable[[], None]]:
    """A child that is there until it is let go."""
    gone, advise_dontneed = os.pipe()
    ready, say = os.pipe()

    def wait() -> None:
        os.close(advise_dontneed)
        act()
        os.write(say, b"x")
        os.read(gone, 1)

    child = in_child(wait)
    os.read(ready, 1)
    return child, lambda: os.close(advise_dontneed)


ACTS: dict[str, Callable[[LiveWriter], object]] = {
    "add": lambda live: live.add(*some([9])),
    "delete": lambda live: live.delete(["doc-1"]),
    "known": lambda live: live.find_existing(["doc-1"]),
    "flush": lambda live: live.flush(),
    "compact": lambda live: live.compact(),
}


@pytest.mark.parametrize("name", ACTS)
def test_a_forked_child_is_refused_and_the_parent_continues(tmp_path, name):
    index = built(tmp_path / "i")
    with writer(index) as live:
        live.add(*some([6]))

        def refused() -> None:
            with pytest.raises(ForkError, match="forked child"):
                ACTS[name](live)

        live._lock.acquire()  # as a thread of the parent may, in the moment of the fork
        child = in_child(refused)
        live._lock.release()
        succeeds(child)
        live.add(*some([7]))
    LiveIndex.open(index).verify()
    assert contents(index) == expected(range(8))


def closes(live: LiveWriter) -> None:
    live.close()


def forgets(live: LiveWriter) -> None:
    """What is left to the interpreter to clean up."""
    log = live._log
    live.__dict__.clear()
    del live, log
    gc.collect()


@pytest.mark.parametrize("ends", [closes, forgets])
def test_a_child_that_ends_leaves_the_parent_its_lock(tmp_path, ends):
    index = built(tmp_path / "i")
    with writer(index) as live:
        live.add(*some([6]))
        succeeds(in_child(lambda: ends(live)))
        with pytest.raises(IndexFolderError, match="another writer"):
            writer(index)
        live.add(*some([7]))
        assert contents(index) == expected(range(8))


def test_what_is_closed_is_free_though_a_child_lives_on(tmp_path):
    index = built(tmp_path / "i")
    live = writer(index)
    live.add(*some([6]))
    child, advise_dontneed = waiting()
    try:
        live.close()
        with writer(index) as other:
            other.add(*some([7]))
            assert contents(index) == expected(range(8))
    finally:
        advise_dontneed()
    succeeds(child)


def test_a_parent_that_is_killed_leaves_no_lock_to_its_child(tmp_path):
    index = built(tmp_path / "i")
    told, tell = os.pipe()

    def parent() -> None:
        live = writer(index)
        live.add(*some([6]))
        child, _ = waiting()
        os.write(tell, f"{child}\n".encode())
        signal.pause()

    owner = in_child(parent)
    child = int(os.read(told, 20))
    try:
        os.kill(owner, signal.SIGKILL)
        os.waitpid(owner, 0)
        with writer(index) as live:
            live.add(*some([7]))
        assert contents(index) == expected(range(8))
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Of OpenMP, which it keeps: one needs no others."""
    faiss: Any = import_module("faiss")
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(2)
    yield
    faiss.omp_set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("engine", ["scan", "lists"])
def test_a_child_that_opens_its_own_writer_compacts(tmp_path, engine):
    """Though the parent has used the threads of OpenMP, which a child has not."""
    index = built(tmp_path / "i", 3_000, engine=engine)
    with writer(index) as live:
        live.add(*some([3_000]))

    def compacts() -> None:
        with writer(index) as own:
            own.add(*some([3_001]))
            own.compact()

    succeeds(in_child(compacts))
    assert len(LiveIndex.open(index).latest().segments) == 1
    assert contents(index) == expected(range(3_002))
