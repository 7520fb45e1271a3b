"""Atomic commits: write a generation to a staging folder, fsync, rename, then replace CURRENT."""

import fcntl
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Any

from bidr.errors import ConfigError, IndexFolderError
from bidr.index.storage.live_state import IndexState, read_segment_names, render_state
from bidr.index.storage.manifest import (
    CURRENT,
    GENERATION,
    MANIFEST,
    FileEntry,
    Manifest,
    hash_bytes,
    read_current,
    render_manifest,
)
from bidr.utils.files import NewFile, open_lock, remove, storage_errors, sync_folder, write_atomically
from bidr.utils.fork import unlock_after
from bidr.utils.progress import say

LOCK_FILE, NEXT_LOCK_FILE = ".lock", ".next"
COMPACTION_FOLDER = ".compact"
"""Steps of a killed compaction, from which the next one resumes."""
WRITER_WAIT_SECONDS = 600.0
"""How long commands that write wait for another writer."""
LOCK_POLL_SECONDS, NOTICE_AFTER_SECONDS = 0.02, 1.0
# Staging folders and finished step folders that a killed process did not remove; the latter may hold a whole index.
UNFINISHED = re.compile(r"\.\d{6}\.\d+\.new|\.CURRENT\.\d+\.new|\.(work|compact)\.done")


