"""Memory that this process may still take: of the machine, and of its memory cgroups (v1 and v2)."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

UNLIMITED = 1 << 60
"""Limits from here on mean none: v1 reports the largest multiple of a page instead of "max"."""
_ESCAPE = re.compile(r"\\([0-7]{3})")


class MemoryLimit(NamedTuple):
    """The tightest bound on memory: bytes in total, bytes still available, and where the bound comes from."""

    total: int
    available: int
    source: str


class _Controller(NamedTuple):
    """Names of the files of a memory cgroup."""

    limits: tuple[str, ...]
    usage: str
    reclaimable: tuple[str, ...]


_V1 = _Controller(("memory.limit_in_bytes",), "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))
_V2 = _Controller(("memory.max", "memory.high"), "memory.current", ("inactive_file", "active_file"))


def read_memory_limit(root: Path = Path("/")) -> MemoryLimit | None:
    """Return the tightest of the limits of the machine, this process's cgroup and its parents.

    Page cache counts as available, as the kernel gives it up first. None where the system reports nothing (macOS).

    Args:
        root: Folder that contains proc and the cgroup mounts, for tests.
    """
    limits = [*_read_machine(root), *_read_cgroups(root)]
    return min(limits, key=lambda limit: limit.available) if limits else None


def _read_machine(root: Path) -> Iterator[MemoryLimit]:
    values = _read_fields(root / "proc/meminfo")
    if "MemTotal:" in values:
        total = 1024 * values["MemTotal:"]
        yield MemoryLimit(total, 1024 * values.get("MemAvailable:", values["MemTotal:"]), "machine")


def _read_cgroups(root: Path) -> Iterator[MemoryLimit]:
    for controller, mount, folder in _find_cgroups(root):
        parents = folder.parents[: len(folder.parts) - len(mount.parts)]
        limits = (_read_cgroup(parent, controller) for parent in (folder, *parents))
        yield from (limit for limit in limits if limit is not None)


def _read_cgroup(folder: Path, controller: _Controller) -> MemoryLimit | None:
    limits = [value for name in controller.limits if (value := _read_number(folder / name)) is not None]
    usage = _read_number(folder / controller.usage)
    if not limits or usage is None:
        return None
    statistics, limit = _read_fields(folder / "memory.stat"), min(limits)
    used = max(usage - sum(statistics.get(name, 0) for name in controller.reclaimable), 0)
    return MemoryLimit(limit, max(limit - used, 0), f"cgroup {folder}")


def _find_cgroups(root: Path) -> Iterator[tuple[_Controller, Path, Path]]:
    """Yield the memory controllers of this process: their mount and the folder of its cgroup."""
    paths: dict[_Controller, str] = {}
    for line in _read_lines(root / "proc/self/cgroup"):
        number, names, path = [*line.split(":", 2), "", ""][:3]
        if "memory" in names.split(","):
            paths[_V1] = path
        elif number == "0" and not names:
            paths[_V2] = path
    for line in _read_lines(root / "proc/self/mountinfo"):
        fields, _, rest = line.partition(" - ")
        kind, options = [*rest.split(), "", "", ""][0:3:2]
        controller = _V2 if kind == "cgroup2" else _V1
        if (kind != "cgroup2" and (kind != "cgroup" or "memory" not in options.split(","))) or controller not in paths:
            continue
        mounted, point = (_unescape(field) for field in [*fields.split(), *[""] * 5][3:5])
        mount = root / point.lstrip("/")
        # A container may see its own cgroup as the root of the mount, under the path that the host knows.
        path = paths[controller]
        inside = path.removeprefix(mounted) if mounted != "/" and (path + "/").startswith(mounted + "/") else path
        folder = mount / inside.lstrip("/")
        yield controller, mount, folder if ".." not in folder.parts and folder.is_dir() else mount


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _read_fields(path: Path) -> dict[str, int]:
    """Read lines of a name and a number."""
    values = dict[str, int]()
    for line in _read_lines(path):
        with suppress(ValueError, IndexError):
            name, number = line.split()[:2]
            values[name] = int(number)
    return values


def _read_number(path: Path) -> int | None:
    """Read a number of bytes; None where there is no file, or no limit."""
    try:
        value = int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return value if value < UNLIMITED else None
