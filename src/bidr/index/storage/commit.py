"""Writing a new generation: beside the old one, flushed, renamed, then put in force by replacing CURRENT."""

import fcntl
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Any

from bidr.errors import ConfigError, IndexFolderError
from bidr.index.storage.live_state import State, named_by, render_state
from bidr.index.storage.manifest import (
    CURRENT,
    GENERATION,
    MANIFEST,
    FileEntry,
    Manifest,
    checksum,
    current_generation,
    render,
)
from bidr.utils.files import NewFile, open_lock, remove, storage_errors, sync_folder, write_atomically
from bidr.utils.fork import unlock_after
from bidr.utils.progress import say

LOCK, NEXT = ".lock", ".next"
COMPACT = ".compact"
"""What a compaction that was killed left to go on with."""
WAIT = 600.0
"""Seconds that a build, or another verb that writes, waits for whoever writes already."""
LOOK_EVERY, SAID_AFTER = 0.02, 1.0
# And work that was done, of which a killed process had not yet removed everything: it may hold all files of an index.
UNFINISHED = re.compile(r"\.\d{6}\.\d+\.new|\.CURRENT\.\d+\.new|\.(work|compact)\.done")


class HashedFile(NewFile):
    """Writer of a new file with its size and checksum; durable once closed without an error.

    offset, digest: resume an existing file after this many bytes, whose digest is given.
    """

    def __init__(self, path: Path, *, must_be_new: bool = True, offset: int = 0, digest: Any = None) -> None:
        from xxhash import xxh3_128

        super().__init__(path, must_be_new=must_be_new, offset=offset)
        self._digest = xxh3_128() if digest is None else digest

    def write(self, content: bytes | memoryview) -> int:
        self._digest.update(content)
        return super().write(content)

    @property
    def entry(self) -> FileEntry:
        return FileEntry(self.size, self._digest.hexdigest())


class Generation:
    """A generation that nobody can see yet: write its files, then commit it."""

    def __init__(self, folder: Path, name: str, *, alone: bool = True) -> None:
        self.folder, self.name, self.alone, self.process = folder, name, alone, os.getpid()
        self.aside = folder / f".{name}.{os.getpid()}.new"
        self.files: dict[str, FileEntry] = {}

    @contextmanager
    def file(self, name: str) -> Iterator[HashedFile]:
        """Write one file of the generation; its size and checksum go into the manifest."""
        with storage_errors(self.aside / name), HashedFile(self.aside / name) as out:
            yield out
        self.files[name] = out.entry

    def adopt(self, folder: Path, files: Mapping[str, FileEntry]) -> None:
        """Take over durable files that were written in another folder, which keeps them too if the disk can do that."""
        for name, entry in files.items():
            if folder != self.aside:
                with storage_errors(self.aside / name):
                    try:
                        os.link(folder / name, self.aside / name)
                    except OSError:
                        os.rename(folder / name, self.aside / name)
            self.files[name] = entry

    def commit(self, describe: Callable[[dict[str, FileEntry]], Manifest | State]) -> Path:
        """Make the files durable and put them in force: after this a reader sees them all, before it none.

        A segment, which is not an index alone, is made durable only: a state that names it puts it in force.
        """
        described = describe(self.files)
        content = render_state(described) if isinstance(described, State) else render(described)
        target = self.folder / self.name
        with storage_errors(target):
            with HashedFile(self.aside / MANIFEST) as out:
                out.write(content)
            sync_folder(self.aside)
            os.rename(self.aside, target)
            sync_folder(self.folder)
        if self.alone:
            write_atomically(self.folder / CURRENT, f"{self.name} {checksum(content)}\n".encode())
        return target


Begin = Callable[[Path, int], AbstractContextManager[Generation]]


@contextmanager
def new_generation(folder: Path, keep: int = 0) -> Iterator[Generation]:
    """Write a generation of the index in `folder`, keeping that many earlier ones.

    Whoever writes it is waited for, up to `WAIT` seconds. What a killed writer left is removed first. If anything
    fails, the generation in force stays in force.
    """
    if keep < 0:
        raise ConfigError(f"generations to keep: given {keep}, expected 0 or more")
    if folder.exists() and not folder.is_dir():
        raise IndexFolderError(f"{folder}: a file, expected a folder or a path that does not exist yet; choose another")
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with only_writer(folder, WAIT), next_generation(folder, keep) as generation:
            yield generation
            remove(folder / COMPACT)  # of an index that is no more


