"""What a build has done so far, kept until the index is there: one that was killed goes on and does nothing twice.

INDEX/.work/NAME.mark.json   a step: what it was made from, how far it is durable, its files with their checksums
INDEX/.work/...              those files

A step is begun again when anything that it was made from has changed, or a byte that it left. What is made from its
files names their checksums, so that nothing of one build can get into another.
"""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bidr.data.vector_source import VectorSource, advise_dontneed
from bidr.errors import IndexFolderError
from bidr.index.engines.engine_files import open_array
from bidr.index.storage.checksums import BY_BLOCK, NEEDED, SUFFIX, summed
from bidr.index.storage.commit import LOCK, HashedFile
from bidr.index.storage.manifest import FileEntry, checksum, digest_of
from bidr.index.vectors import BinaryWriter, write_npy_header
from bidr.utils.files import open_lock, open_regular, read_regular, remove, storage_errors, write_json
from bidr.utils.fork import unlock_after
from bidr.utils.progress import show_progress
from bidr.utils.step_timer import time_step
from bidr.utils.system import trim_heap

Array = npt.NDArray[Any]
Files = dict[str, FileEntry]
# Rows of an array from one on, some at a time.
Blocks = Callable[[int], Iterator[Array]]

WORK = ".work"
MARK = ".mark.json"
# Another number for other files of the same step: those of an older bidr are then not gone on with.
FORMAT = 3
# Whose time a step's is, where that is another name.
COUNTED_AS = {
    "codebooks.safetensors": "codebooks",
    "coded.npy": "coding",
    "sample.npy": "clusters",
    "clusters.npy": "clusters",
    "arranged.npy": "order",
    "placed.npy": "codes",
    "noted.npy": "links",
    "graph": "links",
    "blocks.npy": "means",
    "mean words": "means",
}
# So much of a step may have to be done again.
MARK_SECONDS = 5.0


class Step:
    """Files that are written together. `done`: how much of the step an earlier run left durable in all of them."""

    def __init__(self, work: "Work", name: str, stamp: str, done: int = 0) -> None:
        self.work, self.name, self.stamp, self.done = work, name, stamp, done
        self.files: Files = {}
        self.digests: dict[str, Any] = {}
        self._open: dict[str, HashedFile] = {}
        self._marked = time.monotonic()

    @contextmanager
    def file(self, name: str) -> Iterator[BinaryWriter]:
        """Write a file, from where the step goes on; and the checksums of its blocks, where it is to have them."""
        with self._file(name) as out:
            if not BY_BLOCK.fullmatch(name):
                yield out
                return
            described = NEEDED.fullmatch(name) is not None
            with summed(out, lambda: self._file(name + SUFFIX), described=described) as passing:
                yield passing
        self.files[name] = self.files[name]._replace(blocks=passing.blocks)

    @contextmanager
    def _file(self, name: str) -> Iterator[HashedFile]:
        path, kept = self.work.folder / name, self.files[name].size if self.done and name in self.files else 0
        with storage_errors(path):
            if not kept:  # never written over: of work that was killed when all was done, an index has the same file
                remove(path)
            with HashedFile(path, offset=kept, digest=self.digests.pop(name, None)) as out:
                self._open[name] = out
                yield out
            del self._open[name]
        self.files[name] = out.entry

    def mark(self, done: int) -> None:
        """All files hold so much: a step that is cut off goes on after it."""
        self.done = done
        if self.work.kept and time.monotonic() - self._marked >= MARK_SECONDS:
            for name, out in self._open.items():
                out.sync()
                self.files[name] = out.entry
            self.save(whole=False)
            self._marked = time.monotonic()

    def save(self, *, whole: bool) -> None:
        files = {name: entry.as_fields() for name, entry in self.files.items()}
        write_json(self.work.mark(self.name), {"stamp": self.stamp, "done": self.done, "whole": whole, "files": files})


