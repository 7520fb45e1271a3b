"""A virtual environment for each peer, in a folder that later runs find them in."""

import subprocess
import sys
from pathlib import Path

from bidr.bench.variants import PACKAGES

# With these bidr's reads run in the peer's Python too, so that no peer is slowed by how candidates are ranked.
RANKING = ("numba", "xxhash")
DONE = "installed"


def install(folder: Path, peers: tuple[str, ...]) -> dict[str, str]:
    """Install what the named peers need; returns for each that failed the reason."""
    failed: dict[str, str] = {}
    for peer in peers:
        done = folder / peer / DONE
        if peer not in PACKAGES or (done.exists() and done.read_text(encoding="utf-8").split() == [*RANKING]):
            continue
        print(f"installing {PACKAGES[peer]} into {folder / peer}", file=sys.stderr, flush=True)
        reason = _run([sys.executable, "-m", "venv", str(folder / peer)])
        pip = [str(python_of(folder, peer)), "-m", "pip", "install", "-q"]
        reason = reason or _run([*pip, "--prefer-binary", PACKAGES[peer], "numpy"])
        if reason:
            failed[peer] = reason
        else:
            _run([*pip, "--only-binary", ":all:", *RANKING])
            done.write_text("\n".join(RANKING), encoding="utf-8")
    return failed


def python_of(folder: Path, peer: str) -> Path:
    """The Python that has a peer."""
    return folder / peer / "bin" / "python"


def _run(command: list[str]) -> str | None:
    """None, or the last line of what went wrong."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.returncode:
        return None
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines or ["no reason given"]
    return f"cannot be installed: {errors[-1]}"
