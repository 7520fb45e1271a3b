"""A wrong byte is a typed error, never a wrong answer; what the disk refuses leaves what was there."""

import errno
import os
import shutil
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crash_simulator import Disk, recorded
from sample_live_index import DIM, built, clustered, contents, described, expected, some, writer

from bidr.errors import BidrError, IndexFolderError, StorageError
from bidr.index.documents.id_index import IdIndex
from bidr.index.live.live_reader import LiveIndex
from bidr.index.live.wal import LOG
from bidr.index.storage import checksums as checks
from bidr.index.vectors.mmap_guard import CHECK_INTERVAL
from bidr.search.searcher import Searcher
from bidr.search.types import QueryVectors


@pytest.fixture
def live_index(tmp_path) -> Path:
    """Two segments, one with deleted rows, and a log of three records."""
    index = built(tmp_path / "index", 3)
    with writer(index) as live:
        live.add(*some([3, 4]))
        live.delete(["doc-1"])
        live.flush()
        live.add(*some([5]))
        live.delete(["doc-3"])
        live.add(*some([6]))
    return index


@pytest.fixture(params=[checks.WHOLE_FILE_BYTES, 0], ids=["small", "by block"])
def asked_index(tmp_path, monkeypatch, request) -> Path:
    """Everything that an index can have: lists, words, texts and attributes of every kind, in two segments.

    Its files are small, and so compared whole; or taken for large ones, and compared block by block.
    """
    monkeypatch.setattr(checks, "WHOLE_FILE_BYTES", request.param)
    index = built(tmp_path / "index", 300, engine="lists", lexical="prepend", given=described(300))
    with writer(index) as live:
        live.add(described(308)[300:], some(range(300, 308))[1])
        live.delete(["doc-1", "doc-301"])
        live.flush()
    return index


def answered(index: Path) -> list | str:
    """What searching alone says; an error of another kind fails the test."""
    try:
        with closing(LiveIndex.open(index)) as opened:
            return asked(opened)
    except IndexFolderError as error:
        return str(error)


def asked(opened: LiveIndex) -> list:
    """What an index says, in every way there is to ask it."""
    questions = np.stack([clustered(1, DIM, seed=number)[0] for number in (5, 77, 150, 222, 303)])
    words = ["word5 word7", "title 150", "word3", "word222", "word303 word1"]
    queries = QueryVectors(questions, questions)
    filters: list[Any] = [None, {"whole": {"gte": 3}}, {"part": {"lt": 20.5}}, {"even": True}, {"name": "n3"}]
    filters += [{"tags": {"any": ["t0", "t2"]}}, {"not": {"name": {"gt": "n2"}}}]
    searcher, view, said = Searcher(opened, candidates=50), opened.latest(), list[Any]()
    for each in filters:
        found = searcher.search_vectors(queries, 8, filter=each, words=words, lexical=20, lexical_weight=0.5)
        said += [[answer._replace(document=None) for answer in one] for one in searcher.load_results(found)]
    said += [view.rows_of(view.places()).tolist(), contents(view)]
    for part in view.segments:
        documents, rows = part.reader.documents, np.arange(part.count)
        said += [documents.ids(rows), [documents.columns.get(row) for row in rows.tolist()]]
        with closing(IdIndex(part.reader.generation, part.reader.manifest, part.count)) as names:
            said.append([names.find(f"doc-{number}") for number in range(310)])
    return said


def test_no_flipped_byte_changes_an_answer(asked_index):
    """Of no file, however it is searched, and though nobody verifies."""
    before = answered(asked_index)
    assert isinstance(before, list)
    random, told = np.random.default_rng(0), set()
    files = sorted(asked_index.glob("0*/*"))
    for path in files:
        content = path.read_bytes()
        places = random.integers(0, len(content), 2)
        for offset in [len(content) - 1, *map(int, places)]:
            changed = bytearray(content)
            changed[offset] ^= 1 << int(random.integers(8))
            path.write_bytes(changed)
            found = answered(asked_index)
            assert isinstance(found, str) or found == before, (path, offset)
            if isinstance(found, str):
                assert (
                    path.name in found
                    or path.name.removesuffix(checks.CHECKSUM_FILE_SUFFIX) in found
                    or "vectors" in found
                )
                told.add(path)
        path.write_bytes(content)
    # What no question of these takes anything from may be damaged.
    assert {path.name for path in files} - {path.name for path in told} <= {LOG, "acknowledged"}
    assert (checks.WHOLE_FILE_BYTES == 0) == any(
        path.name == f"order.npy{checks.CHECKSUM_FILE_SUFFIX}" for path in files
    )
    assert answered(asked_index) == before


