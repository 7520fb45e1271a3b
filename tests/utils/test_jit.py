"""Compiled functions are kept for the next process, and no longer than what they hold."""

import os
import subprocess
import sys
from pathlib import Path

from bidr.utils.jit import sources

CALLED = """
from pathlib import Path
import bidr.utils.jit
if {folder!r}:
    bidr.utils.jit.sources = lambda found=bidr.utils.jit.sources(Path({folder!r})): found
compiled = bidr.utils.jit.compiled()

@compiled
def twice(number):
    return 2 * number

assert twice(3) == 6
print(sum(twice.stats.cache_hits.values()), sum(twice.stats.cache_misses.values()))
"""


def hits_and_misses(folder: Path, others: Path | None) -> str:
    module = folder / "made.py"
    if not module.exists():
        module.write_text(CALLED.format(folder=str(others or "")))
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run([sys.executable, module], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_kept_for_the_next_process(tmp_path: Path) -> None:
    assert hits_and_misses(tmp_path, None) == "0 1"
    assert hits_and_misses(tmp_path, None) == "1 0"


def test_compiled_again_when_another_source_changes(tmp_path: Path) -> None:
    """Which may be one that is called, and stands in the compiled code."""
    others = tmp_path / "others"
    others.mkdir()
    (others / "called.py").write_text("from bidr.utils.jit import compiled")
    (others / "plain.py").write_text("")
    assert hits_and_misses(tmp_path, others) == "0 1"
    assert hits_and_misses(tmp_path, others) == "1 0"
    (others / "plain.py").write_text("not compiled, so it does not matter")
    assert hits_and_misses(tmp_path, others) == "1 0"
    (others / "called.py").write_text("from bidr.utils.jit import compiled  # changed")
    assert hits_and_misses(tmp_path, others) == "0 1"


def test_not_compiled_where_numba_is_told_so() -> None:
    code = "from bidr.utils.jit import compiled; print(compiled()(lambda number: 2 * number)(3))"
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "6"


def test_the_sources_are_those_of_the_package() -> None:
    assert len(sources()) > 10
