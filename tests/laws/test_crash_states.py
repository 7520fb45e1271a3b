"""Whatever moment the power fails in: the old state or the new one, whole, and nothing acknowledged is missing."""

import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from crash_simulator import Disk, File, Killed, Tree, put, recorded
from sample_live_index import BOOKS, built, contents, expected, some, writer

from bidr.errors import BidrError, StorageError
from bidr.index.live import wal as log_module
from bidr.index.live import writer as writer_module
from bidr.index.live.live_reader import LiveIndex
from bidr.index.live.wal import WalReader, WalWriter
from bidr.index.live.wal_record import WalRecord, encode_record
from bidr.index.live.writer import LiveWriter
from bidr.index.storage import commit as generation_module
from bidr.index.storage.commit import GenerationWriter
from bidr.index.storage.live_state import IndexState, render_state
from bidr.index.storage.manifest import CURRENT, hash_bytes, render_manifest
from bidr.utils.files import write_all

Step = tuple[Callable[[], object], dict]


class Found(Exception):
    """A planted fault showed."""


class Trial:
    """Runs a writer's steps on a disk that may crash, and opens every state that a crash could have left."""

    def __init__(self, folder: Path, keep=None) -> None:
        self.stop, self.every, self.met = False, 1, 0
        self.folder, self.index = folder, folder / "index"
        self.disk, self.seen, self.bad, self.opened = Disk(self.index, keep or (lambda call, node: True)), set(), [], 0
        self.room = TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        self.known: dict[int, dict | str | None] = {}

    def run(self, before: dict, steps: list[Step]) -> None:
        for act, after in steps:
            allowed = [before, after]
            with recorded(self.disk, after=lambda allowed=allowed: self.look(allowed)):
                act()
            before = after
            self.look([after])

    def look(self, allowed: list[dict]) -> None:
        for tree in self.states():
            key = hash(frozenset(tree.items()))  # whole states would take a gigabyte
            if key not in self.known:
                self.met += 1
                self.known[key] = None if self.met % self.every else self.open(tree)
            if self.known[key] not in [None, *allowed]:
                self.bad.append(self.known[key])
                if self.stop:
                    raise Found

    def states(self) -> Iterator[Tree]:
        return self.disk.states()

    def open(self, tree: Tree) -> dict | str:
        with pytest.MonkeyPatch.context() as patch:
            for name, real in REAL.items():
                patch.setattr(os, name, real)
            patch.setattr(os, "fsync", lambda handle: None)  # of the copies nobody pulls the plug
            self.opened += 1
            where = put(tree, Path(self.room.name) / f"{self.opened}")
            try:
                found = contents(where)
                if self.opened % 10 == 0:  # whatever was left, the next writer gets on with it
                    with writer(where) as live:
                        live.add(*some([77]))
                        live.compact()
                    assert contents(where) == {**found, **expected([77])}
                return found
            except BidrError as error:
                return str(error)


REAL = {
    name: getattr(os, name) for name in ("open", "write", "pwrite", "fsync", "rename", "replace", "unlink", "mkdir")
}
REAL.update({name: getattr(os, name) for name in ("rmdir", "close")})


EVEN = ("doc-0", "doc-2", "doc-4")


def changed(before: dict, prices: dict) -> dict:
    """What an index holds after prices were set, or removed."""
    after = dict(before)
    for name, price in prices.items():
        title, text, attributes, vector = before[name]
        new = {key: value for key, value in attributes.items() if key != "price"}
        after[name] = (title, text, new if price is None else new | {"price": price}, vector)
    return after


