"""Available memory, read from fake files of the machine and of cgroups."""

from pathlib import Path

import pytest

from bidr.utils.memory_limit import read_memory_limit

MIB = 1 << 20
V1_MOUNT = "30 24 0:26 {root} /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"
V2_MOUNT = "31 24 0:27 {root} /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"


def write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


@pytest.fixture
def root(tmp_path):
    """A machine of 1,000 MiB with 800 available."""
    write(tmp_path / "proc/meminfo", f"MemTotal: {1000 << 10} kB\nMemFree: 1 kB\nMemAvailable: {800 << 10} kB")
    return tmp_path


def write_v1(folder: Path, limit: int, usage: int = 0, cache: int = 0) -> None:
    write(folder / "memory.limit_in_bytes", limit)
    write(folder / "memory.usage_in_bytes", usage)
    write(folder / "memory.stat", f"cache 5\ntotal_inactive_file {cache}\ntotal_active_file {cache}")


def write_v2(folder: Path, limit: object, usage: int = 0, cache: int = 0, high: object = "max") -> None:
    write(folder / "memory.max", limit)
    write(folder / "memory.high", high)
    write(folder / "memory.current", usage)
    write(folder / "memory.stat", f"file 999\ninactive_file {cache}\nactive_file {cache}\nbroken")


def test_without_cgroups_the_machine_limits(root):
    assert read_memory_limit(root) == (1000 * MIB, 800 * MIB, "machine")


def test_without_any_file_there_is_no_limit(tmp_path):
    assert read_memory_limit(tmp_path) is None


@pytest.mark.parametrize("unlimited", [9223372036854771712, 2**63 - 1])
def test_v1_page_cache_counts_as_available(root, unlimited):
    write(root / "proc/self/cgroup", "4:memory:/a/b\n0::/")
    write(root / "proc/self/mountinfo", V1_MOUNT.format(root="/"))
    folder = root / "sys/fs/cgroup/memory"
    write_v1(folder, unlimited)
    write_v1(folder / "a", unlimited, 10**12)
    write_v1(folder / "a/b", 100 * MIB, 90 * MIB, 20 * MIB)
    assert read_memory_limit(root)[:2] == (100 * MIB, 50 * MIB)


def test_the_tightest_parent_limits(root):
    write(root / "proc/self/cgroup", "0::/a/b/c")
    write(root / "proc/self/mountinfo", V2_MOUNT.format(root="/"))
    folder = root / "sys/fs/cgroup"
    write_v2(folder / "a", 300 * MIB, 260 * MIB)
    write_v2(folder / "a/b", 200 * MIB, 20 * MIB)
    write_v2(folder / "a/b/c", "max", 20 * MIB)
    limit = read_memory_limit(root)
    assert limit[:2] == (300 * MIB, 40 * MIB)
    assert limit.source.endswith("cgroup/a")


def test_v2_high_limits_below_max_and_usage_above_the_limit_leaves_nothing(root):
    write(root / "proc/self/cgroup", "0::/a")
    write(root / "proc/self/mountinfo", V2_MOUNT.format(root="/"))
    write_v2(root / "sys/fs/cgroup/a", 300 * MIB, 20 * MIB, high=100 * MIB)
    assert read_memory_limit(root)[:2] == (100 * MIB, 80 * MIB)
    write_v2(root / "sys/fs/cgroup/a", 300 * MIB, 400 * MIB, high="max")
    assert read_memory_limit(root)[:2] == (300 * MIB, 0)


def test_all_unlimited_leaves_the_machine(root):
    write(root / "proc/self/cgroup", "0::/a")
    write(root / "proc/self/mountinfo", V2_MOUNT.format(root="/"))
    write_v2(root / "sys/fs/cgroup/a", "max", 50 * MIB)
    assert read_memory_limit(root).source == "machine"


@pytest.mark.parametrize(("mounted", "path"), [("/docker/x", "/docker/x"), ("/", "/"), ("/other", "/../../gone")])
def test_a_container_sees_its_own_cgroup_as_the_root_of_the_mount(root, mounted, path):
    write(root / "proc/self/cgroup", f"4:cpu,memory:{path}")
    write(root / "proc/self/mountinfo", "broken\n" + V1_MOUNT.format(root=mounted))
    write_v1(root / "sys/fs/cgroup/memory", 64 * MIB, 4 * MIB)
    assert read_memory_limit(root)[:2] == (64 * MIB, 60 * MIB)


def test_mount_points_with_spaces_are_found(root):
    write(root / "proc/self/cgroup", "0::/")
    write(root / "proc/self/mountinfo", V2_MOUNT.format(root="/").replace("/sys/fs/cgroup", r"/my\040groups"))
    write_v2(root / "my groups", 64 * MIB)
    assert read_memory_limit(root).total == 64 * MIB


def test_this_machine_has_a_limit():
    limit = read_memory_limit()
    assert limit is None or 0 <= limit.available <= limit.total
