"""Memory cgroups (v1 and v2): limit the memory of a process and its children, and count their reads.

Standard library only: the peers' Pythons import this module too.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bidr.errors import ConfigError

ROOT = Path("/sys/fs/cgroup")
V1_MEMORY, V1_IO = ROOT / "memory", ROOT / "blkio"
PREFIX = "bidr-bench-"
UNLIMITED = 1 << 62
MAX_IOPS = (1 << 32) - 2
REMOVE_TRIES, REMOVE_SECONDS = 50, 0.1
_numbers = itertools.count()


class MemoryUse(NamedTuple):
    """Bytes charged to a cgroup. anonymous: all that is no page cache, such as heaps, page tables and sockets."""

    anonymous: int
    cache: int


class DiskReads(NamedTuple):
    """Reads that a cgroup sent to its busiest block device."""

    requests: int
    bytes: int


class MemoryCgroup(NamedTuple):
    """A memory cgroup. io: folder of the read counters; None: there are none."""

    version: int
    memory: Path
    io: Path | None

    @classmethod
    def create(cls, parents: tuple[MemoryCgroup, ...] | None = None) -> MemoryCgroup:
        """Create a cgroup below that of this process, or below the nearest ancestor where that is allowed."""
        reasons = []
        for parent in list_parents() if parents is None else parents:
            parent._remove_stale()
            group = parent._make_child(f"{PREFIX}{os.getpid()}-{next(_numbers)}")
            try:
                group.memory.mkdir()
                group.set_limit(UNLIMITED)  # fails where the memory controller is not enabled for children
                if group.io is not None and group.io != group.memory:
                    group.io.mkdir()
            except OSError as error:
                reasons.append(f"{group.memory}: {error.strerror}")
                group.remove()
                continue
            return group
        raise ConfigError(
            f"--memory-limit: no memory cgroup can be created ({'; '.join(reasons) or 'none is mounted'}); run as "
            "root, or in a container or a systemd scope with a delegated memory cgroup"
        )

    def _remove_stale(self) -> None:
        """Remove what killed processes left."""
        for folder in (path for parent in self.folders for path in parent.glob(f"{PREFIX}*")):
            pid = folder.name.removeprefix(PREFIX).partition("-")[0]
            if not Path(f"/proc/{pid}").exists():
                with contextlib.suppress(OSError):
                    folder.rmdir()

    def _make_child(self, name: str) -> MemoryCgroup:
        return self._replace(memory=self.memory / name, io=None if self.io is None else self.io / name)

    @property
    def folders(self) -> list[Path]:
        return list(dict.fromkeys([self.memory, *([self.io] if self.io else [])]))

    def set_limit(self, limit: int) -> None:
        """Limit anonymous memory and page cache together; what exceeds it is reclaimed now."""
        file, unlimited = ("memory.limit_in_bytes", "-1") if self.version == 1 else ("memory.max", "max")
        (self.memory / file).write_text(unlimited if limit >= UNLIMITED else str(limit), encoding="ascii")

    def add_process(self, pid: int) -> None:
        """Move a process here; children that it starts later follow."""
        for folder in self.folders:
            (folder / "cgroup.procs").write_text(str(pid), encoding="ascii")

    def count_reads(self, path: Path) -> None:
        """Make a cgroup of v1 count the reads of the disk of a file: it counts where a limit is set, however high."""
        if self.version != 1 or self.io is None:
            return
        with contextlib.suppress(OSError):  # without counters /proc/self/io remains
            disk = find_disk(os.stat(path).st_dev)
            (self.io / "blkio.throttle.read_iops_device").write_text(f"{disk} {MAX_IOPS}", encoding="ascii")

    def list_processes(self) -> list[int]:
        return [int(pid) for pid in (self.memory / "cgroup.procs").read_text(encoding="ascii").split()]

    def read_memory(self) -> MemoryUse:
        """Return the bytes charged; shared memory counts as cache, because that is what databases use it for."""
        names = ("memory.usage_in_bytes", "cache") if self.version == 1 else ("memory.current", "file")
        used = int((self.memory / names[0]).read_text(encoding="ascii"))
        cache = self._read_counters(self.memory / "memory.stat").get(names[1], 0)
        return MemoryUse(max(0, used - cache), cache)

    def read_major_faults(self) -> int:
        """Return the number of page faults that waited for the disk."""
        return self._read_counters(self.memory / "memory.stat").get("pgmajfault", 0)

    def read_disk(self) -> DiskReads | None:
        """Return the reads so far; None where they are not counted."""
        if self.io is None:
            return None
        try:
            if self.version == 1:
                files = ("blkio.throttle.io_serviced", "blkio.throttle.io_service_bytes")
                counts, sizes = (self._read_v1_reads(self.io / file) for file in files)
                reads = [DiskReads(counts.get(device, 0), size) for device, size in sizes.items()]
            else:
                text = (self.io / "io.stat").read_text(encoding="ascii")
                fields = [dict(re.findall(r"(\w+)=(\d+)", line)) for line in text.splitlines()]
                reads = [DiskReads(int(field.get("rios", 0)), int(field.get("rbytes", 0))) for field in fields]
        except OSError:
            return None
        # A logical volume and the disk below it both count a read.
        return max(reads, key=lambda device: device.bytes, default=None)

    def read_cpu_seconds(self) -> float:
        """Return the CPU time of the processes here and of those that they waited for, in steps of a clock tick."""
        ticks = 0
        for pid in self.list_processes():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                ticks += sum(int(field) for field in fields[11:15])
        return ticks / os.sysconf("SC_CLK_TCK")

    def remove(self) -> None:
        """Remove the cgroup; processes that are ending are waited for."""
        for folder in self.folders:
            for _ in range(REMOVE_TRIES):
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(REMOVE_SECONDS)
                else:
                    break

    @staticmethod
    def _read_counters(path: Path) -> dict[str, int]:
        pairs = (line.split() for line in path.read_text(encoding="ascii").splitlines())
        return {name: int(value) for name, value in pairs}

    @staticmethod
    def _read_v1_reads(path: Path) -> dict[str, int]:
        lines = (line.split() for line in path.read_text(encoding="ascii").splitlines())
        return {fields[0]: int(fields[2]) for fields in lines if len(fields) == 3 and fields[1] == "Read"}


def list_parents(membership: str | None = None) -> tuple[MemoryCgroup, ...]:
    """List the cgroups that may get a child: that of this process, then its ancestors."""
    text = Path("/proc/self/cgroup").read_text(encoding="ascii") if membership is None else membership
    entries = [line.split(":", 2) for line in text.splitlines()]
    paths = {name: path for _, controllers, path in entries for name in controllers.split(",")}
    if "memory" in paths:
        io = V1_IO / paths.get("blkio", "/").lstrip("/") if V1_IO.is_dir() else None
        return tuple(MemoryCgroup(1, folder, io) for folder in _list_ancestors(V1_MEMORY, paths["memory"]))
    return tuple(MemoryCgroup(2, folder, folder) for folder in _list_ancestors(ROOT, paths.get("", "/")))


def find_disk(device: int) -> str:
    """Return the numbers of the disk of a device, which may be one of its partitions."""
    folder = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    if (folder / "partition").exists():
        folder = folder.resolve().parent
    return (folder / "dev").read_text(encoding="ascii").strip()


def _list_ancestors(root: Path, path: str) -> Iterator[Path]:
    folder = root / path.lstrip("/")
    while True:
        yield folder
        if folder == root:
            return
        folder = folder.parent