def live_steps(index: Path) -> tuple[dict, list[Step]]:
    """Everything that a writer does, each step with what the index must hold after it."""
    first = expected(range(3))
    added = {**first, **expected([3, 4])}
    replaced = {**added, **expected([0], 1)}
    deleted = {name: value for name, value in replaced.items() if name not in ("doc-1", "doc-3")}
    again = {**deleted, **expected([1])}
    priced = changed(again, {"doc-0": 3, "doc-1": 4})
    half = changed(priced, {"doc-0": None, "doc-2": 0.5, "doc-4": 0.5})
    live = writer(index)
    steps: list[Step] = [
        (lambda: live.add(*some([3, 4])), added),
        (lambda: live.add(*some([0], 1)), replaced),
        (lambda: live.delete(["doc-1", "doc-3"]), deleted),
        (live.flush, deleted),
        (lambda: live.add(*some([1])), again),
        (lambda: live.set_attributes({"doc-0": {"price": 3}, "doc-1": {"price": 4}}), priced),
        (live.flush, priced),
        (lambda: live.set_attributes_where({"even": True}, {"price": 0.5}), changed(priced, dict.fromkeys(EVEN, 0.5))),
        (lambda: live.set_attributes({"doc-0": {"price": None}}), half),
        (live.compact, half),
        (live.close, half),
    ]
    return first, steps


def tried(tmp_path: Path, keep=None, *, stop: bool = False, every: int = 1) -> Trial:
    built(tmp_path / "index", 3)
    trial = Trial(tmp_path, keep)
    trial.stop, trial.every = stop, every
    trial.run(*live_steps(tmp_path / "index"))
    return trial


def rebuilt(tmp_path: Path, keep=None, *, stop: bool = False, every: int = 1) -> Trial:
    index = built(tmp_path / "index", 3)
    trial = Trial(tmp_path, keep)
    trial.stop, trial.every = stop, every
    documents, vectors = some(range(3), 1)
    from bidr.index.builder.build import build_index

    def build() -> None:
        build_index(index, codebooks=BOOKS, codes=BOOKS.encode(vectors), vectors=vectors, documents=documents)

    trial.run(expected(range(3)), [(build, expected(range(3), 1))])
    return trial


def none_bad(folder: Path, run, every: int) -> None:
    trial = run(folder, every=every)
    print(f"{run.__name__}: {trial.opened} states opened, {len(trial.bad)} bad")
    assert trial.opened > 30
    assert trial.bad == []


@pytest.mark.slow
@pytest.mark.parametrize("run", [tried, rebuilt])
def test_no_crash_leaves_a_bad_state(tmp_path, run):
    none_bad(tmp_path, run, every=1)


@pytest.mark.slow
def test_no_crash_of_a_compaction_that_keeps_its_steps_leaves_a_bad_state(tmp_path, monkeypatch):
    monkeypatch.setattr("bidr.index.live.compaction.MIN_RESUMABLE_DOCUMENTS", 0)
    none_bad(tmp_path, tried, every=7)


@pytest.mark.parametrize("run", [tried, rebuilt])
def test_no_crash_of_a_sample_leaves_a_bad_state(tmp_path, run):
    none_bad(tmp_path, run, every=13)


class Unflushed(Trial):
    """The same on a disk of which an fsync fails, and what it was to make certain may be lost.

    fails_at: which fsync fails first; most: how many do. `ends`: what the writer does then.
    """

    def __init__(self, folder: Path, fails_at: int, most: int, ends: str, dropped: bool, share: float = 0.005) -> None:
        super().__init__(folder)
        self.share, self.chance, self.steps = share, random.Random(fails_at), steps_of(expected(range(3)))
        self.fails_at, self.most, self.ends, self.disk.dropped = fails_at, most, ends, dropped
        self.synced = self.refused = 0
        self.disk.fails = self.fails
        self.live = writer(self.index)

    def fails(self) -> bool:
        self.synced += 1
        failing = self.fails_at < self.synced <= self.fails_at + self.most
        if self.ends == "is killed":
            self.disk.killed |= failing
        return failing

    def states(self) -> Iterator[Tree]:
        """A sample. Before anything failed there is nothing new to see."""
        return self.disk.states(lambda: self.chance.random() < self.share) if self.disk.failed else iter(())

    def work(self) -> bool:
        """Whether any fsync failed."""
        before = expected(range(3))
        for act, after in self.steps:
            self.step(act, before, after)
            before = after
            self.look([after])
        self.live.close()
        LiveIndex.open(self.index).verify()
        return self.disk.failed

    def step(self, act: Callable[[LiveWriter], object], before: dict, after: dict) -> None:
        while True:
            with recorded(self.disk, after=lambda: self.look([before, after])):
                try:
                    act(self.live)
                    return
                except StorageError:
                    self.refused += 1
                    if self.ends != "is killed" and contents(self.index) != before:
                        self.bad.append("a refused change is visible")
                        if self.stop:
                            raise Found from None
                except Killed:
                    self.refused += 1
            if self.ends != "goes on":
                self.disk.killed, self.most = False, min(self.most, 3)
                self.live._close_log()
                self.live._writer_lock.close()
                with recorded(self.disk, after=lambda: self.look([before, after])):
                    self.live = writer(self.index)


