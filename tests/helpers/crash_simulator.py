"""A disk that can crash: records what a writer really does, and makes every state in which a crash could leave it.

The model: what was written to a file is certain after fsync of the file; a name (new, renamed, removed) after fsync of
its folder. Before that each may be lost, and data may be there in part, or as zeros. Overwriting a few bytes within a
sector happens whole or not at all.

An fsync may fail. What was written before it may then be on the disk or not, for ever: no later fsync makes it certain.
The page cache may still show it (Linux calls the pages clean), or not any more (`dropped`: read again, they are as the
disk has them). What is written afterwards becomes certain with the next fsync that does not fail.
"""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

SECTOR = 512
LOCKS = (".lock", ".next")
DATA = ("all", "none", "torn", "zeros")
PENDING, CERTAIN, DOUBTFUL = "pending", "certain", "doubtful"
Tree = dict[str, bytes | None]


class Killed(BaseException):
    """The process was killed in this call."""


class File:
    def __init__(self, content: bytes = b"") -> None:
        self.durable = content
        self.writes: list[tuple[int, bytes, str]] = []

    def write(self, offset: int, data: bytes) -> None:
        self.writes.append((offset, data, PENDING))

    def content(self, data: str = "all", *, lost: bool = False) -> bytes:
        """`data`: what became of writes that were not flushed; `lost`: that those are gone whose flush failed."""
        content = bytearray(self.durable)
        for number, (offset, piece, state) in enumerate(self.writes):
            small = offset + len(piece) <= min(len(self.durable), SECTOR)
            there = piece
            if state == DOUBTFUL and lost:
                continue
            if state == PENDING:
                if data == "none" or (small and data == "zeros"):
                    continue
                torn = data == "torn" and number == len(self.writes) - 1 and not small
                there = bytes(len(piece)) if data == "zeros" else piece[: len(piece) // 2] if torn else piece
            content.extend(bytes(max(0, offset - len(content))))
            content[offset : offset + len(there)] = there
        return bytes(content)

    def sync(self) -> None:
        self.writes = [(offset, piece, CERTAIN if state == PENDING else state) for offset, piece, state in self.writes]
        if not self.doubtful:
            self.durable, self.writes = self.content(), []

    def fail(self, *, dropped: bool) -> None:
        self.writes = [(offset, piece, DOUBTFUL if state == PENDING else state) for offset, piece, state in self.writes]
        if dropped:
            size, self.durable, self.writes = len(self.content()), self.content(lost=True), []
            if size > len(self.durable):
                self.write(len(self.durable), bytes(size - len(self.durable)))

    @property
    def doubtful(self) -> bool:
        return any(state == DOUBTFUL for _, _, state in self.writes)


class Folder:
    def __init__(self) -> None:
        self.now: dict[str, File | Folder] = {}
        self.durable: dict[str, File | Folder] = {}


class Disk:
    """What is in a folder, followed from the calls of a writer. `keep` says which calls count (to plant faults)."""

    def __init__(self, root: Path, keep: Any = lambda call, path: True) -> None:
        self.root, self.keep = root, keep
        self.top = self._read(root)
        self.pending: list[tuple[Folder, list[tuple[str, Any]], str]] = []
        self.open: dict[int, tuple[Any, int]] = {}
        self.steps: list[list[Tree]] = []
        self.fails: Callable[[], bool] = lambda: False
        """Whether the next fsync does."""
        self.dropped = self.failed = self.killed = False

    def _read(self, path: Path) -> Folder:
        found = Folder()
        for entry in path.iterdir() if path.exists() else ():
            found.now[entry.name] = self._read(entry) if entry.is_dir() else File(entry.read_bytes())
        found.durable = dict(found.now)
        return found

    def inside(self, path: Any) -> bool:
        return isinstance(path, str | Path) and Path(path).is_relative_to(self.root) and Path(path).name not in LOCKS

    def node(self, path: Any) -> Any:
        node: Any = self.top
        for name in Path(path).relative_to(self.root).parts:
            node = node.now[name]
        return node

    def change(self, path: Any, *changes: tuple[str, Any]) -> None:
        folder = self.node(Path(path).parent)
        for name, node in changes:
            if node is None:
                folder.now.pop(name, None)
            else:
                folder.now[name] = node
        self.pending.append((folder, list(changes), PENDING))

    def sync(self, node: Any) -> None:
        if isinstance(node, File):
            node.sync()
        else:
            self._settle(node, CERTAIN)

    def fail(self, node: Any, handle: int) -> None:
        """An fsync failed, and an open file may have lost what was written to it."""
        self.failed = True
        if not isinstance(node, File):
            self._settle(node, DOUBTFUL)
            return
        node.fail(dropped=self.dropped)
        if self.dropped:
            with Path(f"/proc/self/fd/{handle}").resolve().open("r+b") as file:
                file.write(node.content())

    def _settle(self, node: Folder, state: str) -> None:
        """What became of the pending changes of a folder: certain as far as none before them is in doubt."""
        before, self.pending = self.pending, []
        doubt = False
        for folder, changes, was in before:
            now = state if folder is node and was == PENDING else was
            doubt |= folder is node and now == DOUBTFUL
            if folder is node and now == CERTAIN and not doubt:
                apply(changes, node.durable)
            else:
                self.pending.append((folder, changes, now))

    def states(self, picked: Callable[[], bool] = lambda: True) -> Iterator[Tree]:
        """Every state that a crash now could leave, or the extreme ones and those that are picked."""
        open_ones = [number for number, entry in enumerate(self.pending) if entry[2] != CERTAIN]
        chosen = {frozenset(open_ones[:number]) for number in range(len(open_ones) + 1)}
        chosen |= {frozenset({number}) for number in open_ones}
        chosen |= {frozenset(open_ones) - {number} for number in open_ones}
        for which in sorted(chosen, key=sorted):
            for data in DATA:
                for lost in (False, True) if self.failed else (False,):
                    extreme = len(which) in (0, len(open_ones)) and data in ("all", "none")
                    if extreme or picked():
                        yield self._tree(which, data, lost=lost)

    def _tree(self, which: frozenset[int], data: str, *, lost: bool) -> Tree:
        entries: dict[int, dict[str, Any]] = {}
        for number, (folder, changes, state) in enumerate(self.pending):
            mine = entries.setdefault(id(folder), dict(folder.durable))
            if state == CERTAIN or number in which:
                apply(changes, mine)
        tree: Tree = {}

        def walk(folder: Folder, prefix: str) -> None:
            tree[prefix] = None
            for name, node in entries.get(id(folder), folder.durable).items():
                if isinstance(node, File):
                    tree[f"{prefix}/{name}"] = node.content(data, lost=lost)
                else:
                    walk(node, f"{prefix}/{name}")

        walk(self.top, "")
        return tree


def apply(changes: list[tuple[str, Any]], entries: dict[str, Any]) -> None:
    """Change the names in a folder."""
    for name, node in changes:
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


def put(tree: Tree, folder: Path) -> Path:
    """Write a state to a real folder."""
    for path, content in tree.items():
        target = Path(f"{folder}{path}")
        if content is None:
            target.mkdir(parents=True)
        else:
            target.write_bytes(content)
    return folder


CALLS = ("open", "write", "pwrite", "fsync", "rename", "replace", "link", "unlink", "mkdir", "rmdir", "close")


@contextmanager
def recorded(disk: Disk, after: Any = lambda: None, before: Any = lambda call: None) -> Iterator[None]:  # noqa: PLR0915
    """Follow the calls of a writer; `before` and `after` each of them that changes something."""
    real = {name: getattr(os, name) for name in CALLS}

    def call(name: str) -> Any:
        def made(*given: Any, **options: Any) -> Any:
            place = disk.open.get(given[0]) if isinstance(given[0], int) else None
            ours = place is not None or disk.inside(given[0])
            changes = ours and name != "close" and not (name == "open" and not given[1] & (os.O_CREAT | os.O_TRUNC))
            if changes:
                if disk.killed:
                    raise Killed
                before(name)
            if name == "fsync" and ours and disk.fails():
                disk.fail(place[0], given[0])
                after()
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            result = real[name](*given, **options)
            if ours:
                note(name, given, result, place)
            if changes:
                after()
            return result

        return made

    def note(name: str, given: tuple, result: Any, place: Any) -> None:
        path = given[0]
        if name == "open":
            parent, new = disk.node(Path(path).parent) if Path(path) != disk.root else None, File()
            if parent is not None and Path(path).name not in parent.now:
                disk.change(path, (Path(path).name, new))
            node = disk.node(path)
            if given[1] & os.O_TRUNC and isinstance(node, File) and node.content():
                node.durable, node.writes = b"", []  # truncation may reach the disk at once
            end = len(node.content()) if given[1] & os.O_APPEND else 0
            disk.open[result] = (node, end)
        elif name == "close":
            disk.open.pop(path, None)
        elif name in ("write", "pwrite"):
            node, at = place
            node.write(given[2] if name == "pwrite" else at, bytes(given[1])[:result])
            disk.open[path] = (node, at + result if name == "write" else at)
        elif name == "fsync":
            if disk.keep("fsync", place[0]):
                disk.sync(place[0])
        elif name in ("rename", "replace"):
            node = disk.node(path)
            disk.change(path, (Path(path).name, None), (Path(given[1]).name, node))
        elif name == "link":
            disk.change(given[1], (Path(given[1]).name, disk.node(path)))
        elif name in ("unlink", "rmdir"):
            disk.change(path, (Path(path).name, None))
        elif name == "mkdir":
            disk.change(path, (Path(path).name, Folder()))

    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, call(name))
        yield
