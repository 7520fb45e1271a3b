"""Measure the random 4 KiB reads of a disk, past the page cache."""

import errno
import mmap
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import types

from bidr.errors import ConfigError, StorageError
from bidr.utils.jit import njit_cached

BLOCK = 4_096
DEPTHS = (1, 8, 32)
# Large enough that a disk's own cache does not hold it, small enough to be written in seconds.
FILE_BYTES, MIN_FILE_BYTES, WRITE_BYTES = 1 << 30, 64 << 20, 8 << 20
MAX_SPACE_SHARE = 0.25
SECONDS, WRITE_SECONDS, READS_PER_CALL = 1.0, 10.0, 64
_pread = types.ExternalFunction("pread", types.int64(types.int32, types.intp, types.uintp, types.int64))


class DiskSpeed(NamedTuple):
    """Random 4 KiB reads a second, by number of reads in flight."""

    iops: dict[int, float]
    file_bytes: int

    def estimate_ms(self, reads: float) -> float:
        """Return the milliseconds of reads that a query has in flight together, at most DEPTHS[-1] of them."""
        return 1000 * max(1 / self.iops[1], reads / self.iops[DEPTHS[-1]]) if reads else 0.0


def measure_disk(folder: Path, seconds: float = SECONDS) -> DiskSpeed:
    """Write a temporary file to a folder, read it at random for some seconds, and remove it."""
    if not folder.is_dir():
        raise ConfigError(f"--measure-disk: the folder {folder} does not exist; create it first")
    free = shutil.disk_usage(folder).free
    size = int(min(FILE_BYTES, MAX_SPACE_SHARE * free)) // BLOCK * BLOCK
    if size < MIN_FILE_BYTES:
        raise StorageError(
            f"--measure-disk: {folder} has {free:,} bytes free, expected {MIN_FILE_BYTES / MAX_SPACE_SHARE:,.0f} "
            "or more; choose a folder on another disk"
        )
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix="bidr-disk-") as file:
            size = _write(file, size)
            handle = os.open(file.name, os.O_RDONLY | os.O_DIRECT)
            try:
                _run_reader(handle, np.zeros(1, dtype=np.int64))  # compiles
                return DiskSpeed({depth: _measure(handle, size, depth, seconds) for depth in DEPTHS}, size)
            finally:
                os.close(handle)
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise ConfigError(f"--measure-disk: {folder} allows no direct reads; choose a folder on a disk") from error
        raise StorageError(f"--measure-disk: {folder} cannot be measured ({error.strerror})") from error


def _write(file: Any, size: int) -> int:
    """Fill the file with random bytes, as a disk may compress or answer zeros by itself; return its size."""
    random, stop_at = np.random.default_rng(0), time.monotonic() + WRITE_SECONDS
    while file.tell() < size and (file.tell() < MIN_FILE_BYTES or time.monotonic() < stop_at):
        file.write(random.bytes(min(WRITE_BYTES, size - file.tell())))
        file.flush()
        os.fdatasync(file.fileno())
    return int(file.tell())


def _measure(handle: int, size: int, depth: int, seconds: float) -> float:
    """Return the reads a second of as many threads as reads in flight."""
    counts, errors, stop_at = np.zeros(depth, dtype=np.int64), list[OSError](), time.perf_counter() + seconds

    def run(number: int) -> None:
        random = np.random.default_rng(number)
        try:
            while time.perf_counter() < stop_at:
                _run_reader(handle, BLOCK * random.integers(0, size // BLOCK, READS_PER_CALL))
                counts[number] += READS_PER_CALL
        except OSError as error:
            errors.append(error)

    started = time.perf_counter()
    threads = [threading.Thread(target=run, args=(number,)) for number in range(depth)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return float(counts.sum()) / (time.perf_counter() - started)


def _run_reader(handle: int, offsets: npt.NDArray[np.int64]) -> None:
    with mmap.mmap(-1, BLOCK) as buffer:  # aligned, as O_DIRECT requires
        address = np.frombuffer(buffer, np.uint8).ctypes.data
        result = _read_blocks(handle, offsets, address)
    if result != BLOCK:
        raise OSError(errno.EIO, "a read was incomplete")


@njit_cached()
def _read_blocks(handle: int, offsets: Any, address: int) -> Any:
    """Read a block at each offset, without the GIL; return the bytes of the shortest read."""
    shortest = np.int64(BLOCK)
    for offset in offsets:
        shortest = min(shortest, _pread(np.int32(handle), address, np.uint64(BLOCK), offset))
    return shortest