def steps_of(first: dict) -> list[tuple[Callable[[LiveWriter], object], dict]]:
    """What a writer does, each step with what the index must hold after it; each may be done twice."""
    added = {**first, **expected([3, 4])}
    more = {**added, **expected([5])}
    replaced = {**more, **expected([0], 1)}
    deleted = {name: value for name, value in replaced.items() if name not in ("doc-1", "doc-3")}
    again = {**deleted, **expected([1])}
    priced = changed(again, {"doc-0": 3, "doc-1": 4})
    return [
        (lambda live: live.add(*some([3, 4])), added),
        (lambda live: live.add(*some([5])), more),
        (lambda live: live.add(*some([0], 1)), replaced),
        (lambda live: live.delete(["doc-1", "doc-3"], missing_ok=True), deleted),
        (lambda live: live.flush(), deleted),
        (lambda live: live.add(*some([1])), again),
        (lambda live: live.set_attributes({"doc-0": {"price": 3}, "doc-1": {"price": 4}}), priced),
        (lambda live: live.compact(), priced),
        (lambda live: live.add(*some([6])), {**priced, **expected([6])}),
    ]


Way = tuple[int, str, bool]
ENDS = ("goes on", "is opened again", "is killed")
# Of fsyncs that fail one after another: one, the next ones too (those of a new state), all until it is opened again.
WAYS: list[Way] = [
    (most, end, dropped)
    for most in (1, 3, 10**6)
    for end in ENDS
    for dropped in (False, True)
    if most <= 3 or end != "goes on"
]


def unflushed(
    folder: Path, *, stride: int, short: bool = False, stop: bool = False, ways: Sequence[Way] = WAYS
) -> tuple[int, int, int, list]:
    """Fsyncs of the writer fail in turn: how often one did, calls refused, states opened, bad ones."""
    known: dict[int, dict | str | None] = {}
    failures, refused, opened, bad = 0, 0, 0, []
    for number, (most, end, dropped) in enumerate(ways):
        for fails_at in range(number % stride, 10**6, stride):
            where = folder / f"{number}-{fails_at}"
            built(where / "index", 3)
            trial = Unflushed(where, fails_at, most, end, dropped)
            trial.stop, trial.known, trial.opened = stop, known, opened
            if short:
                trial.steps = trial.steps[:4]
            failed = trial.work()
            failures, refused, opened, bad = failures + failed, refused + trial.refused, trial.opened, bad + trial.bad
            shutil.rmtree(where)
            if not failed:
                break
    print(f"{failures} times an fsync failed, {refused} calls refused, {opened} states opened, {len(bad)} bad")
    return failures, refused, opened, bad


@pytest.mark.slow
def test_no_failed_fsync_leaves_a_bad_state(tmp_path):
    failures, _, opened, bad = unflushed(tmp_path, stride=6)
    assert failures > 150
    assert opened > 2_000
    assert bad == []


def test_no_failed_fsync_of_a_sample_leaves_a_bad_state(tmp_path):
    ways = [way for way in WAYS if way[0] == 3]
    failures, refused, opened, bad = unflushed(tmp_path, stride=13, short=True, ways=ways)
    assert failures > 5
    assert refused > 5
    assert opened > 20
    assert bad == []


