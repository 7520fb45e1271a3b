"""Files of names that others can predict: whatever is there under such a name, nothing blocks or else changes."""

import os
import signal
import socket
import stat
from contextlib import contextmanager

import pytest
from sample_server import made

from bidr.errors import BidrError, IndexFolderError, StorageError
from bidr.index.builder.journal import LOCK_FILE as WORK_LOCK
from bidr.index.builder.journal import WORK_FOLDER, open_work_folder
from bidr.index.live.live_reader import LiveIndex
from bidr.index.live.wal import ACKNOWLEDGED, LOG, WalReader, WalWriter, write_log
from bidr.index.storage.commit import LOCK_FILE, NEXT_LOCK_FILE, hold_writer_lock, is_writer_waiting
from bidr.index.storage.manifest import CURRENT, MANIFEST, FileEntry, check_sizes
from bidr.search.evaluation import EVALUATED, load_recall_curve
from bidr.server import process as runtime
from bidr.server.encoding.onnx_cache import _hold_lock
from bidr.utils.files import open_lock, open_regular, read_regular, write_atomically

LINKS, OTHERS = ("link to a file", "link to nothing"), ("FIFO", "socket", "folder")


@pytest.fixture(autouse=True)
def within_seconds():
    """What blocks is interrupted, and fails."""

    def fail(*_):
        raise AssertionError("blocked")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@contextmanager
def planted(path, kind, elsewhere):
    """Something else under a name; afterwards what lies elsewhere is as it was."""
    path.unlink(missing_ok=True)
    elsewhere.mkdir(exist_ok=True)
    precious = elsewhere / "precious"
    precious.write_text("precious")
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listening:
            os.chdir(path.parent)  # the path of a socket may have 107 characters
            listening.bind(path.name)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(precious if kind == "link to a file" else elsewhere / "new")
    yield
    assert (precious.read_text(), os.listdir(elsewhere)) == ("precious", ["precious"])


