"""Journal of a resumable build: its steps, the files each has written, and how far they are durable.

INDEX/.work/NAME.mark.json   a step: a hash of its inputs, its progress, its files with their checksums
INDEX/.work/...              these files

A step restarts if any of its inputs or a byte of its files has changed. Inputs name the checksums of files of earlier
steps, so files of different builds cannot mix.
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

from bidr.data.vector_source import StackedArrays, VectorSource, advise_dontneed
from bidr.errors import IndexFolderError
from bidr.index.engines.engine_files import open_array
from bidr.index.storage.checksums import (
    BLOCKS_IN_MANIFEST,
    CHECKED_BY_BLOCK,
    CHECKSUM_FILE_SUFFIX,
    write_with_checksums,
)
from bidr.index.storage.commit import LOCK_FILE, HashedFile
from bidr.index.storage.manifest import FileEntry, hash_bytes, start_file_hash
from bidr.index.vectors import BinaryWriter, write_npy_header
from bidr.utils.cpu_and_heap import trim_heap
from bidr.utils.files import open_lock, open_regular, read_regular, remove, storage_errors, write_json
from bidr.utils.fork import unlock_after
from bidr.utils.progress import show_progress
from bidr.utils.step_timer import time_step

Array = npt.NDArray[Any]
Files = dict[str, FileEntry]
# Blocks of the rows of an array, starting at a row.
BlockReader = Callable[[int], Iterator[Array]]

WORK_FOLDER = ".work"
MARK = ".mark.json"
# Increased when a step writes different files, so that those of another version are not resumed.
FORMAT = 3
FINGERPRINT_ROWS = 16_384
# Names under which the time of steps is reported, if other than the name of the step.
TIMER_NAMES = {
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
# Seconds between checkpoints: at most this much of a step is repeated.
CHECKPOINT_SECONDS = 5.0


class Step:
    """Files that are written together. `completed`: rows or units that an earlier run left durable in all of them."""

    def __init__(self, work: "WorkFolder", name: str, stamp: str, completed: int = 0) -> None:
        self.work, self.name, self.stamp, self.completed = work, name, stamp, completed
        self.files: Files = {}
        self.digests: dict[str, Any] = {}
        self._open: dict[str, HashedFile] = {}
        self._last_checkpoint = time.monotonic()

    @contextmanager
    def open_file(self, name: str) -> Iterator[BinaryWriter]:
        """Open a file to write from where the step resumes, with the checksums of its blocks if its format has them."""
        with self._open_file(name) as out:
            if not CHECKED_BY_BLOCK.fullmatch(name):
                yield out
                return
            described = BLOCKS_IN_MANIFEST.fullmatch(name) is not None
            with write_with_checksums(
                out, lambda: self._open_file(name + CHECKSUM_FILE_SUFFIX), described=described
            ) as summed_file:
                yield summed_file
        self.files[name] = self.files[name]._replace(blocks=summed_file.blocks)

    @contextmanager
    def _open_file(self, name: str) -> Iterator[HashedFile]:
        path, offset = self.work.folder / name, self.files[name].size if self.completed and name in self.files else 0
        with storage_errors(path):
            if not offset:  # not truncated: an index may link the same file if the last build was killed at its end
                remove(path)
            with HashedFile(path, offset=offset, digest=self.digests.pop(name, None)) as out:
                self._open[name] = out
                yield out
            del self._open[name]
        self.files[name] = out.entry

    def checkpoint(self, completed: int) -> None:
        """Note that all files hold `completed` rows, and make this durable from time to time."""
        self.completed = completed
        if self.work.resumable and time.monotonic() - self._last_checkpoint >= CHECKPOINT_SECONDS:
            for name, out in self._open.items():
                out.sync()
                self.files[name] = out.entry
            self.save(is_complete=False)
            self._last_checkpoint = time.monotonic()

    def save(self, *, is_complete: bool) -> None:
        files = {name: entry.as_fields() for name, entry in self.files.items()}
        mark = {"stamp": self.stamp, "done": self.completed, "whole": is_complete, "files": files}
        write_json(self.work.get_mark_path(self.name), mark)


class WorkFolder:
    """The steps of a build in a folder. resumable=False: write no checkpoints and resume nothing."""

    def __init__(self, folder: Path, *, resumable: bool = True) -> None:
        self.folder, self.resumable = folder, resumable
        self._intermediate: set[str] = set()

    def open_subfolder(self, name: str) -> "WorkFolder":
        with storage_errors(self.folder):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        return WorkFolder(self.folder / name, resumable=self.resumable)

    def run_step(self, name: str, inputs: Any, write: Callable[[Step], None]) -> Files:
        """Return the files of a step; write them unless complete, resuming where an earlier run stopped.

        Args:
            name: the name of the step.
            inputs: JSON value of everything that determines the content of the files; None: unknown, always restart.
            write: writes the files.
        """
        with time_step(TIMER_NAMES.get(name, name)):
            step, is_complete = self._load_step(name, inputs)
            if step is None:
                if self.resumable:
                    remove(self.get_mark_path(name))
                step = Step(self, name, _hash_inputs(name, inputs))
            if not is_complete:
                with storage_errors(self.folder):
                    write(step)
                if self.resumable:
                    step.save(is_complete=True)
                    trim_heap()  # so that the peak of the next step does not include this one's free memory
        return step.files

    def build_array(
        self,
        name: str,
        inputs: Any,
        dtype: Any,
        shape: tuple[int, ...],
        blocks: BlockReader,
        label: str = "",
        unit: str = "documents",
    ) -> Array:
        """Return an intermediate array on disk, written block by block in a step of its own.

        label, unit: of the progress bar; no bar without a label.
        """
        self._intermediate.add(name)
        self.run_step(name, inputs, lambda step: write_rows(step, name, np.dtype(dtype), shape, blocks, label, unit))
        return open_array(self.folder / name, np.dtype(dtype), len(shape))

    @contextmanager
    def allocate_scratch(self, name: str, dtype: Any, count: int) -> Iterator[Array]:
        """Map a temporary array for random writes. Its space is allocated first: writing to a mapping of a file on a
        full disk raises SIGBUS."""
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

    def find_complete_step(self, name: str, inputs: Any) -> Files | None:
        """Return the files of a step if it is complete and intact."""
        step, is_complete = self._load_step(name, inputs)
        return step.files if step is not None and is_complete else None

    def save_complete_step(self, name: str, inputs: Any, files: Files) -> None:
        """Record a step whose files are complete and durable."""
        step = Step(self, name, _hash_inputs(name, inputs))
        step.files = files
        step.save(is_complete=True)

    def get_mark_path(self, name: str) -> Path:
        return self.folder / f"{name}{MARK}"

    def remove_intermediate(self) -> None:
        """Remove the intermediate arrays of a build that is not resumable."""
        if not self.resumable:
            for name in self._intermediate:
                remove(self.folder / name)

    def _load_step(self, name: str, inputs: Any) -> tuple[Step | None, bool]:
        """Return the step of an earlier run with the same inputs and intact files, and whether it is complete."""
        if not self.resumable or inputs is None:
            return None, False
        stamp = _hash_inputs(name, inputs)
        try:
            mark = json.loads(read_regular(self.get_mark_path(name)))
            if mark["stamp"] != stamp:
                return None, False
            step, is_complete = Step(self, name, stamp, int(mark["done"])), bool(mark["whole"])
            for file, entry in mark["files"].items():
                digest = start_file_hash(self.folder / file, int(entry["size"]))
                has_grown = is_complete and (self.folder / file).stat().st_size != int(entry["size"])
                if has_grown or digest.hexdigest() != entry["xxh3"]:
                    return None, False
                step.files[file], step.digests[file] = FileEntry.from_fields(entry), digest
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None, False
        return step, is_complete


@contextmanager
def open_work_folder(index: Path, name: str = WORK_FOLDER) -> Iterator[WorkFolder]:
    """Lock the work folder of an index for the block, and remove it at the end unless an error is raised."""
    folder, retired = index / name, index / f"{name}.done"
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with open_lock(folder / LOCK_FILE) as lock, unlock_after(lock):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise IndexFolderError(f"{index}: another process is building this index; wait for it") from error
            remove(retired)
            yield WorkFolder(folder)
            # Renamed first: another build must not find it half removed, or hold a lock on an unlinked file.
            folder.rename(retired)
            remove(retired)


def write_rows(
    step: Step,
    name: str,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    blocks: BlockReader,
    label: str = "",
    unit: str = "documents",
) -> None:
    """Write an .npy file from blocks of rows, resuming; the step must have no other file."""
    with step.open_file(name) as out, _report_progress(label, shape[0], step.completed, unit) as advance:
        if not step.completed:
            write_npy_header(out, dtype, shape)
        for block in blocks(step.completed):
            out.write(np.ascontiguousarray(block, dtype=dtype).data.cast("B"))
            step.checkpoint(step.completed + len(block))
            advance(len(block))


def write_array(step: Step, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], blocks: Iterable[Array]) -> None:
    """Write an .npy file from the start, in a step that does not resume."""
    with step.open_file(name) as out:
        write_npy_header(out, dtype, shape)
        for block in blocks:
            out.write(np.ascontiguousarray(block, dtype=dtype).data.cast("B"))


@contextmanager
def _report_progress(label: str, total: int, completed: int, unit: str) -> Iterator[Callable[[int], None]]:
    if not label:
        yield lambda rows: None
        return
    with show_progress(label, total, unit, completed) as advance:
        yield advance


def _hash_inputs(name: str, inputs: Any) -> str:
    return hash_bytes(json.dumps([FORMAT, name, inputs], sort_keys=True).encode())


def fingerprint_array(array: Any) -> str:
    """Return a hash of an array: of all bytes in memory, or of shape, type, size, mtime and sampled rows of a file.

    An array-like object with a `stamp` of its own is identified by that.
    """
    source = array if isinstance(array, VectorSource) else None
    values = array.array if isinstance(array, VectorSource) else array
    if stamp := getattr(values, "stamp", None):
        return str(stamp) if source is None else hash_bytes(f"{stamp} {source.metric}".encode())
    text = f"{values.shape} {values.dtype} {source.metric if source else ''}"
    if isinstance(values, StackedArrays):
        text += " ".join(fingerprint_array(part) for part in values.arrays)
    elif isinstance(values, np.memmap) and values.filename is None:  # an anonymous file, not mapped all at once
        for start in range(0, len(values), FINGERPRINT_ROWS):
            text = hash_bytes(text.encode() + values[start : start + FINGERPRINT_ROWS].tobytes())
            advise_dontneed(values)
    elif isinstance(values, np.memmap) and values.filename:
        status = os.stat(values.filename)
        sample = values[np.unique(np.linspace(0, len(values) - 1, 1_024).astype(np.int64))]
        text += f" {status.st_size} {status.st_mtime_ns} {hash_bytes(np.ascontiguousarray(sample).tobytes())}"
    else:
        text += hash_bytes(np.ascontiguousarray(values).data.cast("B"))  # type: ignore[arg-type]
    return hash_bytes(text.encode())


def release_pages(array: Any) -> None:
    """Unmap the pages of a file that this process has read: they stay in the page cache, but not in its RSS."""
    advise_dontneed(array.array if isinstance(array, VectorSource) else array)
