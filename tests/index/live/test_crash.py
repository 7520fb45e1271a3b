"""Whatever moment the power fails in: the old state or the new one, whole, and nothing acknowledged is missing."""

import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from bidr.errors import BidrError
from bidr.files import write_all
from bidr.index.storage import generation as generation_module
from bidr.index.storage.folder import CURRENT, checksum, render
from bidr.index.storage.generation import Generation
from bidr.index.storage.state import State, render_state
from index.live.crashes import Disk, File, Tree, put, recorded
from index.live.made_live import BOOKS, built, contents, expected, some, writer

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
        self.known: dict[frozenset, dict | str] = {}

    def run(self, before: dict, steps: list[Step]) -> None:
        for act, after in steps:
            allowed = [before, after]
            with recorded(self.disk, after=lambda allowed=allowed: self.look(allowed)):
                act()
            before = after
            self.look([after])

    def look(self, allowed: list[dict]) -> None:
        for tree in self.disk.states():
            key = frozenset(tree.items())
            if key not in self.known:
                self.met += 1
                if self.met % self.every:
                    continue
                self.known[key] = self.open(tree)
            if self.known[key] not in allowed:
                self.bad.append(self.known[key])
                if self.stop:
                    raise Found

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


def live_steps(index: Path) -> tuple[dict, list[Step]]:
    """Everything that a writer does, each step with what the index must hold after it."""
    first = expected(range(3))
    added = {**first, **expected([3, 4])}
    replaced = {**added, **expected([0], 1)}
    deleted = {name: value for name, value in replaced.items() if name not in ("doc-1", "doc-3")}
    again = {**deleted, **expected([1])}
    live = writer(index)
    steps: list[Step] = [
        (lambda: live.add(*some([3, 4])), added),
        (lambda: live.add(*some([0], 1)), replaced),
        (lambda: live.delete(["doc-1", "doc-3"]), deleted),
        (live.flush, deleted),
        (lambda: live.add(*some([1])), again),
        (live.compact, again),
        (live.close, again),
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
    from bidr.index.build import build_index

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
    monkeypatch.setattr("bidr.index.live.compaction.KEPT_FROM", 0)
    none_bad(tmp_path, tried, every=7)


@pytest.mark.parametrize("run", [tried, rebuilt])
def test_no_crash_of_a_sample_leaves_a_bad_state(tmp_path, run):
    none_bad(tmp_path, run, every=13)


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


def pointer_first(self: Generation, describe) -> Path:
    described = describe(self.files)
    content = render_state(described) if isinstance(described, State) else render(described)
    if self.alone:
        generation_module.write_atomically(self.folder / CURRENT, f"{self.name} {checksum(content)}\n".encode())
    with generation_module.HashedFile(self.aside / "manifest.json") as out:
        out.write(content)
    generation_module.sync_folder(self.aside)
    os.rename(self.aside, self.folder / self.name)
    generation_module.sync_folder(self.folder)
    return self.folder / self.name


@pytest.mark.parametrize("run", [tried, rebuilt])
@pytest.mark.parametrize("fault", ["in place", "pointer first"])
def test_a_writer_in_the_wrong_order_is_found_out(tmp_path, monkeypatch, run, fault):
    if fault == "in place":
        monkeypatch.setattr(generation_module, "write_atomically", in_place)
    else:
        monkeypatch.setattr(Generation, "commit", pointer_first)
    with pytest.raises(Found):
        run(tmp_path, stop=True)
