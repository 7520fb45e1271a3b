"""A disk that can crash: records what a writer really does, and makes every state in which a crash could leave it.

The model: what was written to a file is certain after fsync of the file; a name (new, renamed, removed) after fsync of
its folder. Before that each may be lost, and data may be there in part, or as zeros. Overwriting a few bytes within a
sector happens whole or not at all.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

SECTOR = 512
LOCKS = (".lock", ".next")
DATA = ("all", "none", "torn", "zeros")
Tree = dict[str, bytes | None]


class File:
    def __init__(self, content: bytes = b"") -> None:
        self.durable, self.writes = content, []

    def write(self, offset: int, data: bytes) -> None:
        self.writes.append((offset, data))

    def content(self, data: str = "all") -> bytes:
        content = bytearray(self.durable)
        for number, (offset, piece) in enumerate(self.writes):
            small = offset + len(piece) <= min(len(self.durable), SECTOR)
            if data == "none" or (small and data == "zeros"):
                continue
            torn = data == "torn" and number == len(self.writes) - 1 and not small
            there = bytes(len(piece)) if data == "zeros" else piece[: len(piece) // 2] if torn else piece
            content[offset : offset + len(there)] = there
        return bytes(content)


class Folder:
    def __init__(self) -> None:
        self.now: dict[str, File | Folder] = {}
        self.durable: dict[str, File | Folder] = {}


class Disk:
    """What is in a folder, followed from the calls of a writer. `keep` says which calls count (to plant faults)."""

    def __init__(self, root: Path, keep: Any = lambda call, path: True) -> None:
        self.root, self.keep = root, keep
        self.top = self._read(root)
        self.pending: list[tuple[Folder, list[tuple[str, Any]]]] = []
        self.open: dict[int, tuple[Any, int]] = {}
        self.steps: list[list[Tree]] = []
        self.faults: Iterator[OSError | None] = iter(())

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
        self.pending.append((folder, list(changes)))

    def sync(self, node: Any) -> None:
        if isinstance(node, File):
            node.durable, node.writes = node.content(), []
        else:
            node.durable = dict(node.now)
            self.pending = [entry for entry in self.pending if entry[0] is not node]

    def states(self) -> Iterator[Tree]:
        """Every state that a crash now could leave."""
        count = len(self.pending)
        chosen = {frozenset(range(number)) for number in range(count + 1)}
        chosen |= {frozenset({number}) for number in range(count)}
        chosen |= {frozenset(range(count)) - {number} for number in range(count)}
        for which in chosen:
            for data in DATA:
                yield self._tree(which, data)

    def _tree(self, which: frozenset[int], data: str) -> Tree:
        entries: dict[int, dict[str, Any]] = {}
        for number, (folder, changes) in enumerate(self.pending):
            mine = entries.setdefault(id(folder), dict(folder.durable))
            for name, node in changes if number in which else ():
                if node is None:
                    mine.pop(name, None)
                else:
                    mine[name] = node
        tree: Tree = {}

        def walk(folder: Folder, prefix: str) -> None:
            tree[prefix] = None
            for name, node in entries.get(id(folder), folder.durable).items():
                if isinstance(node, File):
                    tree[f"{prefix}/{name}"] = node.content(data)
                else:
                    walk(node, f"{prefix}/{name}")

        walk(self.top, "")
        return tree


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
def recorded(disk: Disk, after: Any = lambda: None, before: Any = lambda call: None) -> Iterator[None]:
    """Follow the calls of a writer; `before` and `after` each of them that changes something."""
    real = {name: getattr(os, name) for name in CALLS}

    def call(name: str) -> Any:
        def made(*given: Any, **options: Any) -> Any:
            place = disk.open.get(given[0]) if isinstance(given[0], int) else None
            ours = place is not None or disk.inside(given[0])
            changes = ours and name != "close" and not (name == "open" and not given[1] & (os.O_CREAT | os.O_TRUNC))
            if changes:
                before(name)
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
