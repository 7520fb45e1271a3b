"""Score rows of a vector file in a memory cgroup of so many bytes; exits with 77 where none can be made.

python search_in_memory_group.py vectors.npy BYTES

Prints how rows are read, the share of the file in the page cache, that of the row cache, and major faults.
"""

import contextlib
import os
import resource
import sys
from pathlib import Path

import numpy as np
from vector_files import evict, find_resident_pages

from bidr.index.vectors import VectorFile, VectorMemory

V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


def main(path: Path, limit: int) -> None:
    query = np.ones(96, dtype=np.float32)
    random = np.random.default_rng(0)
    for memory in (VectorMemory(1 << 20), VectorMemory()):  # compile first: that takes memory too
        memory.vector_bytes = path.stat().st_size
        with VectorFile.open(path, memory=memory) as file:
            file.score(np.arange(1_000), query)
    evict(path)
    group, setting = (V1, "memory.limit_in_bytes") if (V1 / "cgroup.procs").exists() else (V2, "memory.max")
    home, group = find_home(group), group / f"bidr-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / setting).write_text(str(limit))
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        print(f"no writable memory cgroup ({error})", file=sys.stderr)
        raise SystemExit(77) from error
    try:
        memory = VectorMemory()
        memory.vector_bytes = path.stat().st_size
        before = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        with VectorFile.open(path, memory=memory) as file:
            for _ in range(300):
                file.score(random.integers(0, file.count, 400), query)
            faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt - before
            resident = len(find_resident_pages(file)) * 4_096 / file.size
            print(file.reads, resident, memory.cache.ram_bytes / file.size, faults)
    finally:
        (home / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


def find_home(root: Path) -> Path:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory" or (root == V2 and not controllers):
            return root / path.lstrip("/")
    return root


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