def trusts_what_it_reads_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed fsync the log is opened again, and appended to."""

    def commit(self: LiveWriter, change: WalRecord) -> None:
        try:
            self._log.append([encode_record(change)])
        except StorageError:
            self._close_log()
            self._open()
            raise
        self._view = self._live.refresh_now()

    monkeypatch.setattr(LiveWriter, "_commit", commit)
    monkeypatch.setattr(WalReader, "is_appendable", property(lambda self: not self.has_more()))


def trusts_the_log_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed writer left is appended to, as it is read from the page cache."""
    monkeypatch.setattr(WalReader, "is_appendable", property(lambda self: not self.has_more()))


def trusts_current(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that a killed writer put in force is taken for durable."""
    monkeypatch.setattr(writer_module, "rewrite_current", lambda folder: None)


def shows_what_it_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers take all records that are whole, and the writer does not withdraw one."""
    monkeypatch.setattr(log_module, "_is_writer_locked", lambda handle: False)
    monkeypatch.setattr(WalWriter, "seal", lambda self: None)
    monkeypatch.setattr(LiveWriter, "_flush", refused_once(LiveWriter._flush))


def refused_once(flush: Callable[[LiveWriter], None]) -> Callable[[LiveWriter], None]:
    def refuse(self: LiveWriter) -> None:
        if self._log is not None and self._log.broken and not hasattr(self, "_told_once"):
            self._told_once = True
            raise StorageError("the disk reports an input/output error")
        flush(self)

    return refuse


@pytest.mark.parametrize(
    ("plant", "ends"),
    [
        (trusts_what_it_reads_back, "goes on"),
        (trusts_the_log_of_another, "is killed"),
        (trusts_current, "is killed"),
        (shows_what_it_refused, "goes on"),
    ],
)
def test_a_writer_that_trusts_a_failed_fsync_is_found_out(tmp_path, monkeypatch, plant, ends):
    plant(monkeypatch)
    with pytest.raises((Found, BidrError)):  # a bad state, or an index that its own writer cannot open
        unflushed(tmp_path, stride=1, short=True, stop=True, ways=[way for way in WAYS if way[1] == ends])


def no_fsync(call: str, node: object) -> bool:
    return not isinstance(node, File)


def no_folder_fsync(call: str, node: object) -> bool:
    return isinstance(node, File)


@pytest.mark.parametrize("run", [tried, rebuilt])
@pytest.mark.parametrize("keep", [no_fsync, no_folder_fsync])
def test_a_writer_that_does_not_flush_is_found_out(tmp_path, run, keep):
    with pytest.raises(Found):
        run(tmp_path, keep, stop=True)


def in_place(path: Path, content: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    write_all(handle, content)
    os.fsync(handle)
    os.close(handle)


def pointer_first(self: GenerationWriter, describe) -> Path:
    described = describe(self.files)
    content = render_state(described) if isinstance(described, IndexState) else render_manifest(described)
    if self.make_current:
        generation_module.write_atomically(self.folder / CURRENT, f"{self.name} {hash_bytes(content)}\n".encode())
    with generation_module.HashedFile(self.staging / "manifest.json") as out:
        out.write(content)
    generation_module.sync_folder(self.staging)
    os.rename(self.staging, self.folder / self.name)
    generation_module.sync_folder(self.folder)
    return self.folder / self.name


@pytest.mark.parametrize("run", [tried, rebuilt])
@pytest.mark.parametrize("fault", ["in place", "pointer first"])
def test_a_writer_in_the_wrong_order_is_found_out(tmp_path, monkeypatch, run, fault):
    if fault == "in place":
        monkeypatch.setattr(generation_module, "write_atomically", in_place)
    else:
        monkeypatch.setattr(GenerationWriter, "commit", pointer_first)
    with pytest.raises(Found):
        run(tmp_path, stop=True)