def test_an_index_without_block_checksums_is_searched_and_reports_it(asked_index, monkeypatch):
    before = answered(asked_index)
    with closing(LiveIndex.open(asked_index)) as opened:
        assert opened.describe()["unchecked"] == []
        large = {name for name in opened.describe()["disk_bytes"] if checks.CHECKED_BY_BLOCK.fullmatch(name)}
    if checks.WHOLE_FILE_BYTES:  # these have no checksums by block; were they large, that would be as it was
        monkeypatch.setattr(checks, "WHOLE_FILE_BYTES", 0)
        assert answered(asked_index) == before
        with closing(LiveIndex.open(asked_index)) as opened:
            assert set(opened.describe()["unchecked"]) == large


def test_a_file_that_is_cut_off_while_it_is_open_is_an_error(asked_index):
    """In a process of its own: it may be a signal. Once before anything was asked, once after all was."""
    code = "from test_damage import cut_off; import sys; cut_off(sys.argv[1])"
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    command, env = [sys.executable, "-c", code, str(asked_index)], {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, env=env, capture_output=True, check=False)
    assert done.returncode == 0, (done.returncode, done.stdout[-300:], done.stderr[-300:])
    refused = set(done.stdout.decode().split())
    assert refused <= {path.name for path in asked_index.glob("000001/*")}
    files = {"order.npy", "ids.blob", "documents.offsets.npy", "attributes.blob", "words.places.npy", "vectors.npy"}
    assert files <= refused


def cut_off(index: str) -> None:
    """Cut off each file of the first segment of an open index in turn; print which of them were missed."""
    before = answered(Path(index))
    for path in sorted(Path(index).glob("000001/*")):
        content = path.read_bytes()
        for warm in (False, True):
            with closing(LiveIndex.open(index)) as opened:
                if warm:
                    assert asked(opened) == before
                os.truncate(path, 0)
                time.sleep(2 * CHECK_INTERVAL)
                try:
                    assert asked(opened) == before, path
                except IndexFolderError as error:
                    print(path.name if path.name in str(error) else error, flush=True)
            path.write_bytes(content)


def outcome(index: Path) -> dict | str:
    """What an index says, or the error; an error of another kind fails the test."""
    try:
        found = contents(index)
        LiveIndex.open(index).verify()
        return found
    except IndexFolderError as error:
        return str(error)


def opened(index: Path) -> dict | str:
    """The same of opening alone, which reads manifests, deleted rows and the log whole."""
    try:
        return contents(index)
    except IndexFolderError as error:
        return str(error)


