"""Memory cgroups: limits and counters of v1 and v2, and one clear error where none can be made."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bidr.bench import memory_cgroup
from bidr.bench.memory_cgroup import UNLIMITED, DiskReads, MemoryCgroup, MemoryUse, list_parents
from bidr.errors import ConfigError

V1_FILES = {
    "memory.limit_in_bytes": "",
    "memory.usage_in_bytes": "5000\n",
    "memory.stat": "cache 3000\nrss 1500\npgmajfault 7\n",
    "blkio.throttle.io_serviced": "254:0 Read 10\n254:0 Write 99\n253:0 Read 10\nTotal 119\n",
    "blkio.throttle.io_service_bytes": "254:0 Read 40960\n254:0 Write 9\n253:0 Read 40000\nTotal 9\n",
}
V2_FILES = {
    "memory.max": "",
    "memory.current": "5000\n",
    "memory.stat": "anon 1500\nfile 3000\npgmajfault 7\n",
    "io.stat": "254:0 rbytes=40960 wbytes=9 rios=10 wios=99 dbytes=0 dios=0\n253:0 rbytes=40000 rios=10\n",
}
READ_TWO_MIB = """
import os, sys
for folder in sys.argv[2:]:
    open(folder + "/cgroup.procs", "w").write(str(os.getpid()))
handle = os.open(sys.argv[1], os.O_RDONLY)
os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)
held = b"x" * (8 << 20)
for start in range(0, 2 << 20, 4096):
    os.pread(handle, 4096, start)
print("read", flush=True)
input()
"""


@pytest.mark.parametrize(("version", "files"), [(1, V1_FILES), (2, V2_FILES)])
def test_counters_of_both_versions(tmp_path: Path, version: int, files: dict[str, str]) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    cgroup = MemoryCgroup(version, tmp_path, tmp_path)
    assert cgroup.read_memory() == MemoryUse(anonymous=2000, cache=3000)
    assert cgroup.read_disk() == DiskReads(10, 40960), "a volume and its disk are one read"
    assert cgroup.read_major_faults() == 7
    limit = next(iter(files))
    cgroup.set_limit(1 << 20)
    assert (tmp_path / limit).read_text() == "1048576"
    cgroup.set_limit(UNLIMITED)
    assert (tmp_path / limit).read_text() == ("-1" if version == 1 else "max")


def test_parents_are_the_own_cgroup_and_its_ancestors() -> None:
    first, *_, last = list_parents("8:blkio:/io\n4:memory:/a/b\n0::/\n")
    assert (first.version, first.memory) == (1, Path("/sys/fs/cgroup/memory/a/b"))
    assert last.memory == Path("/sys/fs/cgroup/memory")
    assert [parent.memory for parent in list_parents("0::/user.slice/run\n")] == [
        Path("/sys/fs/cgroup/user.slice/run"),
        Path("/sys/fs/cgroup/user.slice"),
        Path("/sys/fs/cgroup"),
    ]


def test_where_no_cgroup_can_be_made_the_error_names_the_folder(tmp_path: Path) -> None:
    parent = MemoryCgroup(2, tmp_path / "none", None)
    with pytest.raises(ConfigError, match=r"no memory cgroup can be created \(.*none.*run as root") as refused:
        MemoryCgroup.create((parent,))
    assert "\n" not in str(refused.value)


@pytest.fixture
def cgroup() -> object:
    try:
        group = MemoryCgroup.create()
    except ConfigError as error:
        pytest.skip(str(error))
    yield group
    group.remove()
    assert not group.memory.exists()


def test_a_process_is_limited_and_its_reads_are_counted(cgroup: MemoryCgroup, tmp_path: Path) -> None:
    path = tmp_path / "some"
    path.write_bytes(os.urandom(2 << 20))
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)
    cgroup.count_reads(path)
    command = [sys.executable, "-c", READ_TWO_MIB, str(path), *map(str, cgroup.folders)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "read\n"
        memory, reads = cgroup.read_memory(), cgroup.read_disk()
        assert memory.anonymous > 8 << 20
        assert cgroup.list_processes() == [process.pid]
        assert cgroup.read_cpu_seconds() >= 0
        if reads is not None and reads.bytes:
            assert reads.bytes >= 2 << 20
            assert reads.requests >= 256
        limit = memory.anonymous + (1 << 20)
        cgroup.set_limit(limit)
        assert sum(cgroup.read_memory()) <= limit, "the page cache gives way"
        process.communicate("\n")


def test_what_a_killed_run_left_is_removed(cgroup: MemoryCgroup) -> None:
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    stale = cgroup.memory.parent / f"{memory_cgroup.PREFIX}{int(ended.stdout)}-0"
    stale.mkdir()
    MemoryCgroup.create().remove()
    assert not stale.exists()
