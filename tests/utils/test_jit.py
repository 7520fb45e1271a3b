"""Kernels are cached on disk for the next process and recompiled when a module they may call changes."""

import os
import subprocess
import sys
from pathlib import Path

from bidr.utils.jit import hash_source

KERNEL = """
from pathlib import Path
import bidr.utils.jit
if {folder!r}:
    bidr.utils.jit.hash_source = lambda stamp=bidr.utils.jit.hash_source(Path({folder!r})): stamp

@bidr.utils.jit.njit_cached()
def twice(number):
    return 2 * number

assert twice(3) == 6
print(sum(twice.stats.cache_hits.values()), sum(twice.stats.cache_misses.values()))
"""


def run_kernel(folder: Path, package: Path | None) -> str:
    """Return the cache hits and misses of a process that calls the kernel."""
    module = folder / "kernel.py"
    if not module.exists():
        module.write_text(KERNEL.format(folder=str(package or "")))
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "cache")}
    process = subprocess.run([sys.executable, module], env=environment, capture_output=True, text=True, check=True)
    return process.stdout.strip()


def test_kernels_are_cached_for_the_next_process(tmp_path: Path) -> None:
    assert run_kernel(tmp_path, None) == "0 1"
    assert run_kernel(tmp_path, None) == "1 0"


def test_kernels_are_recompiled_when_another_module_changes(tmp_path: Path) -> None:
    """The other module may hold a function that was inlined."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "callee.py").write_text("from bidr.utils.jit import njit_cached")
    (package / "plain.py").write_text("")
    assert run_kernel(tmp_path, package) == "0 1"
    assert run_kernel(tmp_path, package) == "1 0"
    (package / "plain.py").write_text("no kernels in here")
    assert run_kernel(tmp_path, package) == "1 0"
    (package / "callee.py").write_text("from bidr.utils.jit import njit_cached  # changed")
    assert run_kernel(tmp_path, package) == "0 1"


def test_numba_disable_jit_runs_plain_python() -> None:
    code = "from bidr.utils.jit import njit_cached; print(njit_cached()(lambda number: 2 * number)(3))"
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    process = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "6"


def test_hash_source_covers_the_modules_of_the_package() -> None:
    assert len(hash_source()) > 10