@pytest.mark.parametrize("kind", LINKS + OTHERS)
def test_nothing_but_a_regular_file_is_opened(tmp_path, kind, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "name"
    with planted(path, kind, tmp_path / "elsewhere"):
        for work in (
            lambda: open_lock(path),
            lambda: open_regular(path, os.O_RDONLY),
            lambda: open_regular(path, os.O_WRONLY | os.O_APPEND),
        ):
            with pytest.raises(StorageError, match=r"name: a.*expected a regular file; remove it"):
                work()
        if kind in OTHERS:
            with pytest.raises(OSError, match="expected a regular file"):
                read_regular(path)


def test_a_regular_file_is_opened_created_and_locked_again(tmp_path):
    for _ in range(2):
        with open_lock(tmp_path / "lock") as lock:
            assert not os.get_inheritable(lock.fileno())
    (tmp_path / "link").symlink_to(tmp_path / "lock")
    assert read_regular(tmp_path / "link") == b""


@pytest.mark.parametrize("kind", [*LINKS, "FIFO", "socket"])
def test_a_file_is_replaced_although_its_temporary_name_exists(tmp_path, kind, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "state.json"
    with planted(tmp_path / f".state.json.{os.getpid()}.new", kind, tmp_path / "elsewhere"):
        write_atomically(path, b"new")
    assert (path.read_bytes(), path.is_symlink()) == (b"new", False)
    assert sorted(os.listdir(tmp_path)) == ["elsewhere", "state.json"]


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    return made(tmp_path_factory.mktemp("files") / "index")


@pytest.mark.parametrize("kind", LINKS + OTHERS)
@pytest.mark.parametrize("name", [LOCK_FILE, NEXT_LOCK_FILE])
def test_a_lock_of_an_index_is_a_file_or_an_error(tmp_path, name, kind, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "index"
    folder.mkdir()
    with planted(folder / name, kind, tmp_path / "elsewhere"):
        with pytest.raises(StorageError, match=f"{name}: a"), hold_writer_lock(folder):
            pass
        assert not is_writer_waiting(folder)


@pytest.mark.parametrize("kind", LINKS + OTHERS)
def test_so_is_that_of_a_build_and_of_what_the_server_exports(tmp_path, kind, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / WORK_FOLDER).mkdir()
    lock, exports, elsewhere = tmp_path / WORK_FOLDER / WORK_LOCK, tmp_path / ".exports", tmp_path / "elsewhere"
    with (
        planted(lock, kind, elsewhere),
        pytest.raises(StorageError, match=f"{WORK_LOCK}: a"),
        open_work_folder(tmp_path),
    ):
        pass
    with planted(exports, kind, elsewhere), pytest.raises(StorageError, match="exports: a"), _hold_lock(exports):
        pass


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("name", [LOG, ACKNOWLEDGED])
def test_a_log_is_a_file_or_an_error(tmp_path, name, kind, monkeypatch):
    monkeypatch.chdir(tmp_path)
    state = tmp_path / "000001"
    state.mkdir()
    write_log(state, state.name)
    with planted(state / name, kind, tmp_path / "elsewhere"):
        with pytest.raises(IndexFolderError, match=f"{name}: cannot be read .*expected a regular file"):
            WalReader(state)
        with pytest.raises(BidrError, match=f"{name}: a"):
            WalWriter(state, 0, 0)


def test_a_log_is_not_written_elsewhere(tmp_path):
    state = tmp_path / "000001"
    state.mkdir()
    write_log(state, state.name)
    with planted(state / LOG, "link to a file", tmp_path / "elsewhere"), pytest.raises(BidrError, match="symbolic"):
        WalWriter(state, 0, 0).append([b"content"])


@pytest.mark.parametrize("name", [CURRENT, MANIFEST, "codes.npy", "vectors.npy", "ids.blob"])
def test_an_index_with_a_fifo_for_a_file_is_refused(tmp_path, name):
    folder = made(tmp_path / "index")
    generation = folder / (folder / CURRENT).read_text()[:6]
    path = folder / name if name == CURRENT else generation / name
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(IndexFolderError, match=name):
        LiveIndex.open(folder)


def test_an_empty_file_is_no_fifo(tmp_path):
    """Both have 0 bytes."""
    os.mkfifo(tmp_path / "words.blob")
    with pytest.raises(IndexFolderError, match=r"words\.blob: not a regular file"):
        check_sizes(tmp_path, {"words.blob": FileEntry(0, "0" * 32)})


def test_figures_that_are_a_fifo_are_none(index):
    os.mkfifo(index / EVALUATED)
    assert load_recall_curve(index, None) is None
    os.unlink(index / EVALUATED)


@pytest.fixture
def memory(tmp_path, monkeypatch):
    """A folder that every user may write, in the place of /dev/shm."""
    folder = tmp_path / "shm"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setattr(runtime, "SHARED_MEMORY", folder)
    return folder


@pytest.mark.parametrize("kind", LINKS + OTHERS)
@pytest.mark.parametrize(
    "name", [f".{runtime.PREFIX}{os.getuid()}.lock", f"{runtime.PREFIX}x", f"{runtime.PREFIX}x/{runtime.LOCK}"]
)
def test_a_server_starts_whatever_others_put_into_shared_memory(memory, tmp_path, name, kind, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (memory / name).parent.mkdir(exist_ok=True)
    with planted(memory / name, kind, tmp_path / "elsewhere"), runtime.create_runtime_dir() as folder:
        about = folder.stat()
        assert (stat.S_IMODE(about.st_mode), about.st_uid) == (0o700, os.geteuid())


def test_a_link_to_a_folder_is_not_followed(memory, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").touch()
    (memory / f"{runtime.PREFIX}x").symlink_to(elsewhere)
    with runtime.create_runtime_dir():
        pass
    assert os.listdir(elsewhere) == ["precious"]


def test_folders_that_others_may_write_are_not_touched(memory):
    left, open_to_all, kept = (memory / f"{runtime.PREFIX}{name}" for name in ("left", "open", "running"))
    for folder in (left, open_to_all, kept):
        folder.mkdir(mode=0o700)
    open_to_all.chmod(0o777)
    with open_lock(kept / runtime.LOCK) as lock:
        runtime.fcntl.flock(lock, runtime.fcntl.LOCK_EX)
        with runtime.create_runtime_dir():
            assert not left.exists()
            assert open_to_all.exists()
            assert kept.exists()
    assert sorted(os.listdir(memory)) == [open_to_all.name, kept.name]
