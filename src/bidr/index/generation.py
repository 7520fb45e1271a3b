"""Writing a new generation: beside the old one, flushed, renamed, then put in force by replacing CURRENT."""

import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from bidr.errors import ConfigError, IndexFolderError
from bidr.files import storage_errors, sync_folder, write_atomically
from bidr.index.folder import CURRENT, GENERATION, MANIFEST, FileEntry, Manifest, checksum, current_generation, render

LOCK = ".lock"
UNFINISHED = re.compile(r"\.\d{6}\.\d+\.new|\.CURRENT\.\d+\.new")


class HashedFile:
    """A file being written, with its size and checksum; durable once closed without an error."""

    def __init__(self, path: Path) -> None:
        from xxhash import xxh3_128

        self.path, self.size = path, 0
        self._out = path.open("xb", buffering=1 << 20)
        self._digest = xxh3_128()

    def write(self, content: bytes | memoryview) -> int:
        written = self._out.write(content)
        self._digest.update(content)
        self.size += written
        return written

    @property
    def entry(self) -> FileEntry:
        return FileEntry(self.size, self._digest.hexdigest())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if error is None:
                self._out.flush()
                os.fsync(self._out.fileno())
        finally:
            self._out.close()


class Generation:
    """A generation that nobody can see yet: write its files, then commit it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.aside = folder / f".{name}.{os.getpid()}.new"
        self.files: dict[str, FileEntry] = {}

    @contextmanager
    def file(self, name: str) -> Iterator[HashedFile]:
        """Write one file of the generation; its size and checksum go into the manifest."""
        with storage_errors(self.aside / name), HashedFile(self.aside / name) as out:
            yield out
        self.files[name] = out.entry

    def commit(self, describe: Callable[[dict[str, FileEntry]], Manifest]) -> Path:
        """Make the files durable and put them in force: after this a reader sees them all, before it none."""
        content = render(describe(self.files))
        target = self.folder / self.name
        with storage_errors(target):
            with HashedFile(self.aside / MANIFEST) as out:
                out.write(content)
            sync_folder(self.aside)
            os.rename(self.aside, target)
            sync_folder(self.folder)
        write_atomically(self.folder / CURRENT, f"{self.name} {checksum(content)}\n".encode())
        return target


@contextmanager
def new_generation(folder: Path, keep: int = 0) -> Iterator[Generation]:
    """Write a generation of the index in `folder`, keeping that many earlier ones.

    What a killed writer left behind is removed first. If anything fails, the generation in force stays in force.
    """
    if keep < 0:
        raise ConfigError(f"generations to keep: given {keep}, expected 0 or more")
    if folder.exists() and not folder.is_dir():
        raise IndexFolderError(f"{folder}: a file, expected a folder or a path that does not exist yet; choose another")
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with _only_writer(folder):
            previous = _remove_leftovers(folder)
            generation = Generation(folder, f"{max([0, *map(int, previous)]) + 1:06d}")
            try:
                generation.aside.mkdir()
                yield generation
            except BaseException:
                _remove(generation.aside)
                if _in_force(folder) != generation.name:
                    _remove(folder / generation.name)
                raise
            if _in_force(folder) == generation.name:
                for name in previous[: len(previous) - keep]:
                    _remove(folder / name)


@contextmanager
def _only_writer(folder: Path) -> Iterator[None]:
    with (folder / LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise IndexFolderError(f"{folder}: another process is writing this index; wait until it is done") from error
        yield


def _in_force(folder: Path) -> str | None:
    """The generation that CURRENT names, or none: a writer must get past a damaged CURRENT, since it repairs it."""
    try:
        return current_generation(folder)[0]
    except IndexFolderError:
        return None


def _remove_leftovers(folder: Path) -> list[str]:
    """Remove what never came into force; the generations that did, oldest first."""
    names = sorted(entry.name for entry in folder.iterdir())
    generations = [name for name in names if GENERATION.fullmatch(name)]
    current = _in_force(folder)
    # With CURRENT damaged nobody can tell which generation was in force, so none of them counts as a leftover.
    leftovers = [name for name in generations if current is not None and name > current]
    for name in [name for name in names if UNFINISHED.fullmatch(name)] + leftovers:
        _remove(folder / name)
    return [name for name in generations if name not in leftovers]


def _remove(path: Path) -> None:
    """Remove quietly: what cannot be removed now is removed by the next writer."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
        return
    with suppress(OSError):
        path.unlink(missing_ok=True)