class HashedFile(NewFile):
    """File writer that computes size and checksum; the file is durable once closed without an error.

    offset, digest: append after `offset` existing bytes, whose hash object is `digest`.
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


class GenerationWriter:
    """Writes the files of a generation to a staging folder, then commits it.

    make_current: let CURRENT refer to the generation on commit; False for a segment that a later state will list.
    """

    def __init__(self, folder: Path, name: str, *, make_current: bool = True) -> None:
        self.folder, self.name, self.make_current, self.process = folder, name, make_current, os.getpid()
        self.staging = folder / f".{name}.{os.getpid()}.new"
        self.files: dict[str, FileEntry] = {}

    @contextmanager
    def open_file(self, name: str) -> Iterator[HashedFile]:
        """Open a file of the generation for writing; its size and checksum go into the manifest."""
        with storage_errors(self.staging / name), HashedFile(self.staging / name) as out:
            yield out
        self.files[name] = out.entry

    def adopt(self, folder: Path, files: Mapping[str, FileEntry]) -> None:
        """Take over durable files of another folder: as hard links, or moved where links are not supported."""
        for name, entry in files.items():
            if folder != self.staging:
                with storage_errors(self.staging / name):
                    try:
                        os.link(folder / name, self.staging / name)
                    except OSError:
                        os.rename(folder / name, self.staging / name)
            self.files[name] = entry

    def commit(self, describe: Callable[[dict[str, FileEntry]], Manifest | IndexState]) -> Path:
        """Make the files durable and visible to readers atomically; return the folder of the generation.

        describe: returns the manifest, or the state, with the given file entries.
        """
        manifest = describe(self.files)
        content = render_state(manifest) if isinstance(manifest, IndexState) else render_manifest(manifest)
        target = self.folder / self.name
        with storage_errors(target):
            with HashedFile(self.staging / MANIFEST) as out:
                out.write(content)
            sync_folder(self.staging)
            os.rename(self.staging, target)
            sync_folder(self.folder)
        if self.make_current:
            write_atomically(self.folder / CURRENT, f"{self.name} {hash_bytes(content)}\n".encode())
        return target


BeginGeneration = Callable[[Path, int], AbstractContextManager[GenerationWriter]]


@contextmanager
def lock_and_begin_generation(folder: Path, keep: int = 0) -> Iterator[GenerationWriter]:
    """Write a generation of the index in `folder` under the writer lock; keep `keep` earlier generations.

    Waits for another writer, up to WRITER_WAIT_SECONDS. Removes leftovers of killed writers first. On failure the
    current generation stays current.
    """
    if keep < 0:
        raise ConfigError(f"generations to keep: given {keep}, expected 0 or more")
    if folder.exists() and not folder.is_dir():
        raise IndexFolderError(f"{folder}: a file, expected a folder or a path that does not exist yet; choose another")
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with hold_writer_lock(folder, WRITER_WAIT_SECONDS), begin_generation(folder, keep) as generation:
            yield generation
            remove(folder / COMPACTION_FOLDER)  # belongs to the index that was replaced


@contextmanager
def begin_generation(
    folder: Path, keep: int = 0, *, make_current: bool = True, pending: Collection[str] = ()
) -> Iterator[GenerationWriter]:
    """Write a generation; the caller holds the writer lock.

    pending: segments that the caller committed and that no state lists yet; they are not removed as leftovers.
    """
    previous = _remove_leftovers(folder, pending)
    generation = GenerationWriter(folder, f"{max([0, *map(int, previous)]) + 1:06d}", make_current=make_current)
    with storage_errors(folder):
        try:
            os.mkdir(generation.staging)
            yield generation
        except BaseException:
            if os.getpid() == generation.process:  # a forked child must not remove its parent's files
                remove(generation.staging)
                # An unreadable CURRENT may refer to this generation, so it is not removed then.
                if get_current_name(folder) not in (generation.name, None) or not (folder / CURRENT).exists():
                    remove(folder / generation.name)
            raise
    if get_current_name(folder) == generation.name:
        remove_unreferenced(folder, previous[len(previous) - keep :])


def remove_unreferenced(folder: Path, keep: list[str]) -> None:
    """Remove generations that are neither listed by the current one nor by those in `keep`."""
    current = get_current_name(folder)
    if current is None:
        return
    referenced = {name for root in [current, *keep] for name in [root, *read_segment_names(folder / root)]}
    for name in _list_generations(folder):
        if name not in referenced:
            remove(folder / name)


@contextmanager
def hold_writer_lock(folder: Path, wait: float = 0.0) -> Iterator[None]:
    """Hold the writer lock of an index; wait for another writer for `wait` seconds, then raise IndexFolderError.

    A waiting writer holds NEXT_LOCK_FILE until it gets LOCK_FILE. So the current writer can see that another one
    waits, and cannot take the lock again before it. The system releases both locks of a killed process.
    """
    with storage_errors(folder / LOCK_FILE), open_lock(folder / LOCK_FILE) as lock, unlock_after(lock):
        with open_lock(folder / NEXT_LOCK_FILE) as next_lock, unlock_after(next_lock):
            _acquire_locks((next_lock, lock), folder, wait)
        yield


def _acquire_locks(files: Collection[IO[str]], folder: Path, wait: float) -> None:
    started, notified = time.monotonic(), False
    for file in files:
        while not _try_lock(file):
            elapsed = time.monotonic() - started
            if elapsed >= wait:
                raise IndexFolderError(f"{folder}: another writer has this index; close it, or wait until it is done")
            if not notified and elapsed >= NOTICE_AFTER_SECONDS:
                say(f"{folder}: another writer has this index; waiting for it, up to {wait:.0f} s")
                notified = True
            time.sleep(LOCK_POLL_SECONDS)


def _try_lock(file: IO[str]) -> bool:
    """Lock a file unless another process holds the lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_writer_waiting(folder: Path) -> bool:
    """Whether another process waits for the writer lock that the caller holds."""
    try:
        with open_lock(folder / NEXT_LOCK_FILE) as next_lock:
            return not _try_lock(next_lock)
    except OSError:  # only a hint, so a failure to read it is harmless
        return False


def rewrite_current(folder: Path) -> None:
    """Rewrite CURRENT durably: the process that wrote it may have been killed before the fsync."""
    name, digest = read_current(folder)
    write_atomically(folder / CURRENT, f"{name} {digest}\n".encode())


def get_current_name(folder: Path) -> str | None:
    """Return the name of the current generation; None if CURRENT is damaged, which the next commit repairs."""
    try:
        return read_current(folder)[0]
    except IndexFolderError:
        return None


def _list_generations(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if GENERATION.fullmatch(entry.name))


def _remove_leftovers(folder: Path, pending: Collection[str] = ()) -> list[str]:
    """Remove uncommitted generations and staging folders; return the committed generations, oldest first.

    Segments are older than the state that lists them, so generations newer than the current one are uncommitted.
    """
    generations, current = _list_generations(folder), get_current_name(folder)
    # If CURRENT is damaged, the current generation is unknown, and no generation is removed.
    leftovers = [name for name in generations if current is not None and name > current and name not in pending]
    unfinished = [entry.name for entry in folder.iterdir() if UNFINISHED.fullmatch(entry.name)]
    for name in sorted(unfinished) + leftovers:
        remove(folder / name)
    return [name for name in generations if name not in leftovers]