def test_every_flipped_byte_is_found(live_index):
    current = (live_index / "CURRENT").read_text().split()[0]
    whole = contents(live_index)
    small = [live_index / "CURRENT", *sorted((live_index / current).iterdir())]
    small += [path / "manifest.json" for path in sorted(live_index.glob("0*")) if path.name != current]
    assert {path.name for path in small} == {"CURRENT", "manifest.json", LOG, "acknowledged", "000001.deleted"}
    flips = 0
    for path in small:
        step = 1 if path.name != "manifest.json" else 7
        flips += check_flips(live_index, path, step, whole)
    for path in sorted(live_index.glob("0*/*")):
        if path not in small:
            flips += check_flips(live_index, path, max(1, path.stat().st_size // 12), None)
    assert flips > 500
    assert outcome(live_index) == whole


def check_flips(index: Path, path: Path, step: int, whole: dict | None) -> int:
    content = path.read_bytes()
    for offset in range(0, len(content), step):
        changed = bytearray(content)
        changed[offset] ^= 0x10
        path.write_bytes(changed)
        assert isinstance(outcome(index), str), (path, offset)
        found = opened(index) if whole else ""
        assert isinstance(found, str) or found == whole, (path, offset)
    path.write_bytes(content)
    return len(range(0, len(content), step))


def test_a_log_that_lost_its_end_is_found(live_index):
    current = (live_index / "CURRENT").read_text().split()[0]
    log = live_index / current / LOG
    content = log.read_bytes()
    for size in range(0, len(content), 5):
        log.write_bytes(content[:size])
        assert isinstance(opened(live_index), str), size
    log.write_bytes(content)
    before = contents(live_index)
    for rest in (b"\0", b"\0" * 4096, b"\x05\0\0\0 not a record", content[60:200]):
        log.write_bytes(content + rest)
        assert contents(live_index) == before  # what was never acknowledged is left out
        with pytest.raises(IndexFolderError, match="not a complete record"):
            LiveIndex.open(live_index).verify()
    with writer(live_index) as live:
        live.add(*some([9]))
    assert outcome(live_index) == {**before, **expected([9])}


@pytest.mark.parametrize("name", [".work.done", ".compact.done"])
def test_work_that_was_done_is_removed_by_the_next_writer(live_index, name):
    """Killed while it was removed: its files are those of the index, and would stay on the disk after them."""
    (live_index / name).mkdir()
    (live_index / name / "vectors.npy").write_bytes(b"x" * 100)
    before = contents(live_index)
    with writer(live_index) as live:
        live.flush()
    assert not (live_index / name).exists()
    assert contents(live_index) == before


def test_leftovers_are_harmless(live_index):
    before = contents(live_index)
    current = (live_index / "CURRENT").read_text().split()[0]
    for name in (".000009.1.new", "000009"):
        shutil.copytree(live_index / current, live_index / name)
    (live_index / ".CURRENT.1.new").write_text("rubbish")
    assert outcome(live_index) == before
    with writer(live_index) as live:
        live.compact()
    assert outcome(live_index) == before
    assert len([path for path in live_index.iterdir() if path.name.startswith("0")]) == 2


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, *(pytest.param(each, marks=pytest.mark.slow) for each in (errno.EROFS, errno.EIO))]
)
def test_after_any_disk_error_the_last_state_is_served(tmp_path, number):
    """Every call of add, delete, flush and compact fails once; the writer goes on with the next."""
    wanted, refused, index = expected(range(3)), 0, built(tmp_path / "index", 3)
    live = writer(index)
    reader = LiveIndex.open(index)
    acts = {
        "add": lambda: live.add(*some([3, 0], 1)),
        "delete": lambda: live.delete(["doc-2"], missing_ok=True),
        "flush": live.flush,
        "compact": live.compact,
    }
    after = {
        "add": {**wanted, **expected([3, 0], 1)},
        "delete": {name: value for name, value in wanted.items() if name != "doc-2"},
    }
    for name, act in acts.items():
        for fails_at in range(500):
            calls = iter(range(10**6))

            def refuse(call, calls=calls, fails_at=fails_at):
                if next(calls) == fails_at:
                    raise OSError(number, os.strerror(number))

            failed = False
            with recorded(Disk(index), before=refuse):
                try:
                    act()
                except StorageError:
                    failed = True
            refused += failed
            found = contents(reader.refresh_now())
            assert found == contents(index)
            assert found in ([wanted, after.get(name, wanted)] if failed else [after.get(name, wanted)])
            live.add(*some([0], 0))  # back to where it was
            live.add(*some([2]))
            live.delete(["doc-3"], missing_ok=True)
            assert contents(index) == wanted
            if next(calls) <= fails_at:
                break
    assert refused > 60
    live.close()


def test_a_reader_continues_when_the_newest_state_is_damaged(live_index):
    reader = LiveIndex.open(live_index)
    before = contents(reader.latest())
    (live_index / "CURRENT").write_text("rubbish")
    with pytest.raises(BidrError):
        reader.refresh_now()
    reader._refreshed = 0
    assert contents(reader.latest()) == before
    assert "CURRENT" in str(reader.refresh_error)