class Work:
    """The steps of a build in a folder. kept=False: none of them is looked at again, and nothing is marked."""

    def __init__(self, folder: Path, *, kept: bool = True) -> None:
        self.folder, self.kept = folder, kept
        self._passing: set[str] = set()

    def below(self, name: str) -> "Work":
        """A folder within, for other steps."""
        with storage_errors(self.folder):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        return Work(self.folder / name, kept=self.kept)

    def run(self, name: str, made_from: Any, write: Callable[[Step], None]) -> Files:
        """The files of a step: those that are there, else written, from where an earlier run was cut off.

        made_from: all that decides what is in them (JSON); None: nobody knows, so they are written again.
        """
        with time_step(COUNTED_AS.get(name, name)):
            step, whole = self._begun(name, made_from)
            if step is None:
                if self.kept:
                    remove(self.mark(name))
                step = Step(self, name, _stamp(name, made_from))
            if not whole:
                with storage_errors(self.folder):
                    write(step)
                if self.kept:
                    step.save(whole=True)
                    trim_heap()  # what one step took is not the next one's
        return step.files

    def rows(
        self,
        name: str,
        made_from: Any,
        dtype: Any,
        shape: tuple[int, ...],
        blocks: Blocks,
        label: str = "",
        each: str = "documents",
    ) -> Array:
        """An array that the index is made from and not of, on disk, filled block by block.

        label, each: what a bar shows, and what a row is; none without a label.
        """
        self._passing.add(name)
        self.run(name, made_from, lambda step: write_rows(step, name, np.dtype(dtype), shape, blocks, label, each))
        return open_array(self.folder / name, np.dtype(dtype), len(shape))

    @contextmanager
    def scattered(self, name: str, dtype: Any, count: int) -> Iterator[Array]:
        """An array on disk to write to anywhere; gone afterwards. Its space is taken at once: a disk that is full
        later could not say so."""
        path = self.folder / name
        remove(path)
        with storage_errors(path):
            handle = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            try:
                os.posix_fallocate(handle, 0, count * np.dtype(dtype).itemsize)
            finally:
                os.close(handle)
        try:
            yield np.memmap(path, dtype=dtype, mode="r+", shape=(count,))
        finally:
            remove(path)

    def there(self, name: str, made_from: Any) -> Files | None:
        """The files of a step that is whole."""
        step, whole = self._begun(name, made_from)
        return step.files if step is not None and whole else None

    def put(self, name: str, made_from: Any, files: Files) -> None:
        """A step is whole, with these files, which are durable."""
        step = Step(self, name, _stamp(name, made_from))
        step.files = files
        step.save(whole=True)

    def mark(self, name: str) -> Path:
        return self.folder / f"{name}{MARK}"

    def clear(self) -> None:
        """Remove what the index is not made of."""
        if not self.kept:
            for name in self._passing:
                remove(self.folder / name)

    def _begun(self, name: str, made_from: Any) -> tuple[Step | None, bool]:
        """A step as an earlier run left it, and whether that is all of it; None: there is none to go on with."""
        if not self.kept or made_from is None:
            return None, False
        stamp = _stamp(name, made_from)
        try:
            found = json.loads(read_regular(self.mark(name)))
            if found["stamp"] != stamp:
                return None, False
            step, whole = Step(self, name, stamp, int(found["done"])), bool(found["whole"])
            for file, entry in found["files"].items():
                digest = digest_of(self.folder / file, int(entry["size"]))
                grown = whole and (self.folder / file).stat().st_size != int(entry["size"])
                if grown or digest.hexdigest() != entry["xxh3"]:
                    return None, False
                step.files[file], step.digests[file] = FileEntry.from_fields(entry), digest
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None, False
        return step, whole


@contextmanager
def working(index: Path, name: str = WORK) -> Iterator[Work]:
    """The work on an index, by one process at a time; its folder is gone when the index is there."""
    folder, aside = index / name, index / f"{name}.done"
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with open_lock(folder / LOCK) as lock, unlock_after(lock):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise IndexFolderError(f"{index}: another process is building this index; wait for it") from error
            remove(aside)
            yield Work(folder)
            # At once: whoever begins to build meanwhile must not find half of it, or a lock that nobody else can see.
            folder.rename(aside)
            remove(aside)


def write_rows(
    step: Step,
    name: str,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    blocks: Blocks,
    label: str = "",
    each: str = "documents",
) -> None:
    """An .npy file from blocks of rows, the only one of its step, which is gone on with."""
    with step.file(name) as out, _shown(label, shape[0], step.done, each) as advance:
        if not step.done:
            write_npy_header(out, dtype, shape)
        for block in blocks(step.done):
            out.write(np.ascontiguousarray(block, dtype=dtype).data.cast("B"))
            step.mark(step.done + len(block))
            advance(len(block))


def write_array(step: Step, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], blocks: Iterable[Array]) -> None:
    """An .npy file of a step that begins again where it was cut off."""
    with step.file(name) as out:
        write_npy_header(out, dtype, shape)
        for block in blocks:
            out.write(np.ascontiguousarray(block, dtype=dtype).data.cast("B"))


@contextmanager
def _shown(label: str, total: int, done: int, each: str) -> Iterator[Callable[[int], None]]:
    if not label:
        yield lambda rows: None
        return
    with show_progress(label, total, each, done) as advance:
        yield advance


def _stamp(name: str, made_from: Any) -> str:
    return checksum(json.dumps([FORMAT, name, made_from], sort_keys=True).encode())


def stamp_of(array: Any) -> str:
    """Tells arrays apart: in memory by every byte, on disk by shape, type, size, time of change and some rows.

    What looks like an array and has a `stamp` of its own is told apart by that.
    """
    given = array if isinstance(array, VectorSource) else None
    own = getattr(array, "stamp", None)
    if own and given is None:  # theirs looks at some rows alone
        return str(own)
    held = array.array if isinstance(array, VectorSource) else array
    said = f"{held.shape} {held.dtype} {given.metric if given else ''}"
    if isinstance(held, np.memmap) and held.filename is not None:
        about = os.stat(held.filename)
        some = held[np.unique(np.linspace(0, len(held) - 1, 1_024).astype(np.int64))]
        said += f" {about.st_size} {about.st_mtime_ns} {checksum(np.ascontiguousarray(some).tobytes())}"
    else:
        said += checksum(np.ascontiguousarray(held).data.cast("B"))  # type: ignore[arg-type]
    return checksum(said.encode())


def forget(array: Any) -> None:
    """Let go of a file's pages that this process has looked at: they stay in the page cache, not in its own count."""
    advise_dontneed(array.array if isinstance(array, VectorSource) else array)