@contextmanager
def next_generation(
    folder: Path, keep: int = 0, *, alone: bool = True, spare: Collection[str] = ()
) -> Iterator[Generation]:
    """The same for whom is the only writer already. `spare`: segments that it wrote and that are not in force yet."""
    previous = _remove_leftovers(folder, spare)
    generation = Generation(folder, f"{max([0, *map(int, previous)]) + 1:06d}", alone=alone)
    with storage_errors(folder):
        try:
            os.mkdir(generation.aside)
            yield generation
        except BaseException:
            if os.getpid() == generation.process:  # to a forked child nothing of it belongs
                remove(generation.aside)
                # Not where CURRENT is there and cannot be read: it may name what would be removed.
                if in_force(folder) not in (generation.name, None) or not (folder / CURRENT).exists():
                    remove(folder / generation.name)
            raise
    if in_force(folder) == generation.name:
        remove_unnamed(folder, previous[len(previous) - keep :])


def remove_unnamed(folder: Path, keep: list[str]) -> None:
    """Remove the generations that neither the one in force nor those to keep are made of."""
    current = in_force(folder)
    if current is None:
        return
    needed = {part for name in [current, *keep] for part in [name, *named_by(folder / name)]}
    for name in _generations(folder):
        if name not in needed:
            remove(folder / name)


@contextmanager
def only_writer(folder: Path, wait: float = 0.0) -> Iterator[None]:
    """Hold the index for writing. Another writer is waited for, so many seconds, and then this one is refused.

    Whoever comes holds NEXT until it has LOCK. So who has the index sees that it is wanted, and who lets it go does not
    get it back before. The system lets go of both for a process that is killed.
    """
    with storage_errors(folder / LOCK), open_lock(folder / LOCK) as lock, unlock_after(lock):
        with open_lock(folder / NEXT) as turn, unlock_after(turn):
            _take((turn, lock), folder, wait)
        yield


def _take(files: Collection[IO[str]], folder: Path, wait: float) -> None:
    started, said = time.monotonic(), False
    for file in files:
        while not _free(file):
            waited = time.monotonic() - started
            if waited >= wait:
                raise IndexFolderError(f"{folder}: another writer has this index; close it, or wait until it is done")
            if not said and waited >= SAID_AFTER:
                say(f"{folder}: another writer has this index; waiting for it, up to {wait:.0f} s")
                said = True
            time.sleep(LOOK_EVERY)


def _free(file: IO[str]) -> bool:
    """Lock a file that nobody else has locked."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wanted(folder: Path) -> bool:
    """Whether another process waits to write. For who has the index."""
    try:
        with open_lock(folder / NEXT) as turn:
            return not _free(turn)
    except OSError:  # a courtesy: what was written before is none the worse
        return False


def confirm_current(folder: Path) -> None:
    """Write CURRENT again. Whoever put it there may have been killed, or have failed, before it was durable."""
    name, digest = current_generation(folder)
    write_atomically(folder / CURRENT, f"{name} {digest}\n".encode())


def in_force(folder: Path) -> str | None:
    """The generation that CURRENT names, or none: a writer must get past a damaged CURRENT, since it repairs it."""
    try:
        return current_generation(folder)[0]
    except IndexFolderError:
        return None


def _generations(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if GENERATION.fullmatch(entry.name))


def _remove_leftovers(folder: Path, spare: Collection[str] = ()) -> list[str]:
    """Remove what never came into force; the generations that did, oldest first.

    What a state is made of is older than the state, so what is younger than the one in force belongs to nothing.
    """
    generations, current = _generations(folder), in_force(folder)
    # With CURRENT damaged nobody can tell which generation was in force, so none of them counts as a leftover.
    leftovers = [name for name in generations if current is not None and name > current and name not in spare]
    unfinished = [entry.name for entry in folder.iterdir() if UNFINISHED.fullmatch(entry.name)]
    for name in sorted(unfinished) + leftovers:
        remove(folder / name)
    return [name for name in generations if name not in leftovers]
